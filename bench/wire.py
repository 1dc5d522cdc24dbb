"""Remote workers over links of a known rate, without and with compression, against the wire's own limit.

    python -m bench.wire [--megabits 1000] [--modes sync async easgd] [--codecs none int8 topk:0.01 int8/bfloat16]

As root. A master and the workers are hosts of their own, network namespaces joined by a bridge; the cable of each,
the master's too, carries so much each way (`tc ... tbf`). A codec is what `--compress` of speedo takes, and after a
slash the form of centers; with `@overlap=far` behind it each
has its next turn ahead, with `@team=off` behind it the workers of a host (`--per-host`) each report to the master.
The bytes are those on the master's cable, with all headers.

The wire's limit is what could be had for these bytes if nothing but compute and transfer took time: side by side where
turns overlap, else one after the other. Compute is a step of plain Caffe beside as many others, in the same round.
Prints medians and ratios taken within a round. Status 1 if a measurement failed.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.support import table
from bench.support.arguments import parser_for, rounds, seconds, whole
from bench.support.figures import Measured, MeasureError, median_part, median_rate, run_measured
from bench.support.link import megabits_between, sent
from bench.support.machine import heading, status_of
from bench.support.processes import child, end_by_signals, last_words
from bench.support.runs import CTRL_C, START_S, free_running, plain_caffe
from bench.support.throughput import Round, Row, rounds_of
from bench.support.timed import FOREVER, Follower, follow
from speedo.exchange.codecs import is_fraction
from tests.support.bundled_nets import SHAPES, Bench
from tests.support.network import Host, limit, network

CODECS = ("none", "bfloat16", "int8", "topk:0.01", "int8/bfloat16")
MODES = ("sync", "async", "easgd")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes on the master's cable for each result: towards the master, and from it."""

    up: float
    down: float


def wire_limit(
    mode: str,
    workers: int,
    batch: int,
    step_s: float,
    traffic: Traffic,
    bytes_per_s: float,
    *,
    overlap: bool,
) -> float:
    """Images/s if only the steps and the bytes took time, on a master's cable that all share.

    Workers take turns with the cable at best. In sync the round ends with the last one: n times down one after
    another, or n times up, whichever is longer, and once the other way. Elsewhere until it is full in one direction;
    with `overlap` a worker computes all the time until then.
    """
    up, down = traffic.up / bytes_per_s, traffic.down / bytes_per_s
    if mode == "sync":
        return workers * batch / (step_s + up + down + (workers - 1) * max(up, down))
    turn_s = step_s if overlap else step_s + up + down
    return min(workers * batch / turn_s, batch / max(up, down))


def name_of(mode: str, codec: str) -> str:
    return f"{mode}, {codec}"


def codec_options(codec: str) -> list[str]:
    vectors, _, way = codec.partition("@")
    payload, _, center = vectors.partition("/")
    options = [] if payload == "none" else ["--compress", payload]
    options += ["--compress", f"center={center}"] if center else []
    return [*options, *f"--{way}".split("=")] if way else options


def overlaps(name: str) -> bool:
    """Whether turns overlap."""
    return name.endswith("@overlap=far")


def is_refused(mode: str, codec: str) -> bool:
    """Whether it makes no sense: a few of the values of weights are no model, and turns of sync never overlap."""
    elastic = mode == "easgd" and is_fraction(codec)
    return elastic or (mode == "sync" and overlaps(codec))


# ---------------------------------------------------------------- one run


class Hosts:
    """A master and workers on hosts of their own."""

    def __init__(
        self, hosts: Sequence[Host], net: Bench, folder: Path, length_s: float, per_host: int = 1
    ) -> None:
        self.master, *self.workers = hosts
        self.net, self.length_s, self.per_host = net, length_s, per_host
        self._surroundings = {
            "SPEEDO_TOKEN_FILE": str(folder / "token"),
            "SPEEDO_RUNTIME_DIR": str(folder / "runtime"),
        }

    def train(
        self, mode: str, options: Sequence[str], scratch: Path
    ) -> tuple[Measured, list[Traffic]]:
        """One run from its start to its end, and what passed over the cable of each host, the master first.

        For each result: up is towards that host, down from it.
        """
        run_dir, count = scratch / "run", len(self.workers) * self.per_host
        seen: list[tuple[int, list[tuple[int, int]]]] = []

        def sample(follower: Follower) -> None:
            seen.append((follower.total(), [sent(host) for host in (self.master, *self.workers)]))

        with ExitStack() as stack:
            log = stack.enter_context((scratch / "run.log").open("w"))

            def start(host: Host, *arguments: str) -> subprocess.Popen[str]:
                command = [*host.inside, sys.executable, "-m", "speedo", *arguments]
                return stack.enter_context(child(command, log=log, environment=self._surroundings))

            master = start(
                self.master, "master", str(self.net.solver(self.net.batch)), "--device", "cpu",
                "--host", self.master.address, "--mode", mode, "--workers", str(count), "--whole-batch",
                "--max-iter", str(FOREVER), "--test-interval", "0", "--seed", "1",
                "--run-dir", str(run_dir), *options,
            )  # fmt: skip
            for host in self.workers:
                start(
                    host, "worker", "--master", self.master.address, "--workers", str(self.per_host)
                )
            try:
                follow(master, run_dir, count, self.length_s, sample)
                status = master.wait(START_S)
            except (MeasureError, subprocess.TimeoutExpired) as error:
                raise MeasureError(f"{error}: {last_words(log)}") from None
            if status != CTRL_C:
                raise MeasureError(f"status {status}: {last_words(log)}")
        measured = run_measured(run_dir, count)
        (before, first), (after, last) = seen
        results = after - before
        return measured, [
            Traffic((up - old_up) / results, (down - old_down) / results)
            for (old_down, old_up), (down, up) in zip(first, last, strict=True)
        ]


