"""What free-running Caffe loses to the least that any exchange has: how high an exchange efficiency can be here.

    python -m bench.floor [--nets lenet] [--local-steps 1 10] [--workers 2] [--rounds 40] [--seconds 1]

Processes train, two by default, and take turns with themselves: a window in which they run freely, one in which they
meet after each turn, and so on, in every round once. Nothing of SpeeDO is between them but its engine and a third
process that is no more than a loop, without Ray, Redis, tickets or a log; it works on the core of who waits for it, as
our master does, where none is to spare. Rows:

- free-running, again: the second window of the same kind tells how far the machine itself is from steady
- round trip: a word of ten bytes to the third process and back; nothing else. What is left is the most for `async`
- barrier: the same, but the answer waits for all; nothing is exchanged. What is left is the most for `sync`
- exchange, async and sync: vectors in memory that all share, merged with NumPy; who writes a payload takes its norm

Ratios are taken within a round; their median is printed with the quartiles. Status 1 if it failed.
"""

from __future__ import annotations

import os
import random
import select
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.support import floor_process, table
from bench.support.arguments import parser_for, rounds, seconds, whole
from bench.support.figures import MeasureError
from bench.support.floor_process import (
    ALONE,
    BEGIN,
    EXCHANGE,
    GO,
    MEETING,
    STOP,
    WORD,
    center_of,
    centers,
    hear,
    payload_of,
    receive,
    tell,
)
from bench.support.machine import heading
from bench.support.processes import child, end_by_signals, last_words
from bench.support.runs import START_S, plain_terms
from speedo.exchange.vector import Vector
from speedo.storage.shared_memory.folder import MEMORY
from tests.support.bundled_nets import SHAPES, Bench

FREE = "free-running"
SHOW_EVERY_S = 20.0


@dataclass(frozen=True, slots=True)
class Way:
    """What the processes of a window do after each turn; with `together` each waits for all."""

    name: str
    way: int
    together: bool = False


WAYS = (
    Way(FREE, ALONE),
    Way("free-running, again", ALONE),
    Way("round trip", MEETING),
    Way("exchange, async", EXCHANGE),
    Way("barrier", MEETING, together=True),
    Way("exchange, sync", EXCHANGE, together=True),
)


@dataclass(frozen=True, slots=True)
class Window:
    """Turns a second of all processes, and the ms of a turn, of Caffe in it, and of the third process."""

    turns_per_s: float
    turn_ms: float
    compute_ms: float
    between_ms: float


class Middle:
    """The third process: it answers words, and merges."""

    def __init__(self, channels: list[socket.socket], folder: Path, values: int) -> None:
        self._channels = channels
        self._by_file = {channel.fileno(): at for at, channel in enumerate(channels)}
        shape = (values,)
        self._payloads: list[Vector] = [
            np.memmap(payload_of(folder, at), np.float32, "r", shape=shape)
            for at in range(len(channels))
        ]
        self._centers: list[Vector] = [
            np.memmap(center_of(folder, at), np.float32, "r+", shape=shape)
            for at in range(centers(len(channels)))
        ]
        self._newest = 0

    def window(self, way: Way, lasts_s: float) -> Window:
        """Let all train in this way for so long."""
        for copy in self._centers:
            copy[:] = self._centers[self._newest]
        worked, end = time.process_time(), time.monotonic() + lasts_s
        for channel in self._channels:
            channel.sendall(WORD.pack(BEGIN, way.way, end))
        if way.way != ALONE:
            self._answer(way, end)
        told = [hear(channel) for channel in self._channels]
        worked = time.process_time() - worked
        parts = [one for one in told if isinstance(one, dict)]
        turns = sum(one["turns"] for one in parts)
        ratio = 1e3 / turns
        return Window(
            sum(one["turns"] / one["seconds"] for one in parts),
            ratio * sum(one["seconds"] for one in parts),
            ratio * sum(one["computing"] for one in parts),
            ratio * worked,
        )

    def _answer(self, way: Way, end: float) -> None:
        waiting: list[int] = []
        training, cores = set(self._by_file), os.sched_getaffinity(0)
        needed = len(training) if way.together else 1
        with select.epoll() as ready:
            for file in training:
                ready.register(file, select.EPOLLIN)
            while training:
                events = ready.poll()
                os.sched_setaffinity(0, cores)
                for file, _ in events:
                    receive(self._channels[self._by_file[file]], WORD.size)
                    waiting.append(file)
                    if len(waiting) < needed:
                        continue
                    over = time.monotonic() >= end
                    if way.way == EXCHANGE and not over:
                        self._merge([self._payloads[self._by_file[one]] for one in waiting])
                    word = WORD.pack(STOP if over else GO, self._newest, 0.0)
                    for one in waiting:
                        self._channels[self._by_file[one]].sendall(word)
                        if over:
                            ready.unregister(one)
                            training.discard(one)
                    waiting.clear()

    def _merge(self, payloads: list[Vector]) -> None:
        """Make the next center of the present one and them, or their mean."""
        mean = payloads[0]
        if len(payloads) > 1:
            mean = payloads[0] + payloads[1]
            for payload in payloads[2:]:
                mean += payload
            mean *= np.float32(1 / len(payloads))
        former, self._newest = self._newest, (self._newest + 1) % len(self._centers)
        np.add(self._centers[former], mean, out=self._centers[self._newest])


