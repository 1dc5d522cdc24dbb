"""A log file that survives a full disk: lines that cannot be written are kept in memory until they can.

A disk that is full, read-only or failing must neither end a run nor lose a line, if there is space again in time. So
no error of the disk is raised here; `problem` says what is wrong now.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from speedo.system.disk_calls import on_disk

AGAIN_S: Final = 1.0  # between two tries to write to a disk that refused
MOST_LINES: Final = 64  # in one write
KEPT_BYTES: Final = 16 << 20  # lines that wait, at most: 40,000 results or more


class LineFile:
    """Appends to `path`, opened at the first line; for one thread at a time.

    `lost` makes the line that replaces lines which did not fit into `kept_bytes`; without it, there is no such line.
    """

    def __init__(
        self,
        path: Path,
        *,
        descriptor: int | None = None,
        kept_bytes: int = KEPT_BYTES,
        lost: Callable[[int], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With a `descriptor` the file is already open, and is closed here."""
        self.path = path
        self.problem = ""  # why lines wait; empty if none does
        self.lines_lost = 0  # that nothing will bring back
        self.closed = False
        self._file = descriptor
        self._kept_bytes, self._lost, self._clock = kept_bytes, lost, clock
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._gap = 0  # lines lost since the last that waits
        self._next_try = 0.0
        self._gathers = False

    def write(self, line: bytes) -> None:
        """Append the line, now or when the disk accepts it."""
        if self.closed:
            return
        if self._waiting_bytes + len(line) > self._kept_bytes and self._waiting:
            self._gap += 1
            self.lines_lost += 1
        else:
            self._keep(line)
        if not self._gathers and (not self.problem or self._clock() >= self._next_try):
            self.flush()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is written inside goes to the disk at the end, at once."""
        self._gathers = True
        try:
            yield
        finally:
            self._gathers = False
            if self._waiting and (not self.problem or self._clock() >= self._next_try):
                self.flush()

    def flush(self) -> bool:
        """Try to write the waiting lines; returns whether all are written."""
        with on_disk(self.path):
            return self._flush()

    def _flush(self) -> bool:
        try:
            if self._file is None:
                # Not blocking: a pipe in its place is an error, and nothing to wait for.
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
                self._file = os.open(self.path, flags, 0o666)
            while self._waiting:
                self._write_some(self._file)
        except OSError as error:
            self.problem = error.strerror or str(error)
            self._next_try = self._clock() + AGAIN_S
            return False
        self.problem = ""
        return True

    def close(self) -> bytes:
        """Try once more, and close; returns what could not be written."""
        if self.closed:
            return b""
        written = self.flush()
        self.closed = True
        if self._file is not None:
            try:
                os.close(self._file)
            except OSError as error:  # some disks tell only now
                self.problem = error.strerror or str(error)
        return b"" if written else b"".join(self._waiting)

    def disown(self) -> None:
        """Write nothing more, not even the waiting lines."""
        self._waiting.clear()
        self._gap = 0
        self.close()

    def _keep(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)

    def _write_some(self, file: int) -> None:
        lines = list(islice(self._waiting, MOST_LINES))
        left = os.write(file, lines[0] if len(lines) == 1 else b"".join(lines))
        for line in lines:
            if left < len(line):  # a full disk's last block: readers want whole lines
                if left:
                    os.ftruncate(file, os.fstat(file).st_size - left)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._waiting.popleft()
            self._waiting_bytes -= len(line)
            left -= len(line)
        if not self._waiting and self._gap:
            gap, self._gap = self._gap, 0
            if self._lost is not None:
                self._keep(self._lost(gap))
