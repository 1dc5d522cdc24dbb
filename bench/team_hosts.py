"""Rounds of a team over hosts: with layers that leave early or at the end of the gradient, with and without factors.

    python -m bench.team_hosts [--net lenet] [--batch N] [--hosts 4] [--megabits 100 1000] [--rounds 3] [--calls 2]

As root. Hosts are network namespaces joined by a bridge, with one worker each; the cable of each carries so much each
way. All share the cores of this machine. In each round the ways take turns, with so many rounds of the team each.
`alone` is a gradient and an update without exchange, while all others compute as well. `MB` are the bytes that leave a
host by its interface in a round of the team, of the one that sends most. Prints medians.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.support import table
from bench.support.arguments import parser_for, whole
from bench.support.figures import MeasureError
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals
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
from speedo.worker.turn import Worker
from tests.support.bundled_nets import SHAPES, Bench
from tests.support.network import limit, network

PATIENCE_S: Final = 300.0
COUNTER: Final = Path("/sys/class/net/eth0/statistics/tx_bytes")
WAYS: Final = ("alone", "at the end", "early", "at the end, factors", "early, factors")


class BenchWorker(Worker):
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


def measure(
    net: Bench, batch: int, hosts: int, megabits: float, rounds: int, calls: int
) -> Iterator[list[str]]:
    """Lines of the table for this rate."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with network(hosts) as made, tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        for host in made:
            limit(host, megabits)
        addresses = [host.address for host in made]
        processes = []
        for rank, host in enumerate(made):
            words = map(str, (net.solver(batch), batch, rank, folder, ",".join(addresses), calls))
            command = [*host.inside, sys.executable, "-m", "bench.team_hosts", "member", *words]
            processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for number in range(rounds + 1):
            for way in WAYS:
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
                if number:  # the first warms up, and connects
                    found[way].append(tuple(map(max, zip(*answers, strict=True))))  # type: ignore[arg-type]
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)
    alone = statistics.median(took for took, _ in found["alone"])
    for way, rows in found.items():
        took, sent = (statistics.median(column) for column in zip(*rows, strict=True))
        yield [
            f"{megabits:g} Mbit/s, {way}", f"{1e3 * took:,.0f}", f"{1e3 * (took - alone):,.0f}", f"{sent / 1e6:,.2f}",
            f"{hosts * batch / took:,.1f}",
        ]  # fmt: skip


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
    write = table.markdown if asked.markdown else table.text
    print(f"\n{asked.net}, {asked.hosts} hosts, batch {batch} each\n\n{write(lines)}")
    return status_of(failures)


if __name__ == "__main__":
    sys.exit(main())
