"""Arrays of a file that are not read yet, and the words for files that cannot be."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from caffenets.errors import EngineError, NetError
from caffenets.files import MOST_OF_BEGIN, open_to_read, what_instead

Values = npt.NDArray[np.float32]
Shape = tuple[int, ...]

FLOAT32: Final[np.dtype[Any]] = np.dtype("<f4")
FLOAT64: Final[np.dtype[Any]] = np.dtype("<f8")
BFLOAT16: Final[np.dtype[Any]] = np.dtype([("bfloat16", "<u2")])  # the upper half of a float32
MOST_AXES: Final = 32  # as Caffe (blob.hpp, kMaxBlobAxes) and HDF5
MOST_ENTRIES: Final = 400_000  # in a file's table of contents; 1,000 layers have some 50,000
MOST_NAME_BYTES: Final = 1 << 16
OTHER: Final = "give another file"


class DamagedError(Exception):
    """What is wrong with a file; follows its name. `remedy` follows the text."""

    def __init__(self, text: str, remedy: str = OTHER) -> None:
        super().__init__(text)
        self.remedy = remedy


class Piece(NamedTuple):
    """`length` numbers, one after another, from byte `begin` on."""

    begin: int
    length: int
    kind: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """An array in a file; `what` is its name there. `strides`, in numbers, are those of a single piece.

    With a `member`, the pieces are in this file of an archive, which may be compressed.
    """

    path: Path
    what: str
    shape: Shape
    pieces: tuple[Piece, ...]
    strides: Shape | None = None
    member: str = ""

    @property
    def size(self) -> int:
        """How many numbers the array has."""
        return math.prod(self.shape)

    def read(self) -> Values:
        """The array in its shape. Raises `EngineError` for a file that has become shorter, or too little memory."""
        with reading(self.path) as file, _member(file, self.member) as content:
            parts = [_read(content, self.what, piece) for piece in self.pieces]
            whole = (
                parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.float32), *parts])
            )
            if self.strides is None:
                return whole.reshape(self.shape)
            steps = tuple(step * whole.itemsize for step in self.strides)
            return np.ascontiguousarray(np.lib.stride_tricks.as_strided(whole, self.shape, steps))


@dataclass(frozen=True, slots=True)
class StoredState:
    """A solver's state: Caffe's SolverState without the values of its history."""

    iteration: int
    learned_net: str
    current_step: int
    history: tuple[Stored, ...]


def stored(
    path: Path,
    what: str,
    shape: Sequence[int],
    pieces: Iterable[Piece],
    strides: Shape | None = None,
) -> Stored:
    """Raises `DamagedError` where the pieces are not what the shape needs."""
    shape, pieces = tuple(shape), tuple(pieces)
    check_shape(what, shape)
    held, needed = sum(piece.length for piece in pieces), math.prod(shape)
    if held != needed if strides is None else held < needed:
        raise DamagedError(
            f"is damaged: {what} holds {held:,} values, but its shape is {shape_text(shape)}"
        )
    return Stored(path, what, shape, pieces, strides)


def check_shape(what: str, shape: Shape) -> None:
    """Raises `DamagedError` for a shape that no array can have."""
    if len(shape) > MOST_AXES or any(not 0 <= extent < 2**63 for extent in shape):
        raise DamagedError(f"is damaged: {what} has the shape {shape_text(shape[:MOST_AXES])}")


def shape_text(shape: Shape) -> str:
    """A shape in words."""
    return " x ".join(map(str, shape)) or "a single value"


class Table:
    """Counts what a file's table of contents has: `entries` of any kind, and the bytes of the `arrays`."""

    def __init__(self, size: int) -> None:
        self._size, self._entries, self._bytes = size, 0, 0
        self._seen = set[Piece]()

    def entry(self, number: int = 1) -> None:
        """Raises `DamagedError` for more entries than any net needs."""
        self._entries += number
        if self._entries > MOST_ENTRIES:
            raise DamagedError(f"has more than {MOST_ENTRIES:,} entries, which no net has")

    def array(self, one: Stored) -> Stored:
        """The array; raises `DamagedError` where the file is too short for it, or for all arrays so far."""
        self.entry()
        for piece in one.pieces:
            nbytes = piece.length * piece.kind.itemsize
            if piece not in self._seen:  # arrays may share their values
                self._seen.add(piece)
                self._bytes += nbytes
            if piece.begin + nbytes > self._size or self._bytes > self._size:
                raise DamagedError(
                    f"declares more values than its {self._size:,} bytes hold ({one.what}, {shape_text(one.shape)})"
                )
        return one


@contextmanager
def reading(path: Path, kind: str = "") -> Iterator[BufferedReader]:
    """The file, open; what is raised in the context becomes an `EngineError` that begins with its name.

    `kind` is what a file that no reader understands is not: "a .caffemodel".
    """
    try:
        with open_to_read(path) as file:
            if kind and (said := what_instead(file.peek(MOST_OF_BEGIN))):
                what, _, remedy = said.rpartition(": ")
                raise DamagedError(what, remedy)
            yield file
    except DamagedError as error:
        raise EngineError(f"{path} {error.args[0]}: {error.remedy}") from None
    except MemoryError:
        raise EngineError(
            f"{path} needs more memory than there is: free some, or {OTHER}"
        ) from None
    except OSError as error:
        if error.errno is None and kind:  # of the HDF5 library: the content is wrong
            raise _not_one(path, kind, error) from None
        raise EngineError(
            f"{path} cannot be read ({error.strerror or error}): correct the path or its permissions"
        ) from error
    except NetError:
        raise
    except Exception as error:  # of any class: NumPy, h5py and zipfile raise what comes
        if not kind:
            raise
        raise _not_one(path, kind, error) from None


def _not_one(path: Path, kind: str, error: Exception) -> EngineError:
    return EngineError(f"{path} is not {kind}, or a truncated one ({error!s:.200}): {OTHER}")


def size_of(file: BufferedReader) -> int:
    """The bytes of an open file."""
    at = file.tell()
    size = file.seek(0, 2)
    file.seek(at)
    return size


def exactly(file: IO[bytes], begin: int, length: int, what: str) -> bytes:
    """These bytes of the file; raises `DamagedError` if it ends before."""
    file.seek(begin)
    content = file.read(length)
    if len(content) < length:
        raise DamagedError(f"is truncated: it ends before the end of {what}")
    return content


@contextmanager
def _member(file: BufferedReader, name: str) -> Iterator[IO[bytes]]:
    """A file of an archive, or the file itself."""
    if not name:
        yield file
        return
    try:
        with zipfile.ZipFile(file) as archive, archive.open(name) as content:
            yield content
            content.read(1)  # at its end the checksum is compared
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DamagedError(
            f"is damaged: {name!r:.100} cannot be unpacked ({error!s:.100})"
        ) from None


def _read(file: IO[bytes], what: str, piece: Piece) -> Values:
    content = exactly(file, piece.begin, piece.length * piece.kind.itemsize, what)
    values = np.frombuffer(content, piece.kind)
    if piece.kind == BFLOAT16:
        return (values["bfloat16"].astype(np.uint32) << 16).view(np.float32)
    if piece.kind.names:
        values = values[piece.kind.names[0]]
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)
