"""How well `speedo plan` predicts: calibrates, predicts, measures the same with the product, and compares.

    python -m bench.plan [--net lenet] [--rounds 2] [--seconds 5] [--megabits 1000] [--modes sync async easgd]

It calibrates once, in at most 5 s for each kind: Caffe, the store and the merge alone, and for each place a run of one
worker there, which tells the messages and what a turn takes beyond its parts. Then, in each round, every mode runs with
1 and 2 workers: on this machine through shared memory (`here`) and through Redis (`redis`), and with master and workers
on hosts of their own, whose cables carry so many megabits each way (`link`). Those hosts are network namespaces, so
this needs root, and they share the cores of this machine, which the prediction knows; what their packets cost its
processor is measured first.

A line has what was predicted, the median over the rounds of what was measured, and that of the error of each round.
Status 1 if a measurement failed or an error is above 10 %.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.support import table
from bench.support.arguments import parser_for, rounds, seconds, whole
from bench.support.figures import MeasureError
from bench.support.link import packet_work
from bench.support.machine import heading
from bench.support.processes import end_by_signals
from bench.support.runs import cores, iterations_for, train
from bench.wire import Hosts
from speedo.study.planning.calibrate_by_measuring import measure_solver
from speedo.study.planning.calibrate_from_run import with_run
from speedo.study.planning.calibration import Calibration
from speedo.study.planning.predict import predict
from speedo.study.planning.site import Site
from tests.support.bundled_nets import SHAPES, Bench
from tests.support.network import limit, network

PLACES = ("here", "redis", "link")
ROUND_TRIP_S = 0.1e-3  # between two namespaces
WHOLE = ("--whole-batch", "--checkpoint-interval", "0")
GOOD = 0.10
CALIBRATION_S = 5.0  # at most, of each kind of step and of each run
Say = Callable[[str], None]


def options_at(place: str) -> list[str]:
    """Of every run at this place."""
    return [*WHOLE, *(["--redis", "same_node=redis"] if place == "redis" else [])]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is predicted and measured."""

    place: str
    mode: str
    workers: int
    local_steps: int

    @property
    def name(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.place}, {self.mode}, {workers}, {self.local_steps} local"

    @property
    def options(self) -> list[str]:
        return [*options_at(self.place), "--local-steps", str(self.local_steps)]


@dataclass(frozen=True, slots=True)
class Figure:
    """Images/s."""

    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Bed:
    """What all measurements of a call share."""

    net: Bench
    seconds: float
    megabits: float
    packet_work: float = 0.0

    def calibrate(self, places: Sequence[str], scratch: Path, say: Say) -> dict[str, Calibration]:
        """Caffe, store and merge measured alone, with what a run of one worker tells of each place."""
        solver, seconds = self.net.solver(self.net.batch), min(self.seconds, CALIBRATION_S)
        alone = measure_solver(solver, ("async",), (1,), False, seconds, say)
        iterations = iterations_for(seconds, alone.images_per_s, self.net.batch, 1, 1, 40)
        told = {}
        for place in places:
            own = scratch / place
            own.mkdir()
            if place == "link":
                self._between_hosts("async", 1, WHOLE, own, seconds)
            else:
                options = options_at(place)
                train(self.net, "async", 1, iterations, options, own, seconds=seconds)
            told[place] = with_run(own / "run", alone)
        return told

    def expect(self, case: Case, calibration: Calibration) -> float:
        """Images/s by the simulator."""
        if case.place == "link":
            site = Site(
                cores(),
                1e6 * self.megabits,
                ROUND_TRIP_S,
                one_processor=True,
                packet_work=self.packet_work,
            )
        else:
            same_node = "redis" if case.place == "redis" else "shared-memory"
            site = Site(cores(), same_node=same_node)
        told = predict(calibration, site, case.mode, case.workers, case.local_steps, split=False)
        return told.images_per_s

    def measure(self, case: Case, calibration: Calibration, scratch: Path) -> float:
        """Images/s of the product."""
        if case.place == "link":
            return self._between_hosts(case.mode, case.workers, case.options, scratch, self.seconds)
        iterations = iterations_for(
            self.seconds, calibration.images_per_s, self.net.batch, case.workers, case.local_steps
        )
        run = train(
            self.net,
            case.mode,
            case.workers,
            iterations,
            case.options,
            scratch,
            seconds=self.seconds,
        )
        return run.images_per_s

    def _between_hosts(
        self, mode: str, workers: int, options: Sequence[str], scratch: Path, seconds: float
    ) -> float:
        with network(workers + 1) as hosts:
            for host in hosts:
                limit(host, self.megabits)
            members = Hosts(hosts, self.net, scratch, seconds)
            return members.train(mode, options, scratch)[0].images_per_s