# ---------------------------------------------------------------- rounds


def limits_of(
    row: Row, free: str, measured: Sequence[Round], traffic: Traffic, bytes_per_s: float
) -> list[tuple[float, float]]:
    """The wire's limit and the rate, of each round that has both."""
    found = []
    for one in measured:
        if row.name in one and free in one:
            step_s = one[free].parts["turn"] / 1000
            count = len(row.batches)
            assert row.mode is not None
            top = wire_limit(
                row.mode,
                count,
                row.batches[0],
                step_s,
                traffic,
                bytes_per_s,
                overlap=overlaps(row.name),
            )
            found.append((top, one[row.name].images_per_s))
    return found


def report(
    rows: Sequence[Row],
    measured: Sequence[Round],
    seen: dict[str, list[Traffic]],
    bytes_per_s: float,
) -> table.Table:
    free = rows[0].name
    lines = [
        [
            "",
            "images/s",
            "KB up",
            "KB down",
            "turn ms",
            "wire's limit",
            "of the limit",
            "least to most",
        ]
    ]
    lines.append([free, table.number(median_rate(measured, free)), *[""] * 6])
    for row in rows[1:]:
        if row.name not in seen:
            lines.append([row.name, "failed", *[""] * 6])
            continue
        traffic = Traffic(
            statistics.median(one.up for one in seen[row.name]),
            statistics.median(one.down for one in seen[row.name]),
        )
        pairs = limits_of(row, free, measured, traffic, bytes_per_s)
        shares = [rate / top for top, rate in pairs]
        turn = median_part(measured, row.name, "turn")
        lines.append(
            [
                row.name,
                table.number(median_rate(measured, row.name)),
                f"{traffic.up / 1000:,.0f}",
                f"{traffic.down / 1000:,.0f}",
                "" if turn is None else f"{turn:.1f}",
                table.number(statistics.median(top for top, _ in pairs)) if pairs else "",
                f"{statistics.median(shares):.1%}" if pairs else "",
                f"{min(shares):.1%} to {max(shares):.1%}" if pairs else "",
            ]
        )
    return lines


def require(say: Callable[[str], None]) -> None:
    """End the program, with what to do, where hosts cannot be made."""
    missing = [
        f"{name} (apt-get install iproute2)" for name in ("ip", "tc") if not shutil.which(name)
    ]
    missing += [] if os.geteuid() == 0 else ["root"]
    if missing:
        raise SystemExit(f"network namespaces need {' and '.join(missing)}")


def main() -> int:
    parser = parser_for("bench.wire", __doc__)
    parser.add_argument("--net", choices=list(SHAPES), default="lenet")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument(
        "--codecs", nargs="+", default=list(CODECS), metavar="PAYLOAD[/CENTER][@OPTION]"
    )
    parser.add_argument("--workers", type=whole, default=2, metavar="N", help="of all hosts")
    parser.add_argument("--per-host", type=whole, default=1, metavar="N", help="workers of a host")
    parser.add_argument(
        "--megabits", type=whole, default=1000, metavar="N", help="of each cable, per second"
    )
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="of each run")
    asked = parser.parse_args()
    if asked.workers % asked.per_host:
        parser.error("--workers is a multiple of --per-host")
    end_by_signals()
    _, say = heading("bench.wire")
    require(say)
    seen: dict[str, list[Traffic]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="speedo-bench-") as scratch,
        network(-(-asked.workers // asked.per_host) + 1) as hosts,
    ):
        folder = Path(scratch)
        net = Bench.make(asked.net, folder / asked.net)
        for host in hosts:
            limit(host, asked.megabits)
        carried = megabits_between(hosts[1], hosts[0])
        print(
            f"\nThe cables carry {asked.megabits} Mbit/s; one TCP connection got {carried:.0f}.",
            flush=True,
        )
        members = Hosts(hosts, net, folder, asked.seconds, asked.per_host)
        batches = (net.batch,) * asked.workers
        rows = [Row(f"{asked.workers} free-running", batches)]
        options: dict[str, list[str]] = {}
        for mode in asked.modes:
            for codec in asked.codecs:
                if not is_refused(mode, codec):
                    name = name_of(mode, codec)
                    options[name] = codec_options(codec)
                    rows.append(Row(name, batches, mode))

        def measure(row: Row, done: Round, place: Path) -> Measured:
            if row.mode is None:
                command = plain_caffe(net, net.batch, asked.seconds)
                return free_running([command] * asked.workers, batches, asked.seconds, place)
            measured, traffic = members.train(row.mode, options[row.name], place)
            seen.setdefault(row.name, []).append(traffic[0])
            return measured

        done, failures = rounds_of(net.name, rows, asked.rounds, measure, say)
    write = table.markdown if asked.markdown else table.text
    print(
        f"\n{asked.net}, batch {net.batch}, {asked.workers} remote workers, {asked.megabits} Mbit/s: medians of "
        f"{rounds(asked.rounds)} of {asked.seconds:g} s; KB are for one result\n\n"
        f"{write(report(rows, done, seen, asked.megabits * 125_000.0))}"
    )
    return status_of(failures)


if __name__ == "__main__":
    sys.exit(main())
