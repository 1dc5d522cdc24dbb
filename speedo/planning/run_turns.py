"""Reads the turns of a finished run, and the options that are needed to interpret them."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from speedo.bounds import whole_number
from speedo.config.formats import read_options
from speedo.errors import ConfigError
from speedo.run_dir.directory import CONFIG, METRICS
from speedo.run_dir.events import (
    WORKER_PARTS,
    ResultDropped,
    ResultMerged,
    RunFinished,
    read_events,
)
from speedo.run_dir.read_back import count_of
from speedo.system.files import read_bytes

FEWEST: Final = 5  # turns of each worker
WARM_UP: Final = 0.2  # of the turns of each worker: not counted
MOST_LOG_BYTES: Final = 64 << 20
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_PARTS: Final = {"fetch", "compute", "publish"}
_SIZE: Final = re.compile(r"([\d,]+) parameters in [\d,]+ blobs")


@dataclass(frozen=True, slots=True)
class Turn:
    """One merged turn, in seconds; `rest` is the part that the worker did not measure.

    A turn of a team has `rounds`; `team` is the time for waiting for the other members and for summing.
    """

    samples: int
    fetch: float
    compute: float
    publish: float
    rest: float
    rounds: int = 1
    team: float | None = None

    @property
    def round_samples(self) -> int:
        """Samples of a round."""
        return self.samples // self.rounds


@dataclass(slots=True)
class Worker:
    """The turns of one worker, and when its last result was merged."""

    last: float | None = None
    turns: list[Turn] = field(default_factory=list)


def options_of(folder: Path) -> dict[str, Any]:
    """The options of the run; raises `ConfigError` if there are none here, or if its turns overlapped."""
    if not os.path.isfile(folder / METRICS) or not os.path.isfile(folder / CONFIG):
        raise ConfigError(
            f"{folder} is not a run directory: it has no {METRICS} and {CONFIG}; give one that a run left"
        )
    options = read_options(folder / CONFIG)
    overlap = options.get("overlap", "none")
    if overlap == "all" or (overlap == "far" and was_far(options)):
        raise ConfigError(
            f"{folder} is a run whose turns overlapped, so their parts do not add up; give one of --overlap none"
        )
    return options


def turns_of(folder: Path) -> list[Worker]:
    """The turns of each worker after the warm-up. Raises `ConfigError` if they are too few, `DataError`."""
    workers: dict[int, Worker] = {}
    for event in read_events(folder):
        if isinstance(event, RunFinished):
            break
        if isinstance(event, ResultMerged | ResultDropped):
            _take(workers.setdefault(event.worker, Worker()), event)
    found = [worker for worker in workers.values() if len(worker.turns) >= FEWEST]
    if not found:
        raise ConfigError(
            f"{folder} is too short a run: no worker has {FEWEST} turns after its first; give a longer one"
        )
    for worker in found:
        del worker.turns[: int(WARM_UP * len(worker.turns))]
    return found


def _take(worker: Worker, event: ResultMerged | ResultDropped) -> None:
    """Add one result."""
    before, worker.last = worker.last, event.seconds
    if before is None or isinstance(event, ResultDropped):
        return
    timings = event.timings
    if timings.keys() >= _PARTS and event.samples:
        own = {name: timings[name] for name in WORKER_PARTS if name in timings}
        rest = max(0.0, event.seconds - before - sum(own.values()))
        worker.turns.append(Turn(event.samples, **own, rest=rest, rounds=len(event.losses) or 1))


def leaders_of(workers: list[Worker]) -> list[Worker]:
    """Those whose fetches and publications are of the model: in teams the one that publishes, who takes longest for it.

    On one host there is one team; of several hosts the slowest tells enough.
    """
    if not in_teams(workers):
        return workers
    return [max(workers, key=lambda one: sum(turn.publish for turn in one.turns) / len(one.turns))]


def in_teams(workers: list[Worker]) -> bool:
    """Whether these workers trained together."""
    return len(workers) > 1 and any(turn.team is not None for one in workers for turn in one.turns)


def team_seconds(workers: list[Worker]) -> float:
    """What the meetings and the sums of a round take: of each turn the least, by whom the others waited for."""
    turns = zip(*(one.turns for one in workers if one.turns[0].team is not None), strict=False)
    least: list[float] = [min((turn.team or 0.0) / turn.rounds for turn in one) for one in turns]
    return statistics.median(least)


def model_bytes(folder: Path) -> int:
    """From the number of parameters that the run has noted, else from the size of its model."""
    log, model = folder / "train.log", folder / "model.caffemodel"
    with suppress(OSError):
        found = _SIZE.search(read_bytes(log, MOST_LOG_BYTES).decode("utf-8", "replace"))
        size = whole_number(found[1].replace(",", "")) if found is not None else None
        if size:
            return 4 * size
    if os.path.isfile(model) and (size := os.path.getsize(model)):
        return size
    raise ConfigError(
        f"{folder} does not tell the size of its model: neither train.log nor model.caffemodel is there"
    )


def was_far(options: Mapping[str, Any]) -> bool:
    """Whether its workers were on other machines."""
    return str(options.get("host", LOOPBACK[0])) not in LOOPBACK


def steps_of(folder: Path, options: Mapping[str, Any]) -> int:
    """Solver steps of a turn; raises `ConfigError`."""
    try:
        return max(count_of({"local_steps": 1, **options}, "local_steps"), 1)
    except ValueError as error:
        raise ConfigError(f"{folder / CONFIG}: {error}; give another run") from None
