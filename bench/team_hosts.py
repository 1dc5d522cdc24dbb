"""Rounds of a team over hosts: with layers that leave early or at the end of the gradient, with and without factors.

    python -m bench.team_hosts [--net lenet] [--batch N] [--hosts 4] [--megabits 100 1000] [--rounds 3] [--calls 2]
                               [--weights N]

As root. Hosts are network namespaces joined by a bridge, with one worker each; the cable of each carries so much each
way. All share the cores of this machine. In each round the ways take turns, with so many rounds of the team each.
`alone` is a gradient and an update without exchange, while all others compute as well. `MB` are the bytes that leave a
host by its interface in a round of the team, of the one that sends most. Prints medians. With `--weights` it also says
how far the weights are apart after so many rounds from the same start, with and without factors.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.support import table
from bench.support.arguments import parser_for, whole
from bench.support.figures import MeasureError
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals
from bench.support.runs import ONE_THREAD
from speedo.engines.base import Done, nobody
from speedo.engines.make import EngineChoice, let_others_run, make_engine, prepare_process
from speedo.engines.solver import SolverOverrides, read_solver, solver_for_worker
from speedo.exchange.factors import Factors
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import Rendezvous
from speedo.exchange.team_meeting import TeamMeeting
from speedo.exchange.vector import Vector
from speedo.messages import Kind, Team, Train
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.worker.membership import Membership
from speedo.worker.team_turn import TeamMember
from speedo.worker.turn import EngineWorker
from tests.support.bundled_nets import SHAPES, Bench
from tests.support.network import limit, network

PATIENCE_S: Final = 300.0
COUNTER: Final = Path("/sys/class/net/eth0/statistics/tx_bytes")
WEIGHTS: Final = "weights"
WAYS: Final = ("alone", "at the end", "early", "at the end, factors", "early, factors")


class BenchWorker(EngineWorker):
    """Its center is what its engine has, and nobody gets what the team has made."""

    def fetch_center_for_team(self, command: Train, out: Vector) -> None:
        self.engine.read_weights(out)

    def made_in_team(self, command: Train, center: Vector) -> None:
        pass


def member(
    solver: Path, batch: int, rank: int, folder: Path, addresses: Sequence[str], calls: int
) -> None:
    """For each way that is read from standard input, print what a round of the team has taken here."""
    choice = EngineChoice()
    prepare_process(choice)
    let_others_run(choice, True)
    spec = read_solver(solver, overrides=SolverOverrides(engine="caffe", seed=1))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=batch)
    engine = make_engine(choice, text, lr_policy=spec.lr_policy, folder=spec.folder)
    hosts = range(len(addresses))

    def reach(team: Team) -> HostExchange:
        at = Rendezvous(SharedMemoryStore(folder), "bench", f"team{team.formed}", addresses[rank])
        return HostExchange(at, hosts, rank, PATIENCE_S, str)

    store: Any = None
    worker = BenchWorker("bench", rank, 1, engine, store, time.monotonic)
    own = folder / str(rank)
    own.mkdir()
    team = TeamMember(worker, Membership(rank, TeamMeeting(own, rank, 1), reach))
    members = tuple((one, 1, engine.samples_per_step) for one in hosts)
    gradient, ticket, formed, out = engine.gradient, 0, 1, engine.layout.zeros()

    def at_the_end(
        n: int, into: Vector, done: Done = nobody, factors: Sequence[Factors] = ()
    ) -> float:
        loss = gradient(n, into, factors=factors)
        for _, place in engine.layout.slices():
            done(place.start, place.stop)
        return loss

    for line in sys.stdin:
        way = line.strip()
        if way == WEIGHTS:
            engine.read_weights(out)
            np.save(folder / f"{rank}.npy", out)
            print(json.dumps([0, 0]), flush=True)
            continue
        engine.gradient = gradient if way.startswith("early") else at_the_end  # type: ignore[method-assign]
        if worker.factors != way.endswith("factors"):  # the memory has room for them, or none
            worker.factors, formed = not worker.factors, formed + 1
        spread = tuple((one,) for one in hosts)
        sent, began = int(COUNTER.read_text()), time.monotonic()
        if way == "alone":
            for _ in range(calls):
                gradient(1, out)
                engine.apply_gradient(out)
        else:
            ticket += 1
            told = Team(formed, members, calls, patience_s=PATIENCE_S, spread=spread)
            team.turn(Train(rank, 1, ticket, 3, 0, 1, 1, Kind.WEIGHTS, team=told))
        took = time.monotonic() - began, int(COUNTER.read_text()) - sent
        print(json.dumps([one / calls for one in took]), flush=True)
    team.close()


@contextmanager
def members(
    net: Bench, batch: int, hosts: int, megabits: float, calls: int
) -> Iterator[tuple[Path, Callable[[str], tuple[float, ...]]]]:
    """A worker on each host. Gives their folder, and a call that has all do the same: the largest of each answer."""
    with network(hosts) as made, tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        for host in made:
            limit(host, megabits)
        addresses = [host.address for host in made]
        processes = []
        for rank, host in enumerate(made):
            words = map(str, (net.solver(batch), batch, rank, folder, ",".join(addresses), calls))
            command = [*host.inside, sys.executable, "-m", "bench.team_hosts", "member", *words]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            environment = {**os.environ, **ONE_THREAD}  # NumPy's BLAS reads it when it is loaded
            processes.append(subprocess.Popen(command, **pipes, text=True, env=environment))

        def all_do(way: str) -> tuple[float, ...]:
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(way + "\n")
                process.stdin.flush()
            answers = []
            for process in processes:
                assert process.stdout is not None
                if not (line := process.stdout.readline()):
                    raise MeasureError(f"a member has ended at {way!r}, see above")
                answers.append(json.loads(line))
            return tuple(map(max, zip(*answers, strict=True)))

        yield Path(folder), all_do
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)


def measure(
    net: Bench, batch: int, hosts: int, megabits: float, rounds: int, calls: int
) -> Iterator[list[str]]:
    """Lines of the table for this rate."""
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    with members(net, batch, hosts, megabits, calls) as (_, all_do):
        for number in range(rounds + 1):
            for way in WAYS:
                answer = all_do(way)
                if number:  # the first warms up, and connects
                    found[way].append(answer)
    alone = statistics.median(took for took, _ in found["alone"])
    for way, rows in found.items():
        took, sent = (statistics.median(column) for column in zip(*rows, strict=True))
        yield [
            f"{megabits:g} Mbit/s, {way}", f"{1e3 * took:,.0f}", f"{1e3 * (took - alone):,.0f}", f"{sent / 1e6:,.2f}",
            f"{hosts * batch / took:,.1f}",
        ]  # fmt: skip


def apart(net: Bench, batch: int, hosts: int, megabits: float, calls: int) -> float:
    """The largest difference of a weight between rounds with and without factors, by the largest weight."""
    ends = []
    for way in ("early", "early, factors"):
        with members(net, batch, hosts, megabits, calls) as (folder, all_do):
            all_do(way)
            all_do(WEIGHTS)
            ends.append(np.load(folder / "0.npy"))
    return float(np.abs(ends[0] - ends[1]).max() / np.abs(ends[0]).max())


def main() -> int:
    if sys.argv[1:2] == ["member"]:
        solver, batch, rank, folder, addresses, calls = sys.argv[2:]
        member(Path(solver), int(batch), int(rank), Path(folder), addresses.split(","), int(calls))
        return 0
    parser = parser_for("bench.team_hosts", __doc__, default_rounds=3)
    parser.add_argument("--net", choices=SHAPES, default="lenet")
    parser.add_argument("--batch", type=whole, metavar="N", help="of each worker")
    parser.add_argument("--hosts", type=whole, default=4, metavar="N")
    parser.add_argument("--megabits", type=whole, nargs="+", default=[100, 1000], metavar="N")
    parser.add_argument("--calls", type=whole, default=2, metavar="N", help="rounds of the team")
    parser.add_argument(
        "--weights", type=whole, metavar="N", help="rounds before they are compared"
    )
    asked = parser.parse_args()
    end_by_signals()
    heading("bench.team_hosts")
    failures: list[str] = []
    lines = [["", "ms a round", "more than alone", "MB", "images/s"]]
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        net = Bench.make(asked.net, Path(folder))
        batch = asked.batch or net.batch
        for megabits in asked.megabits:
            try:
                lines += measure(net, batch, asked.hosts, megabits, asked.rounds, asked.calls)
            except MeasureError as error:
                failures.append(str(error))
        far = (
            apart(net, batch, asked.hosts, asked.megabits[-1], asked.weights)
            if asked.weights
            else None
        )
    write = table.markdown if asked.markdown else table.text
    print(f"\n{asked.net}, {asked.hosts} hosts, batch {batch} each\n\n{write(lines)}")
    if far is not None:
        print(
            f"\nweights after {asked.weights} rounds with and without factors: {far:.1e} of the largest apart"
        )
    return status_of(failures)


if __name__ == "__main__":
    sys.exit(main())
