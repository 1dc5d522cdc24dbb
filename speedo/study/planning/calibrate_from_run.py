"""Makes a calibration from a finished run: from its directory, mainly `metrics.jsonl`.

Each merged result says how long its worker fetched, computed and published. The rest of the time between two results
of a worker is messages, work in the master, and waiting for others.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from caffenets.files import read_bytes
from speedo.errors import ConfigError
from speedo.run.config.formats import read_options
from speedo.run_dir.directory import CONFIG, LOG, METRICS, MODEL
from speedo.run_dir.events import (
    WORKER_PARTS,
    ResultDropped,
    ResultMerged,
    RunFinished,
    read_events,
)
from speedo.run_dir.read_back import count_of
from speedo.sgd_modes.registry import has_rounds
from speedo.study.planning.calibration import (
    BACKGROUND,
    HANDLE_S,
    MEETING_S,
    MESSAGE_S,
    SERVER_SHARE,
    Calibration,
    Passage,
    StepTime,
    Transport,
    shape_of,
)
from speedo.system.bounds import whole_number

CHECK_BYTES_PER_S: Final = 5e9  # checksum and norm of a payload, and the merge: near memory's speed
MERGE_BYTES_PER_S: Final = 5e9
LEAST_MESSAGE_S: Final = 2e-5
FEWEST: Final = 5  # turns of each worker
WARM_UP: Final = 0.2  # of the turns of each worker: not counted
MOST_LOG_BYTES: Final = 64 << 20
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_PARTS: Final = {"fetch", "compute", "publish"}
_SIZE: Final = re.compile(r"([\d,]+) parameters in [\d,]+ blobs")


def from_run(folder: Path, *, cores: int) -> Calibration:
    """The calibration from this run; `cores` are those of its machine. Raises `ConfigError`."""
    with _sums_of_a_run(folder):
        return _from_run(folder, cores)


@contextmanager
def _sums_of_a_run(folder: Path) -> Iterator[None]:
    """Checks sums: each number may be valid although they do not belong to one run."""
    try:
        yield
    except (ArithmeticError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        raise ConfigError(
            f"{folder} has times that no run has ({str(error).splitlines()[0]}); give another run"
        ) from None


def _from_run(folder: Path, cores: int) -> Calibration:
    options = options_of(folder)
    mode, steps = _mode(options), steps_of(folder, options)
    if mode == "hybrid":
        raise ConfigError(
            f"{folder} is a run of mode hybrid, whose turns are of several kinds; give one of another mode"
        )
    if was_far(options):
        raise ConfigError(
            f"{folder} is a run over a network, whose time is part of its turns; give one of `speedo train`"
        )
    if any(options.get(name, "none") != "none" for name in ("compress", "compress_center")):
        raise ConfigError(
            f"{folder} is a run with compression, whose time is part of its turns; give one without"
        )
    workers = turns_of(folder)
    turns = [turn for worker in workers for turn in worker.turns]
    nbytes = model_bytes(folder)
    usual = int(statistics.median(turn.round_samples for turn in turns))
    seconds = [
        turn.compute / (steps * turn.rounds) for turn in turns if turn.round_samples == usual
    ]
    leading = [turn for worker in leaders_of(workers) for turn in worker.turns]
    fetch, publish = (
        statistics.median(getattr(turn, name) for turn in leading) for name in ("fetch", "publish")
    )
    here = _transport(fetch, publish)
    check, merge = nbytes / CHECK_BYTES_PER_S, nbytes / MERGE_BYTES_PER_S
    masters = HANDLE_S + check + merge + fetch + publish
    message = _message(_rest(workers, waits=_waits(mode, workers)), masters)
    meeting = _meeting(workers, 0.0, merge)
    split = options.get("split_batch")
    divided = has_rounds(mode) if split is None else split
    per_step = usual // steps
    return Calibration(
        net=os.path.basename(os.path.realpath(folder)),
        batch_size=per_step * (len(workers) if divided else 1),
        nbytes=nbytes,
        payload_bytes=nbytes,
        center_bytes=nbytes,
        steps=(StepTime(samples=per_step, seconds=statistics.fmean(seconds)),),
        shape=shape_of(seconds) if steps == 1 else _wider(seconds, steps),
        cores=cores,
        background=BACKGROUND,
        threads=whole_number(str(options.get("threads", 1))) or 1,
        far=here,
        near=here,
        check=check,
        merge=merge,
        message=message,
        far_message=max(message, MESSAGE_S),
        meeting=MEETING_S if meeting is None else meeting,
        handle=HANDLE_S,
        **dict.fromkeys(("load", "pull", "seal", "publish"), 0.0),
        origin=_origin(folder, len(turns), len(workers), cores) | _of_teams(folder, meeting),
    )


def check_run(folder: Path) -> None:
    """Raises `ConfigError` if `with_run` cannot use this run."""
    options_of(folder), turns_of(folder), model_bytes(folder)


def with_run(folder: Path, measured: Calibration) -> Calibration:
    """`measured`, with what only a run can show: messages, and the time of a turn beyond its measured parts.

    A run of `speedo train` gives the messages within a machine, one over a network those between machines. A run with
    one worker also gives how much longer a turn takes there than the sum of its parts: the model has left the caches,
    more so if it comes over a network. Raises `ConfigError`.
    """
    with _sums_of_a_run(folder):
        return _with_run(folder, measured)


def _with_run(folder: Path, measured: Calibration) -> Calibration:
    options, nbytes = options_of(folder), model_bytes(folder)
    if not 0.9 < nbytes / measured.nbytes < 1.1:
        raise ConfigError(
            f"{folder} is a run of another net: {nbytes / 1e6:.1f} MB of parameters, the solver's "
            f"{measured.nbytes / 1e6:.1f} MB; give a run of this solver"
        )
    workers, far = turns_of(folder), was_far(options)
    own = options.get("same_node", "shared-memory") == "shared-memory"
    shared = measured.shared_memory if own else None
    store = measured.near if far or shared is None else shared
    payload = measured.payload_bytes / measured.nbytes
    masters = store.of(store.read, payload).seconds
    masters += measured.check + measured.merge + measured.publish + measured.handle
    masters += store.write.seconds
    masters += shared.write.seconds if far and shared is not None else 0.0
    message = _message(_rest(workers, waits=_waits(_mode(options), workers)), masters)
    place = "between machines" if far else "on one machine"
    told = f"from the turns of {folder}: {1000 * message:.2f} ms each way {place}"
    former = measured.origin.get("messages", "")
    update: dict[str, Any] = {
        "far_message" if far else "message": message,
        "origin": {**measured.origin, "messages": f"{told}; otherwise {former}"},
    }
    meeting = None if far else _meeting(workers, measured.load, measured.merge)
    if meeting is not None:
        update["meeting"] = meeting
        update["origin"].update(_of_teams(folder, meeting))
    if len(workers) == 1:
        turns = workers[0].turns
        fetch, compute, publish = (
            statistics.median(getattr(turn, name) for turn in turns)
            for name in ("fetch", "compute", "publish")
        )
        steps = steps_of(folder, options)
        alone = steps * measured.step_seconds(turns[0].samples // steps)
        beyond = max(0.0, compute - alone)
        if far:  # what its fetch and publish take is the cable's
            update["far_load"] = measured.load + beyond
        else:
            read = store.of(store.read, measured.center_bytes / measured.nbytes).seconds
            update["load"] = max(0.0, fetch - read) + beyond
            update["seal"] = max(0.0, publish - store.of(store.write, payload).seconds)
        name = "turns between machines" if far else "turns"
        update["origin"][name] = f"from {folder}: what one takes beyond its parts measured alone"
    return measured.model_copy(update=update)


def _mode(options: Mapping[str, Any]) -> str:
    return str(options.get("mode", "sync"))


def _waits(mode: str, workers: list[WorkerTurns]) -> bool:
    return has_rounds(mode) and len(workers) > 1


def _message(rest: float, masters: float) -> float:
    """The time of one of the two messages of a turn."""
    return max(LEAST_MESSAGE_S, 0.5 * (rest - masters))


# ---------------------------------------------------------------- arithmetic


def _rest(workers: list[WorkerTurns], *, waits: bool) -> float:
    """The time of messages and master in a turn, without waiting for other workers as far as that can be separated.

    In a round of sync the slowest worker waits for nobody. In the other modes another worker may be before it at the
    master in some turns: the quarter of turns with the smallest rest is assumed to be free of that.
    """
    if waits:
        rounds = zip(*(worker.turns for worker in workers), strict=False)
        least: list[float] = [min(turn.rest for turn in one) for one in rounds]
        return statistics.median(least)
    rests = sorted(turn.rest for worker in workers for turn in worker.turns)
    return rests[len(rests) // (2 if len(workers) == 1 else 4)]


def _meeting(workers: list[WorkerTurns], load: float, merge: float) -> float | None:
    """What is left for each of two meetings of a round, and each other member; None if there was no team.

    The sum costs each member what merging a payload costs the master.
    """
    if not in_teams(workers):
        return None
    members = sum(worker.turns[0].team is not None for worker in workers)
    left = team_seconds(workers) - load - merge
    return max(0.0, left / (2 * max(1, members - 1)))


def _of_teams(folder: Path, meeting: float | None) -> dict[str, str]:
    source = "assumed" if meeting is None else f"from the turns of {folder}"
    seconds = MEETING_S if meeting is None else meeting
    return {
        "teams": f"{source}: {1000 * seconds:.2f} ms of a member for each other one, when they meet"
    }


def _transport(fetch: float, publish: float) -> Transport:
    read, write = (
        Passage(seconds=one, client=(1.0 - SERVER_SHARE) * one, server=SERVER_SHARE * one)
        for one in (fetch, publish)
    )
    return Transport(read=read, write=write, small=0.0)


def _wider(means: list[float], steps: int) -> tuple[float, ...]:
    """The spread of single steps, from that of means over a turn of several steps."""
    return tuple(max(0.0, 1.0 + (one - 1.0) * steps**0.5) for one in shape_of(means))


def _origin(folder: Path, turns: int, workers: int, cores: int) -> dict[str, str]:
    many = "a worker" if workers == 1 else f"{workers} workers"
    return {
        "compute": f"{turns} turns of {many} in {folder}; assumed to grow with the batch in proportion",
        "crowding": f"assumed: none beyond what {many} on {cores} cores had",
        "store": "fetch and publish of these turns, on links at their speed plus the link's",
        "time of Redis itself": "assumed: half of a passage",
        "master": "assumed: a payload costs it what fetch and publish cost a worker, check and merge at 5 GB/s",
        "messages": (
            f"what these turns have left beside all this; assumed: {1000 * HANDLE_S:g} ms of the master for each "
            f"result; assumed: {1000 * MESSAGE_S:g} ms or more each way between machines"
        ),
        "teams over machines": "assumed: all of a gradient goes around a ring once it is whole, which takes the "
        "processor as long as Redis's client",
        "background": f"assumed: {BACKGROUND:.0%} of a core of the master's machine",
    }


# ---------------------------------------------------------------- the turns of a run


@dataclass(frozen=True, slots=True)
class MergedTurn:
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
class WorkerTurns:
    """The turns of one worker, and when its last result was merged."""

    last: float | None = None
    turns: list[MergedTurn] = field(default_factory=list)


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


def turns_of(folder: Path) -> list[WorkerTurns]:
    """The turns of each worker after the warm-up. Raises `ConfigError` if they are too few, `DataError`."""
    workers: dict[int, WorkerTurns] = {}
    for event in read_events(folder):
        if isinstance(event, RunFinished):
            break
        if isinstance(event, ResultMerged | ResultDropped):
            _take(workers.setdefault(event.worker, WorkerTurns()), event)
    found = [worker for worker in workers.values() if len(worker.turns) >= FEWEST]
    if not found:
        raise ConfigError(
            f"{folder} is too short a run: no worker has {FEWEST} turns after its first; give a longer one"
        )
    for worker in found:
        del worker.turns[: int(WARM_UP * len(worker.turns))]
    return found


def _take(worker: WorkerTurns, event: ResultMerged | ResultDropped) -> None:
    """Add one result."""
    before, worker.last = worker.last, event.seconds
    if before is None or isinstance(event, ResultDropped):
        return
    timings = event.timings
    if timings.keys() >= _PARTS and event.samples:
        own = {name: timings[name] for name in WORKER_PARTS if name in timings}
        rest = max(0.0, event.seconds - before - sum(own.values()))
        worker.turns.append(
            MergedTurn(event.samples, **own, rest=rest, rounds=len(event.losses) or 1)
        )


def leaders_of(workers: list[WorkerTurns]) -> list[WorkerTurns]:
    """Those whose fetches and publications are of the model: in teams the one that publishes, who takes longest for it.

    On one host there is one team; of several hosts the slowest tells enough.
    """
    if not in_teams(workers):
        return workers
    return [max(workers, key=lambda one: sum(turn.publish for turn in one.turns) / len(one.turns))]


def in_teams(workers: list[WorkerTurns]) -> bool:
    """Whether these workers trained together."""
    return len(workers) > 1 and any(turn.team is not None for one in workers for turn in one.turns)


def team_seconds(workers: list[WorkerTurns]) -> float:
    """What the meetings and the sums of a round take: of each turn the least, by whom the others waited for."""
    turns = zip(*(one.turns for one in workers if one.turns[0].team is not None), strict=False)
    least: list[float] = [min((turn.team or 0.0) / turn.rounds for turn in one) for one in turns]
    return statistics.median(least)


def model_bytes(folder: Path) -> int:
    """From the number of parameters that the run has noted, else from the size of its model."""
    log, model = folder / LOG, folder / MODEL
    with suppress(OSError):
        found = _SIZE.search(read_bytes(log, MOST_LOG_BYTES).decode("utf-8", "replace"))
        size = whole_number(found[1].replace(",", "")) if found is not None else None
        if size:
            return 4 * size
    if os.path.isfile(model) and (size := os.path.getsize(model)):
        return size
    raise ConfigError(
        f"{folder} does not say the size of its model: neither {LOG} nor {MODEL} is there"
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
