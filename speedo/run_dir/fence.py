"""Decides which master may write a run directory: by a lock on this machine, and by an epoch against a replaced master.

The directory holds the fencing `epoch` of the master that owns the run. A resume raises it. A master that finds
another epoch there than its own has been replaced and must not write any more, nor delete anything: what is there is
its successor's. A master that cannot read the epoch does not know whether it is, and must not write either. Where a
standby on another machine may follow, the directory there is another one, and the epoch of the run's Redis counts too.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from caffenets.files import read_text
from speedo.errors import CheckpointError, ConfigError, FencedError
from speedo.run_dir.directory import CHECKPOINTS, EPOCH, LOCK, write_whole
from speedo.system.bounds import LARGEST_INT32, whole_number
from speedo.system.disk_calls import on_disk

MOST_EPOCH_BYTES: Final = 64
FENCE_S: Final = 0.5


@contextmanager
def owned(run_dir: Path, *, take_over: bool) -> Iterator[None]:
    """Hold the run directory's lock, so that two masters on one machine cannot train the same run.

    Raises `ConfigError` if a living process holds it, unless `take_over`.
    """
    lock = _lock_file(run_dir / LOCK)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "?"
            if not take_over:
                raise ConfigError(
                    f"{run_dir} is still being trained by process {holder}; `speedo stop` ends it, and if it "
                    "hangs, --resume RUN,take_over=yes shuts it out"
                ) from None
        else:
            with suppress(OSError):  # the lock itself is what counts
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _lock_file(path: Path) -> int:
    try:
        if os.path.lexists(path) and not os.path.isfile(path):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigError(
            f"{path}, the lock of the run, cannot be opened ({error.strerror}): make room there, make it writable, "
            "or remove it"
        ) from None


def epoch_of(run_dir: Path) -> int:
    """The fencing epoch of the run's present master; 0 if there is no such file: nobody has resumed the run.

    Raises `CheckpointError` if the file cannot be read, or holds no epoch.
    """
    path = run_dir / EPOCH
    try:
        with on_disk(path):
            epoch = whole_number(read_text(path, MOST_EPOCH_BYTES))
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror or error}), so it is not known which master has the run: "
            "make it readable"
        ) from None
    except ValueError:  # not UTF-8
        epoch = None
    if epoch is None or epoch >= LARGEST_INT32:
        raise CheckpointError(
            f"{path} holds no epoch, so it is not known which master has the run: write a whole number into it that "
            f"is above the first of the names in {run_dir / CHECKPOINTS}"
        )
    return epoch


def claim(run_dir: Path, epoch: int | None = None) -> int:
    """Become the run's master: set an epoch above all before, or that of its lease, on the disk when this returns.

    Raises `CheckpointError` if the epoch before is not known, or the new one cannot be written.
    """
    if epoch is None:
        epoch = epoch_of(run_dir) + 1
    try:
        write_whole(run_dir / EPOCH, f"{epoch}\n")
    except OSError as error:
        raise CheckpointError(
            f"{run_dir} cannot be written: {error.strerror}; make room there or make it writable"
        ) from None
    return epoch


class Fence:
    """Checks that no other master has taken over the run since `epoch`.

    `elsewhere` raises `FencedError` if one on another machine has. It is asked by `require` alone: what a merge
    publishes there depends on it by itself.
    """

    def __init__(
        self,
        run_dir: Path,
        epoch: int,
        clock: Callable[[], float],
        elsewhere: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_dir, self._epoch, self._clock = run_dir, epoch, clock
        self._elsewhere = elsewhere
        self._next = clock()

    def check(self) -> None:
        """As `require`, but only at intervals: cheap enough for every merge."""
        if self._clock() >= self._next:
            self._require_here()
            self._next = self._clock() + FENCE_S

    def require(self) -> None:
        """Raises `FencedError` if another master has claimed the run, or that cannot be known."""
        self._require_here()
        self._elsewhere()

    def _require_here(self) -> None:
        try:
            present = epoch_of(self._run_dir)
        except CheckpointError as error:
            raise FencedError(f"{error}; this master stops and writes nothing more") from None
        if present == self._epoch:
            return
        by = "another master has resumed this run"
        if present < self._epoch:
            by = f"{self._run_dir / EPOCH} is another one than this master has written"
        raise FencedError(
            f"{by} (its epoch is {present}, ours {self._epoch}): this one stops and writes nothing more"
        )
