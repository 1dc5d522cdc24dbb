"""What one turn's two messages take, without the turn: an actor call of Ray, and the channel on one machine.

    python -m bench.messages [--turns 2000]

Prints the median round trip, and the CPU time of master and worker per turn.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speedo.actors.ray_node import session
from speedo.actors.token import new_token
from speedo.exchange.channel import Channels, EventQueue, WorkerChannel
from speedo.messages import Kind, Train, Trained

COMMAND = Train(0, 1, 1, 1, 1, 1, 1, Kind.DELTA)
RESULT = Trained(0, 1, 1, 0.5, 64, {"fetch": 0.001, "compute": 0.02, "publish": 0.001})


class Echo:
    """A worker whose turns take no time."""

    def turn(self, command: Train) -> Trained:
        return RESULT

    def serve(self, folder: str) -> None:
        with WorkerChannel(folder, 0, 1) as channel:
            for _ in channel.commands():
                channel.answer(RESULT)

    def cpu(self) -> float:
        return time.process_time()


def measure(turns: int, once: Callable[[], object], worker_cpu: Callable[[], float]) -> list[float]:
    """Milliseconds: median round trip, CPU of the master, CPU of the worker."""
    for _ in range(turns // 10):
        once()
    theirs, ours, times = worker_cpu(), time.process_time(), []
    for _ in range(turns):
        began = time.perf_counter()
        once()
        times.append(time.perf_counter() - began)
    ours = time.process_time() - ours
    each = (statistics.median(times), ours / turns, (worker_cpu() - theirs) / turns)
    return [1e3 * value for value in each]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=2000)
    turns = parser.parse_args().turns
    print(f"{'ms per turn':18}{'round trip':>12}{'master CPU':>12}{'worker CPU':>12}")
    with (
        session.head(new_token(), "127.0.0.1", None, print) as head,
        head.connected(),
        tempfile.TemporaryDirectory() as folder,
    ):
        import ray

        events: EventQueue[Any] = EventQueue()
        options = {"num_cpus": 0, "max_concurrency": 2}  # one thread serves, one tells its CPU time
        worker = ray.remote(Echo).options(**options).remote()

        def call() -> None:
            worker.turn.remote(COMMAND).future().add_done_callback(lambda d: events.put(d.result()))
            events.get(60.0)

        def cpu() -> float:
            return float(ray.get(worker.cpu.remote()))

        show("actor call", measure(turns, call, cpu))
        channels = Channels(Path(folder), events)
        serving = worker.serve.remote(folder)
        channels.wait_for(0, 1)

        def exchange() -> None:
            channels.send(COMMAND)
            events.get(60.0)

        show("channel", measure(turns, exchange, cpu))
        channels.close(0, 1)
        ray.get(serving)


def show(name: str, figures: list[float]) -> None:
    print(f"{name:18}" + "".join(f"{figure:12.3f}" for figure in figures))


if __name__ == "__main__":
    main()
