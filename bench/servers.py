"""Servers of the center on hosts with slow cables: images/s with one, two and four, against what the bytes allow.

    python -m bench.servers [--megabits 100] [--servers 1 2 4] [--modes sync async] [--nets product lenet] [--plan]

As root. Four hosts with a worker each, and a master of its own, are network namespaces joined by a bridge; the cable
of each carries so much each way (`tc ... tbf`). 0 servers: the master has the center. `product` is a net of one inner
product, 2 MB, batch 1; `lenet` has 1.7 MB, batch 64. A mode with `@overlap=far` behind it has each worker's next turn
ahead. Bytes are those on a cable for a result of each worker, headers included: on the busiest host's, and on the
master's.

The limit is what could be had if nothing but compute and transfer took time: in sync the fullest cable until the last
worker has its center, a step, and what that worker sends; in async each worker as fast as it could be alone, or the
fullest cable in its fullest direction. Compute is a step of plain Caffe beside as many others, in the same round: a
worker on the host of the only server waits for no cable, and computes faster than that where others do. Prints medians
and ratios taken within a round. Status 1 if a measurement failed.

With `--plan` each round first calibrates, as `bench.plan` does for its place `link`: Caffe, the store and the merge
alone, a run of one worker with the master's center over such a cable, and what packets cost the processor. A second
table has what `speedo plan` predicts by that, what was measured in the same round, and their ratio. Status 1 then also
if a median is off by more than 15 %.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.plan import ROUND_TRIP_S, Bed, Figure, work_of_packets
from bench.support import table
from bench.support.arguments import parser_for, rounds, seconds, whole
from bench.support.figures import Measured, median_part, median_rate
from bench.support.link import megabits_between
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals
from bench.support.runs import cores, free_running, plain_caffe
from bench.support.throughput import Round, Row, rounds_of
from bench.wire import Hosts, Traffic, overlaps, require
from speedo.study.planning.calibration import Calibration
from speedo.study.planning.predict import predict
from speedo.study.planning.site import Site
from tests.support.bundled_nets import Bench
from tests.support.network import limit, network

NETS = ("product", "lenet")
INPUTS, OUTPUTS = 500, 1000  # of `product`
GOOD: Final = 0.15  # the largest error of a prediction
BYTES = {"product": 4 * INPUTS * OUTPUTS, "lenet": 4 * 431_080}


def name_of(mode: str, servers: int) -> str:
    return f"{mode}, {servers} server{'s' * (servers != 1)}"


def ranges_on(host: int, nbytes: float, servers: int) -> float:
    """Bytes of the center that lie on the host of this worker; server i is on the host of worker i."""
    return nbytes / servers if host < servers else 0.0


def round_s(nbytes: float, workers: int, servers: int, bytes_per_s: float) -> float:
    """Seconds that the transfers of a round take at least: until the last worker has its center, and then sends.

    Until then the fullest cable, that of a server, has carried the range to every other host; of the workers that
    still have to send, the one with the fewest bytes to send may be the last.
    """
    if servers == 0:
        return (workers + 1) * nbytes / bytes_per_s
    part = nbytes / servers
    to_send = nbytes - part if servers > 1 else nbytes
    return (max((workers - 1) * part, to_send) + to_send) / bytes_per_s


def free_rate(
    nbytes: float, workers: int, servers: int, step_s: float, bytes_per_s: float, *, overlap: bool
) -> float:
    """Results/s of all workers at most, where nobody waits for another.

    A worker fetches, computes and sends, one after another unless turns overlap. The cable of a server carries in each
    direction its range for every other host's worker, and what its own worker exchanges with other servers.
    """
    away = [nbytes - ranges_on(host, nbytes, servers) for host in range(workers)]
    alone = [
        1 / max(step_s, one / bytes_per_s) if overlap else 1 / (step_s + 2 * one / bytes_per_s)
        for one in away
    ]
    cables = [[nbytes] * workers] if servers == 0 else []
    for server in range(servers):
        part = nbytes / servers
        cables.append([away[server] if host == server else part for host in range(workers)])
    most = min(_most(alone, loads, bytes_per_s) for loads in cables)
    if servers >= workers:  # all alike, so none has more than another
        most = min(most, workers * bytes_per_s / sum(cables[0]))
    return most


def _most(alone: Sequence[float], loads: Sequence[float], room: float) -> float:
    """The largest sum of rates up to `alone` whose loads fit: those that load the least go first."""
    total = 0.0
    for load, rate in sorted(zip(loads, alone, strict=True)):
        given = rate if load == 0 else min(rate, room / load)
        total, room = total + given, room - given * load
    return total


def byte_limit(
    mode: str,
    nbytes: float,
    workers: int,
    servers: int,
    batch: int,
    step_s: float,
    bytes_per_s: float,
) -> float:
    """Images/s if only steps and bytes took time; `nbytes` are those of a model."""
    if mode == "sync":
        return workers * batch / (step_s + round_s(nbytes, workers, servers, bytes_per_s))
    overlap = overlaps(mode)
    return batch * free_rate(nbytes, workers, servers, step_s, bytes_per_s, overlap=overlap)


def report(
    rows: Sequence[Row],
    measured: Sequence[Round],
    seen: dict[str, list[list[Traffic]]],
    nbytes: float,
    bytes_per_s: float,
) -> table.Table:
    """A line per row: rate, ratio to one server in the same mode and round, the limit, bytes."""
    free = rows[0].name
    lines = [
        [
            "",
            "images/s",
            "of one server",
            "limit",
            "of the limit",
            "KB busiest",
            "KB master's",
            "ms fetch",
            "send",
            "rest",
        ],
        [free, table.number(median_rate(measured, free)), *[""] * 8],
    ]
    for row in rows[1:]:
        done = [one for one in measured if row.name in one and free in one]
        if not done or row.mode is None:
            lines.append([row.name, "failed", *[""] * 8])
            continue
        servers, count = int(row.options[1]), len(row.batches)
        first = name_of(row.mode, 1)
        ratios = [
            one[row.name].images_per_s / one[first].images_per_s for one in done if first in one
        ]
        tops = [
            byte_limit(
                row.mode, nbytes, count, servers, row.batches[0], one[free].parts["turn"] / 1000, bytes_per_s
            )
            for one in done
        ]  # fmt: skip
        shares = [one[row.name].images_per_s / top for one, top in zip(done, tops, strict=True)]
        busiest = statistics.median(
            max(max(host.up, host.down) for host in one) for one in seen[row.name]
        )
        masters = statistics.median(max(one[0].up, one[0].down) for one in seen[row.name])
        lines.append(
            [
                row.name,
                table.number(median_rate(measured, row.name)),
                f"{statistics.median(ratios):.2f}" if ratios else "",
                table.number(statistics.median(tops)),
                f"{statistics.median(shares):.1%} ({min(shares):.0%} to {max(shares):.0%})",
                f"{busiest * count / 1000:,.0f}",
                f"{masters * count / 1000:,.0f}",
                *(
                    table.number(median_part(measured, row.name, part))
                    for part in ("fetch", "publish", "rest")
                ),
            ]
        )
    return lines


@dataclass(frozen=True, slots=True)
class Planner:
    """Predicts rows by a calibration of the same round."""

    bed: Bed

    def calibrate(self, scratch: Path, say: Callable[[str], None]) -> Calibration:
        """Takes some twenty seconds. Raises `MeasureError`."""
        with tempfile.TemporaryDirectory(dir=scratch) as own:
            return self.bed.calibrate(["link"], Path(own), say)["link"]

    def site(self, mode: str, servers: int) -> Site:
        """The namespaces of this machine, as the simulator takes them."""
        return Site(
            cores(),
            1e6 * self.bed.megabits,
            ROUND_TRIP_S,
            one_processor=True,
            packet_work=self.bed.packet_work,
            overlap="far" if overlaps(mode) else "none",
            servers=servers,
        )

    def images_per_s(self, calibration: Calibration, row: Row) -> float:
        """What this row would do."""
        assert row.mode is not None
        servers, (mode, _, _) = int(row.options[1]), row.mode.partition("@")
        site = self.site(row.mode, servers)
        return predict(calibration, site, mode, len(row.batches), 1, split=False).images_per_s


def planned(rows: Sequence[Row], figures: dict[str, list[Figure]]) -> tuple[table.Table, float]:
    """A line per row that was measured in a calibrated round, and the largest error of a median."""
    lines = [["", "measured images/s", "predicted", "predicted / measured", "least to most"]]
    worst = 0.0
    for row in rows:
        found = figures.get(row.name, [])
        if not found:
            continue
        ratios = [one.predicted / one.measured for one in found]
        worst = max(worst, abs(statistics.median(ratios) - 1.0))
        lines.append(
            [
                row.name,
                table.number(statistics.median(one.measured for one in found)),
                table.number(statistics.median(one.predicted for one in found)),
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    return lines, worst


def main() -> int:
    parser = parser_for("bench.servers", __doc__)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument(
        "--modes", nargs="+", default=["sync", "async"], metavar="MODE[@overlap=far]"
    )
    parser.add_argument("--servers", nargs="+", type=int, default=[0, 1, 2, 4], metavar="K")
    parser.add_argument("--workers", type=whole, default=4, metavar="N")
    parser.add_argument(
        "--megabits", type=whole, default=100, metavar="N", help="of each cable, per second"
    )
    parser.add_argument("--seconds", type=seconds, default=8.0, metavar="S", help="of each run")
    parser.add_argument(
        "--plan", action="store_true", help="also predict each run by a calibration in its round"
    )
    asked = parser.parse_args()
    end_by_signals()
    _, say = heading("bench.servers")
    require(say)
    failed = False
    write = table.markdown if asked.markdown else table.text
    with (
        tempfile.TemporaryDirectory(prefix="speedo-bench-") as scratch,
        network(asked.workers + 1) as hosts,
    ):
        for host in hosts:
            limit(host, asked.megabits)
        carried = megabits_between(hosts[1], hosts[0], 10_000_000)
        print(
            f"\nThe cables carry {asked.megabits} Mbit/s; one TCP connection got {carried:.0f}.",
            flush=True,
        )
        work = work_of_packets(asked.megabits, say) if asked.plan else 0.0
        for name in asked.nets:
            folder = Path(scratch) / name
            net = (
                Bench.one_layer(name, folder, INPUTS, OUTPUTS)
                if name == "product"
                else Bench.make(name, folder)
            )
            members = Hosts(hosts, net, folder, asked.seconds)
            batches = (net.batch,) * asked.workers
            rows = [Row(f"{asked.workers} free-running", batches)]
            rows += [
                Row(name_of(mode, servers), batches, mode, options=("--servers", str(servers)))
                for mode in asked.modes
                for servers in asked.servers
            ]
            seen: dict[str, list[list[Traffic]]] = {}
            planner = Planner(Bed(net, asked.seconds, asked.megabits, work))
            calibrations: list[Calibration] = []
            figures: dict[str, list[Figure]] = {}

            def measure(row: Row, done: Round, place: Path) -> Measured:
                if asked.plan and not done:  # the first of a round
                    calibrations.append(planner.calibrate(place, say))  # noqa: B023
                if row.mode is None:
                    command = plain_caffe(net, net.batch, 3.0)  # noqa: B023
                    return free_running([command] * asked.workers, batches, 3.0, place)  # noqa: B023
                mode, _, way = row.mode.partition("@")
                options = [*row.options, *(f"--{way}".split("=") if way else ())]
                measured, traffic = members.train(mode, options, place)  # noqa: B023
                seen.setdefault(row.name, []).append(traffic)  # noqa: B023
                if calibrations:  # noqa: B023
                    guess = planner.images_per_s(calibrations[-1], row)  # noqa: B023
                    figure = Figure(guess, measured.images_per_s)
                    figures.setdefault(row.name, []).append(figure)  # noqa: B023
                    say(f"{row.name}: {guess:,.0f} images/s predicted, {figure.error:+.1%}")
                return measured

            done, failures = rounds_of(net.name, rows, asked.rounds, measure, say)
            lines = report(rows, done, seen, BYTES[name], asked.megabits * 125_000.0)
            print(
                f"\n{name}, batch {net.batch}, {asked.workers} workers, {asked.megabits} Mbit/s: medians of "
                f"{rounds(asked.rounds)} of {asked.seconds:g} s\n\n{write(lines)}",
                flush=True,
            )
            failed |= bool(status_of(failures))
            if asked.plan:
                lines, worst = planned(rows, figures)
                verdict = "within" if worst <= GOOD else "not within"
                print(
                    f"\n{name}, what `speedo plan` predicts by the calibration of each round\n\n{write(lines)}\n\n"
                    f"The largest error is {worst:.1%}, {verdict} {GOOD:.0%}.",
                    flush=True,
                )
                failed |= worst > GOOD or not figures
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
