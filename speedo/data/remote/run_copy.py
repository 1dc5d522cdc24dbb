"""Copies a run directory to a store at each checkpoint and at the end, in a thread that training never waits for.

A store that is away is reported once, and tried again until it is back; then everything that has changed is copied. The
last copy, after the end, is tried for as long as the caller says.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from speedo.data.remote.uris import Remote, open_remote, store_errors
from speedo.errors import DataError, SpeedoError, hide_secrets

LOOK_S: Final = 1.0  # how often the folder is looked at for a checkpoint
FIRST_WAIT_S: Final = 1.0  # before a failed copy is tried again; doubled each time
LONGEST_WAIT_S: Final = 30.0
# Written last: who finds it finds all that it speaks of.
LAST: Final = ("result.json",)


class RunCopy:
    """Copies the files of `folder` to `uri` whenever a file of `watched` is new, until `finish`.

    `skip` are names of files that are no part of a run's result; files that begin with a dot are parts of others.
    `watched` are folders or files in it.
    """

    def __init__(
        self,
        folder: Path,
        uri: str,
        note: Callable[[str], None],
        *,
        watched: tuple[str, ...],
        skip: tuple[str, ...] = (),
    ) -> None:
        self._folder, self._uri, self._note = folder, uri.rstrip("/"), note
        self.uri = hide_secrets(self._uri)  # as messages name it
        self._watched, self._skip = watched, skip
        self._remote: Remote | None = None
        self._copied: dict[str, tuple[int, int]] = {}  # size and time of change
        self._away = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="run copy", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def finish(self, patience_s: float) -> str:
        """Copy what has changed to the end; returns why that was given up after this many seconds, or nothing.

        A second call does nothing.
        """
        if self._ends.is_set():
            return ""
        self._ends.set()
        end = time.monotonic() + patience_s
        self._thread.join(patience_s)
        if self._thread.is_alive():
            return self._away or f"{self.uri} did not take everything within {patience_s:.0f} s"
        wait = FIRST_WAIT_S
        while (problem := self._copy()) and time.monotonic() < end:
            time.sleep(max(0.0, min(wait, end - time.monotonic())))
            wait = min(2 * wait, LONGEST_WAIT_S)
        return problem

    def _work(self) -> None:
        seen: object = None
        wait = 0.0
        while not self._ends.wait(wait or LOOK_S):
            now = self._sign()
            if now == seen:
                wait = 0.0
                continue
            if self._copy():
                wait = min(2 * wait or FIRST_WAIT_S, LONGEST_WAIT_S)
            else:
                seen, wait = now, 0.0

    def _sign(self) -> object:
        """What is another once there is something to copy."""
        found: list[tuple[str, int]] = []
        for name in self._watched:
            place = self._folder / name
            with suppress(OSError):
                files = sorted(place.iterdir()) if place.is_dir() else [place]
                found += [(one.name, one.stat().st_mtime_ns) for one in files if one.name[0] != "."]
        return found

    def _copy(self) -> str:
        """Copy what has changed; returns the problem, reported once."""
        try:
            if self._remote is None:
                self._remote = open_remote(self._uri)
            files = dict(self._files())
            for name in sorted(files, key=lambda one: (one in LAST, one)):
                self._put(name)
            self._remove_others(files)
        except (SpeedoError, OSError) as error:
            self._remote = None  # a connection that broke is made again
            if not self._away:
                self._note(f"warning: {error}; the copy is tried again, training continues")
            self._away = str(error)
            return self._away
        if self._away:
            self._away = ""
            self._note(f"{self.uri} is back; everything is copied")
        return ""

    def _files(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder).as_posix()
            if (
                path.is_file()
                and not path.is_symlink()
                and path.name[0] != "."
                and name not in self._skip
            ):
                yield name, path

    def _put(self, name: str) -> None:
        """A file that grows meanwhile is copied as far as it was; the next copy has the rest."""
        assert self._remote is not None
        path, target = self._folder / name, self._remote.below(name)
        try:
            stat = path.stat()
            sign = (stat.st_size, stat.st_mtime_ns)
            if self._copied.get(name) == sign:
                return
            content = path.open("rb")
        except FileNotFoundError:
            return  # a checkpoint that newer ones have replaced
        with content:
            send(target, content.read)
        self._copied[name] = sign

    def _remove_others(self, files: dict[str, Path]) -> None:
        """Checkpoints that are gone here go there, once newer ones are there."""
        assert self._remote is not None
        for name in [one for one in self._copied if one not in files]:
            other = self._remote.below(name)
            with store_errors(other.uri, "cannot be removed"), suppress(FileNotFoundError):
                other.files.rm(other.path)
            del self._copied[name]


def send(target: Remote, read: Callable[[int], bytes], chunk_bytes: int = 4 << 20) -> None:
    """Write a file to a store under another name, and give it its own when it is whole, where a store can rename.

    Stores that cannot, such as S3, show a file only once it is whole. Raises `DataError`.
    """
    files = target.files
    renames = "sftp" in files.protocol or "webhdfs" in files.protocol or "file" in files.protocol
    folder, _, last = target.path.rpartition("/")
    part = f"{folder}/.{last}.part" if renames else target.path
    with store_errors(target.uri, "cannot be written"):
        if folder:
            files.makedirs(folder, exist_ok=True)
        with files.open(part, "wb") as out:
            while chunk := read(chunk_bytes):
                out.write(chunk)
        if renames:
            if files.exists(target.path):
                files.rm(target.path)
            files.mv(part, target.path)


def check_writable(uri: str) -> None:
    """Raises `ConfigError` for a URI that cannot be taken, `DataError` for a store that does not let us write."""
    remote = open_remote(uri)
    probe = remote.below(".speedo-probe")
    send(probe, io.BytesIO(b"speedo\n").read)
    with store_errors(uri, "cannot be written"):
        try:
            probe.files.rm(probe.path)
        except FileNotFoundError as error:
            raise DataError(f"{uri} does not keep what is written to it") from error
