"""Makes a calibration by a short measurement on this machine: steps, exchanges, several processes at once.

Caffe runs in child processes, so that an abort ends only those. Ray is not started: the time of a message is assumed,
or taken from a run.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.data.roots import default_data_root
from speedo.engines.child import Child, started
from speedo.engines.make import CAFFE, EngineChoice
from speedo.engines.solver import (
    SolverOverrides,
    SolverSpec,
    check_solver,
    read_solver,
    solver_for_worker,
)
from speedo.engines.solver.division import obstacle_to_parts, order_of_records
from speedo.errors import EngineError, SolverError
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.run.chosen_solver import chosen_solver
from speedo.run.config.run_config import make_config
from speedo.run.datasets import make_dataset, preparable_dataset
from speedo.sgd_modes.foreign import folders_of
from speedo.sgd_modes.rules import AddDelta
from speedo.storage.redis.server import PrivateRedis
from speedo.study.planning.calibration import (
    BACKGROUND,
    CHANNEL_S,
    MEETING_S,
    MESSAGE_S,
    SERVER_SHARE,
    Calibration,
    OverHosts,
    Passage,
    StepTime,
    Transport,
    shape_of,
    with_step_time,
)
from speedo.study.planning.made_up_records import with_made_up_records
from speedo.study.planning.measuring_process import MARK, READY
from speedo.study.planning.predict import HYBRID

MEASURER: Final = "speedo.study.planning.measuring_process"
MOST_AT_ONCE: Final = 8  # processes that compute at the same time
START_S: Final = 180.0  # for Caffe to build a net
SLOWEST_STEP_S: Final = 120.0
WHOLE_CORE: Final = 0.9  # less than this of a core is worth a remark

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure steps, at which batch sizes, whether in several processes at once, and what is sent.

    Results are merged by `rule`. Each process has `threads` BLAS threads. If `step_s`, the time of a step, is given, no
    steps are measured.
    """

    seconds: float = 3.0
    batch_sizes: Sequence[int] = ()
    crowd: bool = True
    compression: Compression = NO_COMPRESSION
    threads: int = 1
    step_s: float | None = None
    choice: EngineChoice = CAFFE
    rule: str = AddDelta.name


def measure_solver(
    solver: Path | None,
    modes: Sequence[str],
    workers: Sequence[int],
    split: bool | None,
    seconds: float,
    note: Callable[[str], None],
    *,
    data_root: Path | None = None,
    compression: Compression = NO_COMPRESSION,
    threads: int = 1,
    step_s: float | None = None,
    choice: EngineChoice = CAFFE,
    rule: str = AddDelta.name,
    ignore_unknown: bool = False,
) -> Calibration:
    """Measure this solver; without one, that of the environment, or LeNet, whose data is made if it is missing.

    With `step_s`, the seconds of a step elsewhere, no steps are measured, and the net's records need not be here.
    Raises `SolverError` with all that is wrong, `DataError`, `EngineError`, `StoreError`.
    """
    root = (data_root or default_data_root()).absolute()
    overrides = SolverOverrides(
        cpu=choice.device == "cpu", engine=choice.engine, ignore_unknown=ignore_unknown
    )
    spec = read_solver(chosen_solver(solver), overrides=overrides, data_root=root)
    for line in spec.left_out:
        note(f"left out: {line}")
    dataset = preparable_dataset(spec)
    if dataset is not None:
        make_dataset(root, dataset, note)
    if step_s is not None:
        spec = with_made_up_records(spec)
    check_solver(spec, workers=1, split=False)
    sizes: Sequence[int] = ()
    if any(_splits(mode, split) for mode in modes):
        net = parse_text(spec.text, caffe_schema().SolverParameter()).train_net_param
        if reason := order_of_records(net) or obstacle_to_parts(net):
            raise SolverError(
                f"{spec.net_files[0]}: {reason}: a run does not split its batch; use --whole-batch"
            )
        sizes = batches_between(spec.batch_size, max(workers))
    effort = Effort(
        seconds,
        sizes,
        compression=compression,
        threads=threads,
        step_s=step_s,
        choice=choice,
        rule=rule,
    )
    return measure(spec, effort, note)


