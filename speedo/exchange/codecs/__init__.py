"""The encodings of vectors for the store: raw float32, or a `Codec` that needs fewer bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from speedo.errors import ConfigError
from speedo.exchange.codecs.base import Codec
from speedo.exchange.codecs.bfloat16 import BFloat16
from speedo.exchange.codecs.float32 import Float32
from speedo.exchange.codecs.int8 import Int8
from speedo.exchange.codecs.sparse import Sparse
from speedo.exchange.codecs.topk import TopK
from speedo.exchange.vector import Blob, Layout

__all__ = [
    "NO_COMPRESSION", "Codec", "Compression", "bytes_of", "is_fraction", "make_codec", "parse_compression",
]  # fmt: skip

FRACTIONS: Final = ("topk", "sparse")
LARGEST_FRACTION: Final = 0.5  # a value that top-k sends takes 6 bytes, of 4 in the vector


@dataclass(frozen=True, slots=True)
class Compression:
    """The encodings of a run: what workers send, and what they fetch; each as `make_codec` takes it."""

    payload: str = "none"
    center: str = "none"


NO_COMPRESSION = Compression()


def parse_compression(text: str) -> tuple[str, float]:
    """The name in `none`, `bfloat16`, `int8`, `topk:F`, `sparse:F`, and the fraction F of the values that are sent."""
    name, colon, number = text.partition(":")
    if text in ("none", "bfloat16", "int8"):
        return text, 1.0
    try:
        fraction = float(number) if name in FRACTIONS and colon else 0.0
    except ValueError:
        fraction = 0.0
    if not 0.0 < fraction <= LARGEST_FRACTION:
        raise ConfigError(
            f"compress is {text!r}; use none, bfloat16, int8, or topk:F or sparse:F with a fraction F above 0 and up "
            f"to {LARGEST_FRACTION}, as in topk:0.01"
        )
    return name, fraction


def is_fraction(compress: str) -> bool:
    """Whether only a fraction of the values is sent: enough of deltas, but no model."""
    return compress.partition(":")[0] in FRACTIONS


def make_codec(compress: str, layout: Layout) -> Codec:
    """The codec of this name, as `parse_compression` takes it; raises `ConfigError` for anything else."""
    name, fraction = parse_compression(compress)
    match name:
        case "bfloat16":
            return BFloat16(layout)
        case "int8":
            return Int8(layout)
        case "topk":
            return TopK(layout, fraction)
        case "sparse":
            return Sparse(layout, fraction)
        case _:
            return Float32(layout)


def bytes_of(compress: str, parameters: int) -> int:
    """The encoded size of a vector of this many parameters, without BatchNorm statistics."""
    return make_codec(compress, Layout((Blob("all", (parameters,)),))).body_bytes