def work_of_packets(megabits: float, say: Say) -> float:
    """What carrying a byte from one namespace to another costs this machine, in seconds of processor."""
    with network(2) as hosts:
        for host in hosts:
            limit(host, megabits)
        work = packet_work(*hosts)
    say(f"the links take {1e9 * work:.2f} ms of processor for each MB")
    return work


def calibrate(bed: Bed, cases: Sequence[Case], say: Say) -> dict[str, Calibration]:
    """By place."""
    places = list(dict.fromkeys(case.place for case in cases))
    with tempfile.TemporaryDirectory(dir=bed.net.folder) as scratch:
        found = bed.calibrate(places, Path(scratch), say)
    for place, one in found.items():
        say(f"calibrated, {place}: {one.model_dump_json(exclude={'shape', 'origin'})}")
    return found


def measure_round(
    bed: Bed, guesses: dict[Case, float], calibrations: dict[str, Calibration], say: Say
) -> dict[Case, Figure]:
    """Every case; one that fails is told and missing."""
    figures: dict[Case, Figure] = {}
    for case, guess in guesses.items():
        with tempfile.TemporaryDirectory(dir=bed.net.folder) as own:
            try:
                figures[case] = Figure(
                    guess, bed.measure(case, calibrations[case.place], Path(own))
                )
            except MeasureError as error:
                say(f"{case.name}: failed: {error}")
                continue
        found = figures[case]
        say(
            f"{case.name}: {found.predicted:,.0f} predicted, {found.measured:,.0f} measured, {found.error:+.1%}"
        )
    return figures


def report(
    cases: Sequence[Case], measured: Sequence[dict[Case, Figure]]
) -> tuple[table.Table, float]:
    """The table, and the largest of the errors; infinite if a case was never measured."""
    lines = [["", "predicted images/s", "measured", "error", "least to most"]]
    worst = 0.0
    for case in cases:
        figures = [one[case] for one in measured if case in one]
        if not figures:
            lines.append([case.name, "", "failed", "", ""])
            worst = float("inf")
            continue
        errors = [one.error for one in figures]
        error = statistics.median(errors)
        worst = max(worst, abs(error))
        lines.append(
            [
                case.name,
                f"{statistics.median(one.predicted for one in figures):,.0f}",
                f"{statistics.median(one.measured for one in figures):,.0f}",
                f"{error:+.1%}",
                f"{min(errors):+.1%} to {max(errors):+.1%}",
            ]
        )
    return lines, worst


def main() -> int:
    parser = parser_for("bench.plan", __doc__, default_rounds=2)
    parser.add_argument("--net", choices=list(SHAPES), default="lenet")
    parser.add_argument("--modes", nargs="+", default=["sync", "async", "easgd"])
    parser.add_argument("--workers", nargs="+", type=whole, default=[1, 2], metavar="N")
    parser.add_argument("--local-steps", nargs="+", type=whole, default=[1], metavar="N")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--megabits", type=whole, default=1000, metavar="N", help="of each cable")
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="of each run")
    asked = parser.parse_args()
    end_by_signals()
    _, say = heading("bench.plan")
    tools = all(map(shutil.which, ("ip", "tc")))
    if "link" in asked.places and (os.geteuid() != 0 or not tools):
        raise SystemExit("place link needs root, ip and tc; leave it out with --places here redis")
    cases = [
        Case(place, mode, workers, steps)
        for place in asked.places
        for steps in asked.local_steps
        for mode in asked.modes
        for workers in asked.workers
    ]
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        work = work_of_packets(asked.megabits, say) if "link" in asked.places else 0.0
        net = Bench.make(asked.net, Path(folder) / asked.net)
        bed = Bed(net, asked.seconds, asked.megabits, work)
        calibrations = calibrate(bed, cases, say)
        guesses = {case: bed.expect(case, calibrations[case.place]) for case in cases}
        measured = [measure_round(bed, guesses, calibrations, say) for _ in range(asked.rounds)]
    write = table.markdown if asked.markdown else table.text
    lines, worst = report(cases, measured)
    verdict = "within" if worst <= GOOD else "not within"
    print(
        f"\n{asked.net}, links of {asked.megabits} Mbit/s: medians of {rounds(asked.rounds)} of {asked.seconds:g} s\n\n"
        f"{write(lines)}\n\nThe largest error is {worst:.1%}, {verdict} {GOOD:.0%}."
    )
    return 0 if worst <= GOOD else 1


if __name__ == "__main__":
    sys.exit(main())
