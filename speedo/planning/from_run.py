"""A calibration from what a run left: its directory, above all `metrics.jsonl`.

Each merged result tells how long its worker fetched, computed and published; what is left of the time from one result
of a worker to the next was spent on messages, in the master, and on waiting for others.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from speedo.config_file import read_options
from speedo.errors import ConfigError
from speedo.planning.calibration import (
    BACKGROUND,
    HANDLE_S,
    MESSAGE_S,
    SERVER_SHARE,
    Calibration,
    Passage,
    StepTime,
    Transport,
    shape_of,
)
from speedo.runlog import CONFIG, METRICS

FEWEST: Final = 5  # turns of each worker
WARM_UP: Final = 0.2  # of the turns of each worker: not counted
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
CHECK_BYTES_PER_S: Final = 5e9  # checksum and norm of a payload, and the merge: near memory's speed
MERGE_BYTES_PER_S: Final = 5e9
LEAST_MESSAGE_S: Final = 2e-5
_PARTS: Final = {"fetch", "compute", "publish"}
_SIZE: Final = re.compile(r"([\d,]+) parameters in [\d,]+ blobs")


@dataclass(frozen=True, slots=True)
class _Turn:
    """One merged turn, in seconds; `rest` is what the worker did not see of it."""

    samples: int
    fetch: float
    compute: float
    publish: float
    rest: float


@dataclass(slots=True)
class _Worker:
    last: float | None = None
    turns: list[_Turn] = field(default_factory=list)


def from_run(folder: Path, *, cores: int) -> Calibration:
    """What this run tells; `cores` are those of the machine that it ran on. Raises `ConfigError`."""
    options = _options(folder)
    mode, steps = _mode(options), int(options.get("local_steps", 1))
    if mode == "hybrid":
        raise ConfigError(
            f"{folder} is a run of mode hybrid, whose turns are of several kinds; give one of another mode"
        )
    if _was_far(options):
        raise ConfigError(
            f"{folder} is a run over a network, whose time lies in its turns; give one of `speedo train`"
        )
    if any(options.get(name, "none") != "none" for name in ("compress", "compress_center")):
        raise ConfigError(
            f"{folder} is a run with compression, whose time lies in its turns; give one without"
        )
    workers = _turns(folder)
    turns = [turn for worker in workers for turn in worker.turns]
    nbytes = _model_bytes(folder)
    usual = int(statistics.median(turn.samples for turn in turns))
    seconds = [turn.compute / steps for turn in turns if turn.samples == usual]
    fetch, publish = (
        statistics.median(getattr(turn, name) for turn in turns) for name in ("fetch", "publish")
    )
    here = _transport(fetch, publish)
    check, merge = nbytes / CHECK_BYTES_PER_S, nbytes / MERGE_BYTES_PER_S
    masters = HANDLE_S + check + merge + fetch + publish
    message = _message(_rest(workers, waits=_waits(mode, workers)), masters)
    split = options.get("split_batch")
    divided = mode == "sync" if split is None else split
    per_step = usual // steps
    return Calibration(
        net=folder.resolve().name,
        batch_size=per_step * (len(workers) if divided else 1),
        nbytes=nbytes,
        payload_bytes=nbytes,
        center_bytes=nbytes,
        steps=(StepTime(samples=per_step, seconds=statistics.fmean(seconds)),),
        shape=shape_of(seconds) if steps == 1 else _wider(seconds, steps),
        cores=cores,
        background=BACKGROUND,
        far=here,
        near=here,
        check=check,
        merge=merge,
        message=message,
        far_message=max(message, MESSAGE_S),
        handle=HANDLE_S,
        **dict.fromkeys(("load", "pull", "seal", "publish"), 0.0),
        origin=_origin(folder, len(turns), len(workers), cores),
    )


def check_run(folder: Path) -> None:
    """Raises `ConfigError` if `with_run` can do nothing with this run."""
    _options(folder), _turns(folder), _model_bytes(folder)


def with_run(folder: Path, measured: Calibration) -> Calibration:
    """`measured`, with what can only be seen in a run: messages, and what a turn costs beyond its measured parts.

    A run of `speedo train` tells the messages within a machine, one over a network those between machines. One worker,
    whom nobody disturbs, also tells how much longer a turn takes there than its parts alone: the caches have forgotten
    the model, the more so behind a cable. Raises `ConfigError`.
    """
    options, nbytes = _options(folder), _model_bytes(folder)
    if not 0.9 < nbytes / measured.nbytes < 1.1:
        raise ConfigError(
            f"{folder} is a run of another net: {nbytes / 1e6:.1f} MB of parameters, the solver's "
            f"{measured.nbytes / 1e6:.1f} MB; give a run of this solver"
        )
    workers, far = _turns(folder), _was_far(options)
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
    told = f"from the turns of {folder}: {1000 * message:.2f} ms each way {place}; {_handle()}"
    former = measured.origin.get("messages", "")
    update: dict[str, Any] = {
        "far_message" if far else "message": message,
        "origin": {**measured.origin, "messages": f"{told}; otherwise {former}"},
    }
    if len(workers) == 1:
        turns = workers[0].turns
        fetch, compute, publish = (
            statistics.median(getattr(turn, name) for turn in turns)
            for name in ("fetch", "compute", "publish")
        )
        steps = int(options.get("local_steps", 1))
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


def _was_far(options: Mapping[str, Any]) -> bool:
    return str(options.get("host", LOOPBACK[0])) not in LOOPBACK


def _waits(mode: str, workers: list[_Worker]) -> bool:
    return mode == "sync" and len(workers) > 1


def _message(rest: float, masters: float) -> float:
    """What is left for each of two messages."""
    return max(LEAST_MESSAGE_S, 0.5 * (rest - masters))


# ---------------------------------------------------------------- the files


def _options(folder: Path) -> Mapping[str, Any]:
    if not (folder / METRICS).is_file() or not (folder / CONFIG).is_file():
        raise ConfigError(
            f"{folder} is no run directory: it has no {METRICS} and {CONFIG}; give one that a run left"
        )
    options = read_options(folder / CONFIG)
    overlap = options.get("overlap", "none")
    if overlap == "all" or (overlap == "far" and _was_far(options)):
        raise ConfigError(
            f"{folder} is a run whose turns overlapped, so their parts do not add up; give one of --overlap none"
        )
    return options


def _turns(folder: Path) -> list[_Worker]:
    """The turns of each worker after the warm-up; raises `ConfigError` if they are too few."""
    workers: dict[int, _Worker] = {}
    for line in _lines(folder / METRICS):
        if line.get("event") == "finish":
            break
        if line.get("event") != "result":
            continue
        worker = workers.setdefault(line["worker"], _Worker())
        before, worker.last = worker.last, line["time"]
        timings = line.get("timings") or {}
        if before is not None and line["decision"] == "merged" and timings.keys() >= _PARTS:
            fetch, compute, publish = (
                float(timings[name]) for name in ("fetch", "compute", "publish")
            )
            rest = max(0.0, line["time"] - before - fetch - compute - publish)
            worker.turns.append(_Turn(line["samples"], fetch, compute, publish, rest))
    found = [worker for worker in workers.values() if len(worker.turns) >= FEWEST]
    if not found:
        raise ConfigError(
            f"{folder} is too short a run: no worker has {FEWEST} turns after its first; give a longer one"
        )
    for worker in found:
        del worker.turns[: int(WARM_UP * len(worker.turns))]
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # torn, as the last line of a killed run may be
            if isinstance(line, dict):
                yield line


def _model_bytes(folder: Path) -> int:
    """By the number of parameters that the run has noted, else by the size of its model."""
    log, model = folder / "train.log", folder / "model.caffemodel"
    if log.is_file():
        found = _SIZE.search(log.read_text(encoding="utf-8", errors="replace"))
        if found is not None:
            return 4 * int(found[1].replace(",", ""))
    if model.is_file():
        return model.stat().st_size
    raise ConfigError(
        f"{folder} does not tell the size of its model: neither train.log nor model.caffemodel is there"
    )


# ---------------------------------------------------------------- arithmetic


def _rest(workers: list[_Worker], *, waits: bool) -> float:
    """What messages and master took of a turn, without waiting for others as far as that can be told.

    In a round of sync the slowest waits for nobody. In the other modes somebody else may be before it at the master,
    in some turns: the quarter with the least rest is taken as free of that.
    """
    if waits:
        rounds = zip(*(worker.turns for worker in workers), strict=False)
        least: list[float] = [min(turn.rest for turn in one) for one in rounds]
        return statistics.median(least)
    rests = sorted(turn.rest for worker in workers for turn in worker.turns)
    return rests[len(rests) // (2 if len(workers) == 1 else 4)]


def _transport(fetch: float, publish: float) -> Transport:
    read, write = (
        Passage(seconds=one, client=(1.0 - SERVER_SHARE) * one, server=SERVER_SHARE * one)
        for one in (fetch, publish)
    )
    return Transport(read=read, write=write, small=0.0)


def _wider(means: list[float], steps: int) -> tuple[float, ...]:
    """The spread of single steps, of which these are means over a turn of so many."""
    return tuple(max(0.0, 1.0 + (one - 1.0) * steps**0.5) for one in shape_of(means))


def _handle() -> str:
    return f"assumed: {1000 * HANDLE_S:g} ms of the master for each result"


def _origin(folder: Path, turns: int, workers: int, cores: int) -> dict[str, str]:
    many = "a worker" if workers == 1 else f"{workers} workers"
    return {
        "compute": f"{turns} turns of {many} in {folder}; assumed to grow with the batch in proportion",
        "crowding": f"assumed: none beyond what {many} on {cores} cores had",
        "store": "fetch and publish of these turns, on links at their speed plus the link's",
        "time of Redis itself": "assumed: half of a passage",
        "master": "assumed: a payload costs it what fetch and publish cost a worker, check and merge at 5 GB/s",
        "messages": (
            f"what these turns have left beside all this; {_handle()}; assumed: {1000 * MESSAGE_S:g} ms or more each "
            "way between machines"
        ),
        "background": f"assumed: {BACKGROUND:.0%} of a core of the master's machine",
    }
