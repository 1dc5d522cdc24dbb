"""Saves a run's files elsewhere if its directory cannot be written: a full disk at the end must not lose the model.

Nor must one that hangs: each file has `HUNG_S` seconds in each place.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from speedo.errors import EngineError, SpeedoError
from speedo.system import daemon_thread
from speedo.system.daemon_thread import within
from speedo.system.files import written_whole
from speedo.system.private_folders import make_private_folder

LAST_PLACES: Final = (Path("/var/tmp"), Path("/dev/shm"))


class Rescue:
    """Writes files of one run to its directory, or else to a new folder of mode 0700 on a disk with free space.

    `problems` names the files that are elsewhere, a sentence each.
    """

    def __init__(self, run_dir: Path) -> None:
        self.problems: list[str] = []
        self._run_dir = run_dir
        self._folder: Path | None = None

    def keep(self, name: str, write: Callable[[Path], None]) -> Path:
        """Let `write` write a file of this name atomically; returns its path.

        Raises `EngineError` if it cannot be written anywhere.
        """
        wanted = self._run_dir / name
        try:
            within(daemon_thread.HUNG_S, lambda: write(wanted))
        except (OSError, SpeedoError) as error:
            return self._elsewhere(name, write, _reason(error))
        return wanted

    def keep_rest(self, name: str, lines: bytes, reason: str) -> bool:
        """Write the last lines of a file whose own disk is full; returns whether that worked."""

        def write(path: Path) -> None:
            with written_whole(path) as file:
                file.write(lines)

        count = lines.count(b"\n")
        try:
            self._elsewhere(name, write, reason, f"the last {count} lines of ")
        except EngineError as error:
            self.problems.append(str(error))
            return False
        return True

    def _elsewhere(
        self, name: str, write: Callable[[Path], None], reason: str, part: str = ""
    ) -> Path:
        wanted = self._run_dir / name
        tried = [f"{wanted.parent} ({reason})"]
        for folder in self._folders(tried):
            try:
                within(daemon_thread.HUNG_S, partial(write, folder / name))
            except (OSError, SpeedoError) as error:
                tried.append(f"{folder.parent} ({_reason(error)})")
                if folder != self._folder:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            self._folder = folder
            self.problems.append(
                f"{part}{wanted} could not be written ({reason}): kept in {folder / name} instead; make room in "
                f"{wanted.parent} and {'append them' if part else 'move it'} there"
            )
            return folder / name
        raise EngineError(f"{part}{name} could not be written anywhere: not in {', '.join(tried)}")

    def _folders(self, tried: list[str]) -> Iterator[Path]:
        """The folder that was used before, then a new one in each place."""
        if self._folder is not None:
            yield self._folder
        for place in _places():
            try:
                folder = within(
                    daemon_thread.HUNG_S,
                    partial(make_private_folder, f"speedo-{self._run_dir.name}-", place),
                )
            except (OSError, SpeedoError) as error:
                tried.append(f"{place} ({_reason(error)})")
                continue
            yield folder


def _places() -> tuple[Path, ...]:
    found = [Path(tempfile.gettempdir()), *LAST_PLACES]
    with suppress(RuntimeError):  # no home is known
        found.insert(0, Path.home())
    return tuple(dict.fromkeys(found))


def _reason(error: BaseException) -> str:
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    return str(error)
