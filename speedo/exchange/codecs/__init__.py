"""The encodings of vectors for the store: raw float32, or a `Codec` that needs fewer bytes. A file for each.

A file that declares `CODEC` is found here, and `--compress` takes its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from caffenets.declared import declared_in
from speedo.errors import ConfigError, PayloadError
from speedo.exchange.codecs.base import Codec
from speedo.exchange.vector import Blob, Header, Layout

__all__ = [
    "CODECS", "NO_COMPRESSION", "Codec", "Compression", "bytes_of", "check_encoding", "in_words", "is_fraction",
    "make_codec", "parse_compression",
]  # fmt: skip

CODECS: Final[dict[str, type[Codec]]] = {
    codec.name: codec
    for codec in sorted(declared_in(__name__, "CODEC"), key=lambda codec: int(codec.dtype))
}
LARGEST_FRACTION: Final = 0.5  # a value that top-k sends takes 6 bytes, of 4 in the vector


@dataclass(frozen=True, slots=True)
class Compression:
    """The encodings of a run: what workers send, and what they fetch; each as `make_codec` takes it."""

    payload: str = "none"
    center: str = "none"


NO_COMPRESSION = Compression()


def parse_compression(text: str) -> tuple[str, float]:
    """The name of a codec, and the fraction F of the values that are sent, in `NAME` or `NAME:F`."""
    name, colon, number = text.partition(":")
    codec = CODECS.get(name)
    if codec is not None and not codec.takes_fraction and not colon:
        return name, 1.0
    try:
        fraction = float(number) if codec is not None and codec.takes_fraction else 0.0
    except ValueError:
        fraction = 0.0
    if not 0.0 < fraction <= LARGEST_FRACTION:
        whole = ", ".join(one.name for one in CODECS.values() if not one.takes_fraction)
        parts = [f"{one.name}:F" for one in CODECS.values() if one.takes_fraction]
        raise ConfigError(
            f"compress is {text!r}; use {whole}, or {' or '.join(parts)} with a fraction F above 0 and up to "
            f"{LARGEST_FRACTION}, as in topk:0.01"
        )
    return name, fraction


def in_words(*, centers: bool = False) -> str:
    """The choices of `--compress`, or of its center, for the help."""
    *others, last = (
        f"{codec.name}{':F' if codec.takes_fraction else ''} ({codec.summary})"
        for codec in CODECS.values()
        if codec.for_centers or not centers
    )
    return f"{', '.join(others)} or {last}"


def is_fraction(compress: str) -> bool:
    """Whether only a fraction of the values is sent: enough of deltas, but no model."""
    codec = CODECS.get(compress.partition(":")[0])
    return codec is not None and codec.takes_fraction


def make_codec(compress: str, layout: Layout) -> Codec:
    """The codec of this name, as `parse_compression` takes it; raises `ConfigError` for anything else."""
    name, fraction = parse_compression(compress)
    codec: Any = CODECS[name]
    made: Codec = codec(layout, fraction) if codec.takes_fraction else codec(layout)
    return made


def check_encoding(header: Header, codec: Codec) -> None:
    """Refuse a header of another encoding."""
    if header.dtype != codec.dtype:
        known = {one.dtype: one.name for one in CODECS.values()}
        written = known.get(header.dtype, f"number {header.dtype}")
        raise PayloadError(
            f"written with compression {written} but this run uses {codec.name}: "
            "run the same version of SpeeDO on every node",
            "dtype",
        )


def bytes_of(compress: str, parameters: int) -> int:
    """The encoded size of a vector of this many parameters, without BatchNorm statistics."""
    return make_codec(compress, Layout((Blob("all", (parameters,)),))).body_bytes
