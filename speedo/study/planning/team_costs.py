"""What a team over hosts costs a process, measured in this one: gradients that leave early, the ring, sums of factors.

The ring is one of two hosts, which are two threads that exchange through this machine's loopback.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import takewhile
from typing import Any, Final

import numpy as np

from speedo.engines.base import Engine
from speedo.engines.make import EngineChoice, let_others_run
from speedo.exchange.factors import FactorSpace, Product
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import Rendezvous
from speedo.storage.memory_store import MemoryStore

LOOPBACK: Final = "127.0.0.1"
PATIENCE_S: Final = 60.0
FEWEST: Final = 3
MOST: Final = 100
LONG_S: Final = 1.0  # after which no further try is begun
MOST_VALUES: Final = 1 << 24  # of a vector on the ring; a longer one takes as long for each
ROWS: Final = (32, 128)  # of the factors whose sums are timed


def costs_of_team(engine: Engine, choice: EngineChoice, *, steps: bool) -> dict[str, Any]:
    """The values of `calibration.OverHosts`, with the rows of this engine's step; without `steps` none is timed."""
    size = engine.layout.size
    found = _gradients(engine, choice) if steps else _at_the_end(engine)
    products = []
    for one in engine.products():
        few, many = (_sum_seconds(replace(one, start=0, rows=rows)) for rows in ROWS)
        row = max(0.0, many - few) / (ROWS[1] - ROWS[0])
        products.append({**asdict(one), "sum_s": max(0.0, few - ROWS[0] * row), "row_s": row})
    call, whole = ring_seconds(1), ring_seconds(min(size, MOST_VALUES))
    more = max(0.0, whole - call) * max(1.0, size / MOST_VALUES)
    return {**found, "products": products, "ring_call": call, "ring": more}


def _at_the_end(engine: Engine) -> dict[str, Any]:
    return {
        "ready": [
            {"start": place.start, "stop": place.stop, "at": 1.0}
            for _, place in engine.layout.slices()
        ],
        "gradient": 1.0,
        "update": 0.0,
    }


def _gradients(engine: Engine, choice: EngineChoice) -> dict[str, Any]:
    """Steps, and gradients with updates, take turns: the speed of a machine varies."""
    delta, out = engine.layout.zeros(), engine.layout.zeros()
    steps: list[float] = []
    gradients: list[float] = []
    updates: list[float] = []
    ready: dict[tuple[int, int], list[float]] = {}
    for _ in _tries(LONG_S):
        let_others_run(choice, False)
        began = time.perf_counter()
        engine.step(1, delta)
        steps.append(time.perf_counter() - began)
        let_others_run(choice, True)
        began = time.perf_counter()
        marks: list[tuple[tuple[int, int], float]] = []
        engine.gradient(1, out, lambda *part: marks.append((part, time.perf_counter())))  # noqa: B023
        gradients.append(time.perf_counter() - began)
        for part, then in marks:
            ready.setdefault(part, []).append(then - began)
        began = time.perf_counter()
        engine.apply_gradient(out)
        updates.append(time.perf_counter() - began)
    let_others_run(choice, False)
    step = statistics.median(steps)
    return {
        "ready": [
            {"start": start, "stop": stop, "at": statistics.median(times) / step}
            for (start, stop), times in ready.items()
        ],
        "gradient": statistics.median(gradients) / step,
        "update": statistics.median(updates) / step,
    }


def _sum_seconds(product: Product) -> float:
    values = FactorSpace.values_for([product], 1)
    memory = np.random.default_rng(0).standard_normal(values, np.float32)
    space = FactorSpace((product,), 1, memory)
    out = np.zeros(product.stop, np.float32)
    return _least(lambda: space.add_up(0, [1.0], out, slice(None)))


def _least(call: Callable[[], object]) -> float:
    """Seconds of the shortest call, which others have disturbed least."""
    found = []
    for _ in _tries(LONG_S / 4):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def _tries(seconds: float) -> Iterator[int]:
    """Numbers for so long, at least `FEWEST` and at most `MOST`."""
    end = time.perf_counter() + seconds
    return takewhile(lambda done: done < FEWEST or time.perf_counter() < end, range(MOST))


def ring_seconds(size: int) -> float:
    """Processor seconds of each of two hosts for the sum of a vector of so many values."""
    store = MemoryStore()
    at = Rendezvous(store, "plan", f"ring of {size}", LOOPBACK)
    hosts = [HostExchange(at, range(2), own, PATIENCE_S, str) for own in range(2)]
    vectors = [np.zeros(size, np.float32) for _ in hosts]

    def sum_once(own: int) -> None:
        reduction = hosts[own].begin_all_reduce("sum", vectors[own])
        reduction.ready(0, size)
        reduction.finish()

    with ThreadPoolExecutor(len(hosts)) as pool:

        def call() -> float:
            began = time.process_time()
            list(pool.map(sum_once, range(len(hosts))))
            return (time.process_time() - began) / len(hosts)

        try:
            call()  # connects
            found = [call() for _ in _tries(LONG_S)]
        finally:
            for one in hosts:
                one.close("it is measured")
    return statistics.median(found)
