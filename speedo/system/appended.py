"""The lines that others append to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MOST_BYTES: Final = 1 << 16  # at once; the rest comes the next time


def length_of(path: Path) -> int:
    """Bytes of the file; 0 if it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


class AppendedLines:
    """Whole lines that were appended since the last look; a file that is not there has none.

    Another file may take its place that begins with the same whole lines.
    """

    def __init__(self, path: Path, begin: int = 0) -> None:
        """`begin` is the byte at which the first line begins."""
        self._path, self._read = path, begin

    def new(self) -> list[str]:
        """The lines since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read(MOST_BYTES) + file.readline()  # its last line whole
        except OSError:
            return []
        *lines, rest = data.split(b"\n")
        self._read += len(data) - len(rest)
        return [line.decode(errors="replace") for line in lines]
