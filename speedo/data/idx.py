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

from speedo.errors import DataError
from speedo.files import open_to_read, read_bytes

# Two zero bytes, the type of the elements (8: unsigned byte), the number of dimensions.
_UNSIGNED_BYTE: Final = 8


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of uint8 in an IDX file, plain or compressed with gzip, of so many dimensions.

    Raises DataError if the file is not IDX, has another form, or is cut off.
    """
    content = _content(path)
    header = struct.calcsize(f">HBB{dimensions}I")
    if len(content) < header:
        raise DataError(
            f"{path} is not an IDX file: it has {len(content)} bytes only; fetch it again"
        )
    zero, kind, found, *sizes = struct.unpack_from(f">HBB{dimensions}I", content)
    if zero != 0 or kind != _UNSIGNED_BYTE or found != dimensions:
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions: "
            f"it starts with {content[:4].hex(' ')}; are images and labels exchanged?"
        )
    expected = header + math.prod(sizes)
    if len(content) != expected:
        raise DataError(
            f"{path} has {len(content)} bytes, its header says {expected}: "
            "it is damaged, fetch it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(sizes)


def _content(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return read_bytes(path)
        with open_to_read(path) as packed, gzip.open(packed) as stream:
            return stream.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be decompressed ({error}): fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
