"""Measures a net in a child process: its steps, if asked for, and the exchanges of its model.

`python -m speedo.study.planning.measuring_process` reads one line of JSON, builds the engine, says that it is ready,
waits for a line, and answers. It ends when its input ends.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from speedo.engines.base import Engine
from speedo.engines.child import problems_told, tell
from speedo.engines.make import EngineChoice, make_engine, prepare_process
from speedo.engines.solver.lr_policies import LrPolicy
from speedo.exchange.codecs import Compression, is_fraction
from speedo.exchange.vector import HEADER_BYTES, Layout, Vector, as_bytes
from speedo.master.center import Center
from speedo.messages import Kind, Merge, Part, Train
from speedo.sgd_modes.foreign import look_in
from speedo.sgd_modes.registry import rule_named
from speedo.sgd_modes.rules import AddDelta, Elastic, MergeRule
from speedo.storage.base import Store
from speedo.storage.memory_store import MemoryStore
from speedo.storage.redis.store import RedisStore
from speedo.storage.shared_memory.folder import SharedMemory
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.study.planning.masters_time import handling_seconds
from speedo.study.planning.team_costs import costs_of_team
from speedo.worker.turn import EngineWorker

READY: Final = "speedo-ready: "
MARK: Final = "speedo-plan: "
ROOM: Final = 8  # models in shared memory at the same time, at most
FEWEST_STEPS: Final = 5
WARM_UP: Final = 2
EXCHANGES: Final = 25
FEWEST_EXCHANGES: Final = 3
EXCHANGE_S: Final = 3.0  # after which no further exchange is begun


class _Still:
    """The engine without its arithmetic: a turn then costs only what surrounds the steps. A delta is noise."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        noise = np.random.default_rng(0).standard_normal(engine.layout.size, np.float32)
        self._noise = noise * np.float32(1e-3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self, n: int, delta: Vector | None = None) -> float:
        if delta is not None:
            np.copyto(delta, self._noise)
        return 0.0


class _Exchange:
    """Worker and master in this process, with a connection each; `server_cpu()` is the server's processor time."""

    def __init__(
        self,
        engine: Engine,
        compression: Compression,
        store: Callable[[], Store],
        server_cpu: Callable[[], float | None],
        rule: MergeRule,
    ) -> None:
        still: Any = _Still(engine)
        self._server_cpu, self._rule = server_cpu, rule
        self._store, layout = store(), engine.layout
        self._center = Center(
            "plan",
            layout.zeros(),
            layout,
            self._store,
            clock=time.perf_counter,
            compression=compression,
        )
        self._worker = EngineWorker(
            "plan", 0, 1, still, store(), time.perf_counter, compression=compression
        )
        self._elastic = not is_fraction(compression.payload)
        self._vector = layout.zeros()
        self._center.publish()
        self._ticket = 0
        self.seconds: dict[str, list[float]] = {}

    def once(self) -> None:
        """Every part of an exchange, one after another."""
        body = as_bytes(self._vector)

        def write() -> None:
            memory = self._store.place("plan:probe", len(body))
            if memory is not None:
                memory[:] = body
            self._store.write("plan:probe", b"probe", body if memory is None else memory)

        self._note("write", write)
        self._note("read", lambda: self._store.read("plan:probe", body))
        self._note("small", lambda: self._store.delete("plan:probe"))
        self._turn(self._rule, None, "")
        if self._elastic:
            self._turn(Elastic(), 0.5, "elastic ")

    def close(self) -> None:
        self._worker.store.close()
        self._store.close()

    def _turn(self, rule: MergeRule, moving_rate: float | None, prefix: str) -> None:
        self._ticket += 1
        version = self._center.version
        command = Train(0, 1, self._ticket, version, 0, 1, 1, rule.payload, moving_rate)
        self._center.hold(version)
        result = self._worker.turn(command)
        for name in ("fetch", "publish"):
            self.seconds.setdefault(prefix + name, []).append(result.timings[name])
        self._note(prefix + "receive", lambda: self._center.receive(result, rule))
        part = Part(0, 1, self._ticket, 1, 0, 0.0)
        merge = Merge(version + 1, 0, 1, 0.5, (part,))
        told = self._center.merge(merge, 0).timings[0]
        self.seconds.setdefault(prefix + "merge", []).append(told["merge"])
        self.seconds.setdefault("publish center", []).append(told["publish_center"])
        self._center.release(version)
        self._center.tidy()

    def _note(self, name: str, call: Callable[[], object]) -> None:
        server, client, began = self._server_cpu(), time.process_time(), time.perf_counter()
        call()
        seconds, own = time.perf_counter() - began, time.process_time() - client
        self.seconds.setdefault(name, []).append(seconds)
        self.seconds.setdefault(f"{name} client", []).append(own)
        after = self._server_cpu()
        if server is not None and after is not None:
            self.seconds.setdefault(f"{name} server", []).append(after - server)


