"""What vectors look like on their way: as they are, or in fewer bytes; each way is a `Codec`."""

from __future__ import annotations

from dataclasses import dataclass

from speedo.config.formats import parse_compression
from speedo.vectors.codecs.base import Codec
from speedo.vectors.codecs.bfloat16 import BFloat16
from speedo.vectors.codecs.float32 import Float32
from speedo.vectors.codecs.int8 import Int8
from speedo.vectors.codecs.topk import TopK
from speedo.vectors.vector import Blob, Layout

__all__ = ["NO_COMPRESSION", "Codec", "Compression", "bytes_of", "make_codec"]


@dataclass(frozen=True, slots=True)
class Compression:
    """How a run writes its vectors: what workers send, and what they fetch; each as `make_codec` takes it."""

    payload: str = "none"
    center: str = "none"


NO_COMPRESSION = Compression()


def make_codec(compress: str, layout: Layout) -> Codec:
    """The codec of `none`, `bfloat16`, `int8` or `topk:F`; raises `ConfigError` for anything else."""
    name, fraction = parse_compression(compress)
    match name:
        case "bfloat16":
            return BFloat16(layout)
        case "int8":
            return Int8(layout)
        case "topk":
            return TopK(layout, fraction)
        case _:
            return Float32(layout)


def bytes_of(compress: str, parameters: int) -> int:
    """Bytes of a vector of so many parameters, none of them a statistic of BatchNorm."""
    return make_codec(compress, Layout((Blob("all", (parameters,)),))).body_bytes