def batches_between(batch_size: int, workers: int) -> tuple[int, ...]:
    """Batch sizes at which to measure a step besides the whole batch: one worker's share, and their geometric mean."""
    least = max(1, batch_size // workers)
    middle = round((least * batch_size) ** 0.5)
    return tuple(sorted({least, middle} - {batch_size}))


def _splits(mode: str, split: bool | None) -> bool:
    phases = [{"mode": kind, "iterations": 1} for kind in HYBRID] if mode == "hybrid" else []
    return make_config({"mode": mode, "split_batch": split, "phases": phases}).splits_batch


def measure(spec: SolverSpec, effort: Effort, note: Note) -> Calibration:
    """Measure this solver here. Raises `SolverError`, `EngineError`, `StoreError`."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="speedo-plan-") as folder:
        children = _Children(spec, Path(folder), effort)
        steps_too = "" if effort.step_s else "steps, and "
        note(
            f"measuring {spec.net_name or spec.path.stem}: {steps_too}exchanges through a Redis of its own"
        )
        first = children.with_exchange()
        if effort.step_s:
            return with_step_time(
                _calibration(spec, effort, first, [effort.step_s], []), effort.step_s
            )
        alone = statistics.fmean(first["steps"])
        steps = []
        for size in sorted({*effort.batch_sizes} - {spec.batch_size}):
            note(f"measuring steps on a batch of {size}")
            try:
                seconds = statistics.fmean(children.run([size])[0]["steps"])
            except SolverError as error:
                raise SolverError(
                    f"{error}: a part of the batch cannot be computed; use --whole-batch"
                ) from None
            steps.append(StepTime(samples=size * spec.iter_size, seconds=seconds))
        crowding, at_once, core = 1.0, min(max(1, cores // effort.threads), MOST_AT_ONCE), 1.0
        if effort.crowd and at_once > 1:
            note(f"measuring {at_once} processes at once")
            answers = children.run([spec.batch_size] * at_once)
            together = statistics.fmean(statistics.fmean(one["steps"]) for one in answers)
            crowding = crowding_of(together / alone, effort.threads, at_once)
            core = min(one["core"] for one in answers)
    found = _calibration(spec, effort, first, first["steps"], steps)
    return found.model_copy(
        update={
            "cores": at_once * effort.threads,
            "crowding": crowding,
            "threads": effort.threads,
            "origin": _origin(
                first, at_once if effort.crowd else 1, core, effort.threads, effort.rule
            ),
        }
    )


def crowding_of(slower: float, threads: int, processes: int) -> float:
    """`Calibration.crowding` of this many processes of `threads` each, which together are `slower` than one of them.

    A process alone has been slowed by its own threads already: by 1 + (crowding - 1) (threads - 1) / (cores - 1).
    """
    cores = threads * processes
    part = (threads - 1) / (cores - 1) if cores > 1 else 0.0
    slower = max(1.0, slower)
    if slower * part >= 1.0:  # no crowding explains it
        return slower
    return slower * (1.0 - part) / (1.0 - slower * part)


def _calibration(
    spec: SolverSpec,
    effort: Effort,
    first: dict[str, Any],
    whole: list[float],
    others: list[StepTime],
) -> Calibration:
    """Of one process with one core; `whole` are the times of steps of the whole batch."""
    steps = [*others, StepTime(samples=spec.batch, seconds=statistics.fmean(whole))]
    return Calibration(
        net=spec.net_name or spec.path.stem,
        batch_size=spec.batch_size,
        iter_size=spec.iter_size,
        nbytes=first["nbytes"],
        payload_bytes=first["payload_bytes"],
        center_bytes=first["center_bytes"],
        compression=_name(effort.compression),
        steps=tuple(sorted(steps, key=lambda step: step.samples)),
        shape=shape_of(whole),
        cores=1,
        background=BACKGROUND,
        **_exchange(first),
        handle=first["handle"],
        message=CHANNEL_S,
        far_message=MESSAGE_S,
        meeting=MEETING_S,
        over_hosts=_over_hosts(first, spec.batch),
        origin=_origin(first, 1, 1.0, 1, effort.rule),
    )


def _over_hosts(answer: dict[str, Any], batch: int) -> OverHosts:
    """Of the child's products, with the rows of a batch of so many."""
    told = answer["over hosts"]
    products = [
        {**one, "rows": max(1, one["rows"] * batch // answer["samples"])}
        for one in told["products"]
    ]
    return OverHosts.model_validate({**told, "products": products})


def _name(compression: Compression) -> str:
    if compression.center == "none":
        return compression.payload
    return f"{compression.payload}, centers {compression.center}"


def _exchange(answer: dict[str, Any]) -> dict[str, Any]:
    """The fields of a calibration that come from the child's exchanges.

    The overhead around a transfer is the time of a part beyond the transfer itself. It is the same for every store; it
    is taken from the fastest, shared memory if there is some.
    """
    memory = answer.get("shared_memory")
    best: dict[str, float] = memory or answer["near"]
    store = _transport(best, served=memory is None)
    payload, center = (
        answer[name] / answer["nbytes"] for name in ("payload_bytes", "center_bytes")
    )
    forms = {1.0, min(1.0, center)}
    written = sum(store.of(store.write, form).seconds for form in forms)
    return {
        "far": _transport(answer["far"]),
        "near": _transport(answer["near"]),
        "shared_memory": None if memory is None else store,
        "load": max(0.0, best["fetch"] - store.of(store.read, center).seconds),
        "pull": max(0.0, best.get("elastic fetch", 0.0) - best["fetch"]),
        "seal": max(0.0, best["publish"] - store.of(store.write, payload).seconds),
        "check": max(0.0, best["receive"] - store.of(store.read, payload).seconds),
        "merge": best["merge"],
        "publish": max(0.0, best["publish center"] - written),
    }


def _transport(told: dict[str, float], *, served: bool = True) -> Transport:
    """`served`: a server process does a part of the work."""
    read, write = (_passage(told, name, served) for name in ("read", "write"))
    return Transport(read=read, write=write, small=told["small"])


def _passage(told: dict[str, float], name: str, served: bool) -> Passage:
    seconds = told[name]
    client = min(seconds, told[f"{name} client"]) if served else seconds
    server = told.get(f"{name} server", SERVER_SHARE * seconds) if served else 0.0
    return Passage(seconds=seconds, client=client, server=min(seconds, server))


def _origin(
    answer: dict[str, Any], at_once: int, core: float, threads: int, rule: str
) -> dict[str, str]:
    crowding = f"measured here, {at_once} processes at once" if at_once > 1 else "assumed: none"
    if "read server" in answer["far"]:
        server = "measured here"
    else:
        server = "assumed: half of the passage, as the system does not report the server's time"
    compute = f"measured here, {len(answer['steps'])} steps of the whole batch in one process"
    if threads > 1:
        compute += f" of {threads} threads"
    else:
        compute += _remark(answer["core"])
    return {
        "compute": compute,
        "crowding": crowding + _remark(core),
        "store": "measured here, with a Redis and shared memory of our own",
        "time of Redis itself": server,
        "master": f"measured here: check, merge by rule {rule} and publication of a payload, and "
        f"{1000 * answer['handle']:.2f} ms for everything else; nothing else depends on the rule",
        "messages": (
            f"assumed: {1000 * CHANNEL_S:g} ms each way on one machine, {1000 * MESSAGE_S:g} ms between machines"
        ),
        "teams over machines": "measured here: when each part of a gradient is ready, the sums of inner products from "
        "factors, and a ring of two over this machine's loopback",
        "teams": f"assumed: {1000 * MEETING_S:g} ms of a member for each other one, when they meet",
        "background": f"assumed: {BACKGROUND:.0%} of a core of the master's machine",
    }


def _remark(core: float) -> str:
    """A remark for a process that got only this share of a core."""
    if core >= WHOLE_CORE:
        return ""
    return f"; one had but {core:.0%} of a core: a busy machine, slow data, or a GPU"


class _Children:
    """Starts `speedo.study.planning.measuring_process` for this solver, several at once if need be."""

    def __init__(self, spec: SolverSpec, scratch: Path, effort: Effort) -> None:
        self._spec, self._scratch, self._effort = spec, scratch, effort
        self._count = 0

    def with_exchange(self) -> dict[str, Any]:
        """One child with the whole batch, and exchanges of its model."""
        size = 1 if self._effort.step_s else self._spec.batch_size
        with PrivateRedis(unix_socket=True) as server:
            return self.run([size], server)[0]

    def run(
        self, batch_sizes: Sequence[int], server: PrivateRedis | None = None
    ) -> list[dict[str, Any]]:
        """Start a child for each, all computing at the same time; returns their answers."""
        with ExitStack() as stack:
            children = [stack.enter_context(self._child(size, server)) for size in batch_sizes]
            for child in children:
                _wait_for(child, READY, START_S)
            for child in children:
                child.say("go")
            patience = 20 * self._effort.seconds + 10 * SLOWEST_STEP_S
            return [_wait_for(child, MARK, patience) for child in children]

    def _child(self, batch_size: int, server: PrivateRedis | None) -> AbstractContextManager[Child]:
        self._count += 1
        spec, folder = self._spec, self._scratch / str(self._count)
        text = solver_for_worker(
            spec,
            rank=0,
            count=1,
            batch_size=batch_size,
            seed=1,
            scratch=folder.with_suffix(".data"),
        )
        request = {
            "solver": text,
            "folder": str(spec.folder),
            "python_layers": list(spec.python_layers),
            "seconds": None if self._effort.step_s else self._effort.seconds,
            "threads": self._effort.threads,
            "engine": asdict(self._effort.choice),
            "number": self._count - 1,
            "compression": [self._effort.compression.payload, self._effort.compression.center],
            "rule": self._effort.rule,
            "code_from": folders_of(self._effort.rule),
            "redis": {} if server is None else {"far": server.url, "near": server.unix_url},
            "server": None if server is None else server.process_id,
        }
        return started(MEASURER, request, folder, spec.net_files[0], self._effort.threads)


def _wait_for(child: Child, mark: str, seconds: float) -> Any:
    """What it tells next with this mark. Raises `SolverError`, `EngineError`."""
    too_long = threading.Event()

    def give_up() -> None:
        too_long.set()
        child.process.kill()

    alarm = threading.Timer(seconds, give_up)
    alarm.start()
    try:
        return child.answer(mark)
    except SolverError:
        if not too_long.is_set():
            raise
        raise EngineError(
            f"the engine gave no answer for {seconds:.0f} s; measure a smaller batch"
        ) from None
    finally:
        alarm.cancel()