def exchange(
    engine: Engine,
    compression: Compression,
    store: Callable[[], Store],
    server: int | None,
    rule: MergeRule,
) -> dict[str, float]:
    """Median seconds of each part; for the server's processor time the mean, because its clock may be coarse.

    Deltas are merged by `rule`.
    """
    cpu = partial(processor_seconds, server)
    trial = _Exchange(engine, compression, store, cpu, rule)
    try:
        trial.once()
        trial.seconds.clear()
        end = time.perf_counter() + EXCHANGE_S
        for number in range(EXCHANGES):
            if number >= FEWEST_EXCHANGES and time.perf_counter() > end:
                break
            trial.once()
    finally:
        trial.close()
    return {
        name: (statistics.mean if name.endswith(" server") else statistics.median)(values)
        for name, values in trial.seconds.items()
    }


def processor_seconds(process: int | None) -> float | None:
    """Processor time of this process's main thread; None where the system does not report it."""
    if process is None:
        return None
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _steps(engine: Engine, seconds: float, layout: Layout) -> list[float]:
    """The duration of each step, measured for this many seconds."""
    delta = layout.zeros()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < FEWEST_STEPS or time.perf_counter() < end:
        began = time.perf_counter()
        engine.step(1, delta)
        times.append(time.perf_counter() - began)
    return times


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    folder = None if request["folder"] is None else Path(request["folder"])
    choice = EngineChoice(**request["engine"])
    prepare_process(choice, request["threads"])
    engine = make_engine(
        choice.of_worker(request["number"]),
        request["solver"],
        lr_policy=LrPolicy("fixed", 0.0),  # so small a rate that nothing runs away
        folder=folder,
        python_layers=request["python_layers"],
        threads=request["threads"],
    )
    layout, seconds = engine.layout, request["seconds"]
    if seconds is not None:
        engine.step(WARM_UP, layout.zeros())
    tell(READY, None)
    if not sys.stdin.readline():
        raise SystemExit(1)  # the process that started us is gone
    worked = time.thread_time()
    steps = [] if seconds is None else _steps(engine, seconds, layout)
    core = (time.thread_time() - worked) / sum(steps) if steps else 1.0
    answer: dict[str, Any] = {"steps": steps, "core": core, "nbytes": layout.nbytes}
    compression = Compression(*request["compression"])
    sizes = Center("plan", layout.zeros(), layout, MemoryStore(), compression=compression)
    answer["payload_bytes"] = sizes.payload_bytes - HEADER_BYTES
    answer["center_bytes"] = sizes.center_bytes - HEADER_BYTES
    look_in(request["code_from"])
    made = rule_named(request["rule"])
    rule = made() if made.payload is Kind.DELTA else AddDelta()
    for name, url in request["redis"].items():
        answer[name] = exchange(
            engine, compression, partial(RedisStore, url), request["server"], rule
        )
    with SharedMemory(ROOM * layout.nbytes) as memory:
        path = memory.path
        if request["redis"] and path is not None:
            answer["shared_memory"] = exchange(
                engine, compression, lambda: SharedMemoryStore(path), None, rule
            )
    answer["handle"] = handling_seconds()
    if request["redis"]:
        answer["samples"] = engine.samples_per_step
        answer["over hosts"] = costs_of_team(engine, choice, steps=seconds is not None)
    engine.close()
    return answer


def main() -> None:
    """The child's part."""
    with problems_told():
        tell(MARK, _measure(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
