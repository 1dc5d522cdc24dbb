"""IDX, the file format of MNIST and its relatives: a big-endian header, then bytes.

Source: the description on the MNIST page (LeCun, Cortes, Burges, "The MNIST database of handwritten
digits").
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.data.files import open_file
from speedo.errors import DataError

# Two zero bytes, the type of the elements (8: unsigned byte), the number of dimensions.
_UNSIGNED_BYTE: Final = 8
# Half as much again as EMNIST, the largest set in this format: 814,255 images of 28 x 28.
MOST_BYTES: Final = 1 << 30


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of uint8 in an IDX file, plain or compressed with gzip, of this many dimensions.

    No more is unpacked than its header says, and no more than `MOST_BYTES`. Raises DataError if the file is not
    IDX, has another form, or is cut off.
    """
    header = struct.calcsize(f">HBB{dimensions}I")
    packed = path.suffix == ".gz"
    try:
        with open_file(path) as file:
            content = gzip.GzipFile(fileobj=file) if packed else file
            start = content.read(header)
            sizes = _sizes(path, start, header, dimensions)
            expected = math.prod(sizes)
            if expected > MOST_BYTES:
                raise DataError(
                    f"{path} says that it holds {expected:,} bytes, more than the {MOST_BYTES:,} that are read: "
                    "it is damaged, fetch it again"
                )
            data = content.read(expected + 1)  # one more shows that there is more
    except (OSError, EOFError, zlib.error) as error:
        what = "decompressed" if packed else "read"
        raise DataError(f"{path} cannot be {what} ({error}): fetch it again") from error
    if len(data) != expected:
        found = "more bytes" if len(data) > expected else f"{header + len(data)} bytes"
        raise DataError(
            f"{path} has {found}, its header says {header + expected}: it is damaged, fetch it again"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(sizes)


def _sizes(path: Path, start: bytes, header: int, dimensions: int) -> list[int]:
    """The extents that the header gives."""
    if len(start) < header:
        raise DataError(
            f"{path} is not an IDX file: it has {len(start)} bytes only; fetch it again"
        )
    zero, kind, found, *sizes = struct.unpack(f">HBB{dimensions}I", start)
    if zero != 0 or kind != _UNSIGNED_BYTE or found != dimensions:
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions: "
            f"it starts with {start[:4].hex(' ')}; are images and labels exchanged?"
        )
    return sizes