@contextmanager
def training(net: Bench, workers: int, steps: int) -> Iterator[Middle]:
    """Processes that wait for their first window."""
    with ExitStack() as stack:
        place = tempfile.TemporaryDirectory(prefix="speedo-bench-", dir=MEMORY)
        folder = Path(stack.enter_context(place))
        log = stack.enter_context((folder / "log").open("w"))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.settimeout(START_S)
        listener.bind(str(folder / floor_process.SOCKET))
        listener.listen(workers)
        solver = net.solver(net.batch)
        for number in range(workers):
            words = [folder, number, workers, solver, net.batch, steps]
            command = [sys.executable, "-m", "bench.support.floor_process", *map(str, words)]
            stack.enter_context(child(command, log=log, environment=plain_terms()))
        try:
            yield _met(stack, listener, folder, workers)
        except OSError:
            raise MeasureError(f"a process is gone: {last_words(log)}") from None


def _met(stack: ExitStack, listener: socket.socket, folder: Path, workers: int) -> Middle:
    """Once all are there and have memory in common."""
    met: dict[int, socket.socket] = {}
    values = 0
    while len(met) < workers:
        channel = stack.enter_context(listener.accept()[0])
        channel.settimeout(START_S)
        told = hear(channel)
        assert isinstance(told, dict)
        met[told["number"]], values = channel, told["values"]
    channels = [met[number] for number in range(workers)]
    for path in [
        *(payload_of(folder, at) for at in range(workers)),
        *(center_of(folder, at) for at in range(centers(workers))),
    ]:
        np.memmap(path, np.float32, "w+", shape=(values,)).fill(0.0)
    tell(channels[0], "the first center, please")
    hear(channels[0])
    middle = Middle(channels, folder, values)
    for channel in channels:
        tell(channel, "go")
    for channel in channels:
        hear(channel)
    return middle


def measure(
    net: Bench, workers: int, steps: int, repeats: int, lasts_s: float, say: Callable[[str], None]
) -> dict[str, list[Window]]:
    """All windows by way, in an order that chance draws anew in each round."""
    draw = random.Random(0)
    windows: dict[str, list[Window]] = {way.name: [] for way in WAYS}
    with training(net, workers, steps) as middle:
        told = time.monotonic()
        for number in range(repeats):
            for way in draw.sample(WAYS, len(WAYS)):
                windows[way.name].append(middle.window(way, lasts_s))
            if time.monotonic() > told + SHOW_EVERY_S:
                told = time.monotonic()
                say(f"{net.name}, {steps} steps: round {number + 1} of {repeats}")
    return windows


def figures(windows: dict[str, list[Window]]) -> table.Table:
    """A row for each way: its ratio to the free-running window of the same round."""
    lines = [["", "of free-running", "middle half", "turn ms", "Caffe's ms", "third process ms"]]
    for name, seen in windows.items():
        ratios = [
            mine.turns_per_s / free.turns_per_s
            for mine, free in zip(seen, windows[FREE], strict=True)
        ]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        lines.append(
            [
                name,
                "" if name == FREE else f"{middle:.1%}",
                "" if name == FREE else f"{low:.1%} to {high:.1%}",
                *(
                    f"{statistics.median(values):.2f}"
                    for values in (
                        [one.turn_ms for one in seen],
                        [one.compute_ms for one in seen],
                        [one.between_ms for one in seen],
                    )
                ),
            ]
        )
    return lines


def main() -> int:
    parser = parser_for("bench.floor", __doc__, default_rounds=40)
    parser.add_argument("--nets", nargs="+", choices=list(SHAPES), default=["lenet"])
    parser.add_argument("--local-steps", nargs="+", type=whole, default=[1], metavar="N")
    parser.add_argument("--workers", type=whole, default=2, metavar="N")
    parser.add_argument("--seconds", type=seconds, default=1.0, metavar="S", help="of a window")
    asked = parser.parse_args()
    if asked.rounds < 2:
        parser.error("--rounds: use 2 or more, as quartiles need them")
    end_by_signals()
    _, say = heading("bench.floor")
    write = table.markdown if asked.markdown else table.text
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        for name in asked.nets:
            net = Bench.make(name, Path(folder) / name)
            for steps in asked.local_steps:
                try:
                    found = measure(net, asked.workers, steps, asked.rounds, asked.seconds, say)
                except MeasureError as error:
                    print(f"failed: {error}", file=sys.stderr)
                    return 1
                title = f"{name}, {asked.workers} processes, {steps} step{'s' * (steps > 1)} a turn"
                about = f"{rounds(asked.rounds)} of {asked.seconds:g} s"
                print(f"\n{title}: medians of {about}\n\n{write(figures(found))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
