"""No reader ever accepts a mix of two vectors, or another's, whatever becomes of the processes that write them.

Every vector is filled with one value, which its head names, too.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.context import ForkProcess as Process
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.errors import MissingKeyError
from speedo.storage.shared_memory.store import SharedMemoryStore
from tests.support.commands import how_loaded

VALUES = 40_000
FORK = multiprocessing.get_context("fork")
WRITERS = 3
INCARNATION = 100_000  # tickets


def write(store: SharedMemoryStore, key: str, value: int) -> None:
    """As a worker does: the vector is made in the store's memory, in parts."""
    memory = store.place(key, 4 * VALUES)
    assert memory is not None
    vector = np.frombuffer(memory, np.float32)
    for part in np.array_split(vector, 7):
        part.fill(value)
    store.write(key, str(value).encode(), memory)


def read(store: SharedMemoryStore, key: str, copy: bool) -> int | None:
    """The value of the vector under this key, or None if it went while it was read."""
    into = np.empty(VALUES, np.float32)
    try:
        if copy:
            head = store.read(key, memoryview(into).cast("B"))
        else:
            view = store.view(key, 4 * VALUES)
            assert view is not None
            head = view.head
            np.copyto(into, np.frombuffer(view.body, np.float32))
            view.check()
    except MissingKeyError:
        return None
    assert (into == float(head)).all(), f"{key} has {np.unique(into)}, its head says {head!r}"
    return int(head)


def works_as_a_worker(folder: Path, worker: int, first: int) -> None:
    """Payloads of ever new tickets, each until the master has deleted it, or for a few milliseconds."""
    store, chance = SharedMemoryStore(folder), random.Random(first)
    for ticket in range(first, first + INCARNATION):
        key = f"payload:{worker}:{ticket}"
        write(store, key, ticket)
        end = time.monotonic() + chance.choice((0.0, 0.002, 0.01))
        while time.monotonic() < end and key in store.keys(key):
            time.sleep(0.0005)
        if chance.random() < 0.7:
            store.delete(key)


def reads_centers(folder: Path, rounds: Any) -> None:
    store, chance = SharedMemoryStore(folder), random.Random(0)
    while True:
        for key in store.keys("center:"):
            found = read(store, key, chance.random() < 0.5)
            assert found in (None, int(key.removeprefix("center:")))
        rounds.value += 1


@dataclass
class Processes:
    """What was started; all of it is killed at the end, whatever it is in."""

    started: list[Process] = field(default_factory=list)

    def start(self, work: Callable[..., None], *arguments: object) -> Process:
        process = FORK.Process(target=work, args=arguments, daemon=True)
        process.start()
        self.started.append(process)
        return process

    def send(self, process: Process, number: signal.Signals) -> None:
        assert process.pid is not None
        os.kill(process.pid, number)

    def failed(self) -> bool:
        """Whether one has ended, but by being killed."""
        return any(one.exitcode not in (None, -signal.SIGKILL) for one in self.started)

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.join()


@pytest.mark.processes
@pytest.mark.parametrize("seed", [1, 2])
def test_no_reader_accepts_what_was_not_written_as_a_whole(tmp_path: Path, seed: int) -> None:
    """Writers are killed and stopped at any instruction, and replaced; stopped ones go on beside their successors."""
    chance, rounds = random.Random(seed), FORK.RawValue("i", 0)
    with closing(Processes()) as run, closing(SharedMemoryStore(tmp_path)) as store:
        readers = [run.start(reads_centers, tmp_path, rounds) for _ in range(2)]
        writers = [run.start(works_as_a_worker, tmp_path, one, 1) for one in range(WRITERS)]
        stopped: list[Process] = []
        incarnations, accepted, version = [0] * WRITERS, 0, 0
        end, latest = time.monotonic() + 3.0, time.monotonic() + 60.0 * how_loaded()
        while time.monotonic() < end or (
            (accepted < 50 or sum(incarnations) < 3) and time.monotonic() < latest
        ):
            version += 1
            write(store, f"center:{version}", version)
            store.delete(f"center:{version - chance.randint(1, 3)}")
            for key in store.keys("payload:"):
                found = read(store, key, chance.random() < 0.5)
                assert found in (None, int(key.split(":")[2])), f"{key} has {found}"
                accepted += found is not None
                if chance.random() < 0.9:
                    store.delete(key)
            if chance.random() < 0.1:
                at = chance.randrange(WRITERS)
                stops = chance.random() < 0.5 and len(stopped) < 3
                run.send(writers[at], signal.SIGSTOP if stops else signal.SIGKILL)
                stopped += [writers[at]] * stops
                incarnations[at] += 1
                first = incarnations[at] * INCARNATION + 1
                writers[at] = run.start(works_as_a_worker, tmp_path, at, first)
            if stopped and chance.random() < 0.1:
                run.send(stopped.pop(0), signal.SIGCONT)
            run.send(readers[1], signal.SIGSTOP if chance.random() < 0.5 else signal.SIGCONT)
            assert not run.failed()
        assert accepted >= 50
        assert sum(incarnations) >= 3
        assert rounds.value > 0
        run.close()
        store.delete(*store.keys(""))
        store.keys("")
    assert list(tmp_path.iterdir()) == []
