"""Writes the outputs of a run at its end: the model, the configuration, the rest of the log, the result.

Each goes to the run directory, or elsewhere if this has no room, cannot be written or hangs: a bad disk at the end must
not lose the model.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from caffenets.files import written_whole
from speedo.errors import EngineError, SpeedoError
from speedo.run.result import RunResult, result_fields
from speedo.run_dir.directory import (
    CONFIG,
    METRICS,
    RESULT,
    link_or_copy,
    write_config,
    write_result,
)
from speedo.run_dir.metrics_log import MetricsLog
from speedo.system import daemon_thread
from speedo.system.daemon_thread import Result, within
from speedo.system.failpoints import reached
from speedo.system.private_folders import make_private_folder

LAST_PLACES: Final = (Path("/var/tmp"), Path("/dev/shm"))


def hand_over(
    result: RunResult,
    run_dir: Path,
    log: MetricsLog,
    config: Mapping[str, Any],
    name: str,
    export: Callable[[Path], None],
    snapshot: str = "",
) -> RunResult:
    """Write the outputs and close the log; returns the result with the outputs' paths and problems.

    `export` writes the model, a file of this `name`; `snapshot` is a second name for it, beside it; empty for none.

    Raises `EngineError` if the model cannot be written anywhere.
    """
    outputs = Outputs(run_dir)
    model = outputs.keep(name, export)
    reached("master-exported")
    if snapshot:
        with suppress(OSError):  # the model itself is there
            _within(lambda: link_or_copy(model, model.with_name(snapshot)))
    if not _is_there(run_dir / CONFIG):  # there was no room for it when the run began
        outputs.keep(CONFIG, lambda path: write_config(path.parent, config))
    try:
        rest = _within(log.close)
    except OSError as error:
        rest = b""
        outputs.problems.append(
            f"the last lines of {run_dir / METRICS} could not be written ({error.strerror})"
        )
    lost = log.lines_lost
    if rest:
        lost += outputs.keep_rest(METRICS, rest, log.problem)
    if lost:
        outputs.problems.append(
            f"{lost} lines of {run_dir / METRICS} are lost: no disk could store them"
        )
    earlier, problems = result.problems, (*result.problems, *outputs.problems)
    result = replace(result, model=str(model), log_lines_lost=lost, problems=problems)
    fields = result_fields(result)
    outputs.keep(RESULT, lambda path: write_result(path.parent, fields))
    reached("master-ended")
    return replace(result, problems=(*earlier, *outputs.problems))


class Outputs:
    """Files of one run; what `run_dir` does not take goes to one new folder of mode 0700 on a disk with free space.

    `problems` names the files that are elsewhere, a sentence each. A disk that hangs has `HUNG_S` seconds for a file.
    """

    def __init__(self, run_dir: Path) -> None:
        self.problems: list[str] = []
        self._run_dir = run_dir
        self._folder: Path | None = None  # the other one

    def keep(
        self, name: str, write: Callable[[Path], None], refused: str = "", part: str = ""
    ) -> Path:
        """Let `write` write a file of this name atomically; returns its path.

        `refused` says why the run directory has not taken it, or this `part` of it, already. Raises `EngineError` if it
        cannot be written anywhere.
        """
        wanted = self._run_dir / name
        if not refused:
            try:
                _within(lambda: write(wanted))
            except (OSError, SpeedoError) as error:
                refused = _reason(error)
            else:
                return wanted
        tried = [f"{wanted.parent} ({refused})"]
        for place in _places() if self._folder is None else (self._folder, *_places()):
            try:
                path = _within(partial(self._write_in, place, name, write))
            except (OSError, SpeedoError) as error:
                tried.append(f"{place} ({_reason(error)})")
                continue
            self._folder = path.parent
            self.problems.append(
                f"{part}{wanted} could not be written ({refused}): kept in {path} instead; make room in "
                f"{wanted.parent} and {'append them' if part else 'move it'} there"
            )
            return path
        raise EngineError(f"{part}{name} could not be written anywhere: not in {', '.join(tried)}")

    def keep_rest(self, name: str, lines: bytes, refused: str) -> int:
        """Write the last lines of a file whose own disk is full; returns how many are lost."""

        def write(path: Path) -> None:
            with written_whole(path) as file:
                file.write(lines)

        count = lines.count(b"\n")
        try:
            self.keep(name, write, refused, f"the last {count} lines of ")
        except EngineError as error:
            self.problems.append(str(error))
            return count
        return 0

    def _write_in(self, place: Path, name: str, write: Callable[[Path], None]) -> Path:
        """In the folder that was used before, or in a new one in this place."""
        if place == self._folder:
            write(place / name)
            return place / name
        folder = make_private_folder(f"speedo-{self._run_dir.name}-", place)
        try:
            write(folder / name)
        except (OSError, SpeedoError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder / name


def _places() -> tuple[Path, ...]:
    found = [Path(tempfile.gettempdir()), *LAST_PLACES]
    with suppress(RuntimeError):  # no home is known
        found.insert(0, Path.home())
    return tuple(dict.fromkeys(found))


def _within(call: Callable[[], Result]) -> Result:
    """Its answer; `OSError` if a disk hangs."""
    return within(daemon_thread.HUNG_S, call)


def _is_there(path: Path) -> bool:
    """Whether there is such a file; False if its disk does not say."""
    try:
        return _within(path.exists)
    except OSError:
        return False


def _reason(error: BaseException) -> str:
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    return str(error)
