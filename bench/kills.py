"""A cluster in which random faults happen again and again, beside the same cluster undisturbed.

    python -m bench.kills [--minutes 20] [--mode sync async easgd] [--script | --all] [--workers 8] [--hosts 4]
                          [--every 5 | --faults 125] [--only master link] [--standby] [--calm-minutes 3] [--seeds 3]
                          [--step-ms 200] [--seed 1] [--picture FILE.png] [--keep FOLDER]

As root. Hosts are network namespaces, each with a `speedo worker` and its part of the workers; on the first is also
`speedo master`. A command that has ended is started again a second later, as systemd would. It trains the bundled
LeNet on Fashion-MNIST with `--data-share once`, or with `--script` a LeNet of PyTorch in a script; `--all` is a solver
in sync, async and easgd, and a script in sync and easgd. Faults come by a seeded Poisson process, every `--every`
seconds on average, or `--faults` an hour. SIGKILL gets a worker (of a script: the script's process), the master's
process, Redis, Ray's GCS, a raylet, what keeps a host's workers, a host's command, `speedo master` itself (`command`,
which goes on from the newest checkpoint with --resume), a server, or all that runs on a host that is not the master's.
`frozen` is a worker that gets SIGSTOP, and goes on after 20 s if it is still there; `link` takes a host off the network
for 20 s.

With `--standby` Redis is on a machine of its own and a second host follows as standby: it takes over after `command`
and after `machine of the master`, which kills all that runs there; then another standby starts on the machine that is
free.

`notice`, which is there with `--only` alone, is SIGTERM to a host's command, which is killed 30 s later; another one in
its place starts at once, as a cloud's scheduler does it. The workers of the first train on for 20 s (`--leave-after`).

All hosts share the cores of this machine: what starts on one slows down the others, as it would not in a cluster. With
`--step-ms` each step takes so long at least, as on a device that computes while its process waits.

The undisturbed run may be shorter: a rate is all that is needed of it. Goodput: records that were merged and not
undone, against that rate; while more than `--workers` are there, as beside one that is to leave, only their share. A
pause is the longest time without a merge after a fault; faults during a pause are part of it. What a fault has `lost`
are the seconds that the undisturbed run would not have needed for the records until the next one. It is `back` once all
workers are in the run again; `missing` are the seconds of all workers together that were not. Of each epoch that is
over the log has records `lost`, that nobody trained, or `repeated`. `simulated` is the goodput that the simulator has
with the same faults, each as long as the median of its kind. The accuracy is that of the model at the end; with
`--seeds N` there are N undisturbed runs, for its spread: let them be as long (`--calm-minutes`). Nobody helps: status 1
if the run ends, breaks a promise (by tests/support/invariants.py, or by a record that is not trained exactly once), or
has a goodput below `--target`.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.support import table
from bench.support.fault_books import Kill, Seen
from bench.support.fault_cluster import Cluster, cluster
from bench.support.fault_kinds import KINDS, MACHINE, NOTICE, SERVER
from bench.support.faults import Faults
from bench.support.figures import MeasureError
from bench.support.machine import heading
from bench.support.processes import end_by_signals
from bench.support.runs import START_S, result_of
from bench.support.simulated_faults import simulated_goodput
from bench.support.timed import FIRST_TURNS, Follower
from speedo.run_dir.directory import CHECKPOINTS, METRICS, SCRIPT_MODEL
from tests.support.invariants import broken, read_lines

MODES: Final = ("sync", "async", "easgd")
ALL: Final = (*((mode, False) for mode in MODES), ("sync", True), ("easgd", True))
RECORDS: Final = {False: 60_000, True: 6400}  # of an epoch; of a script
LOOK_S: Final = 0.02
POINT_S: Final = 1.0  # between two points of the picture
STALL_S: Final = 2.0  # without a merge: longer than a team takes for a report
LONGEST_S: Final = 300.0  # without a merge: somebody would have to help
SPEED_POINTS: Final = 5  # of the picture, for a speed
HEADING: Final = [
    *("", "faults", "lost, s", "each", "missing each, s"),
    *("median pause, s", "90 %", "worst", "median back, s", "worst"),
]
BY_WORKERS: Final = ["workers", "of the time", "records/s", "of undisturbed"]
TOTALS: Final = [
    *(
        "",
        "goodput",
        "simulated",
        "records/s",
        "faults",
        "workers there",
        "records lost",
        "repeated",
    ),
    *("broken promises", "accuracy", "undisturbed"),
]


def run(
    asked: argparse.Namespace,
    mode: str,
    folder: Path,
    seed: int,
    minutes: float,
    chance: random.Random | None = None,
) -> Seen:
    """One run, with faults if there is `chance`."""
    folder.mkdir()
    mark = os.urandom(8).hex()
    with cluster(asked, mode, seed, folder, mark) as there:
        follower = Follower(there.run_dir)
        # A team reports for its workers by its leader alone.
        enough = FIRST_TURNS * asked.workers
        follower.wait(there.master, lambda: follower.total() >= enough, 2 * START_S)
        follower.wait(there.master, lambda: any((there.run_dir / CHECKPOINTS).glob("*")))
        faults = None if chance is None else Faults(chance, mark, asked, there)
        seen = watch(asked, there, follower, 60 * minutes, faults)
        goes_on(there)
        there.end()
        run_dir = there.run_dir
    lines = read_lines(run_dir / METRICS)
    # A log of records says no loss.
    broken_ones = broken(lines, None, gap_s=LONGEST_S)
    seen.problems += [
        one for one in broken_ones if not (asked.script and "the loss of ticket" in one)
    ]
    seen.count(lines, RECORDS[asked.script])
    if asked.script:
        from bench.support.own_loop_script import accuracy  # PyTorch takes some seconds

        seen.accuracy = accuracy(run_dir / SCRIPT_MODEL)
    else:
        seen.accuracy = float(result_of(run_dir)["accuracy"])
    return seen


def watch(
    asked: argparse.Namespace,
    there: Cluster,
    follower: Follower,
    seconds: float,
    faults: Faults | None,
) -> Seen:
    """Look at the run for some seconds, and let faults happen."""
    seen = Seen()
    began = looked = merged_at = time.monotonic()
    first = done = follower.samples
    before, former = follower.seconds, -1
    while (now := time.monotonic()) < began + seconds:
        time.sleep(LOOK_S)
        # Nobody is in a run whose master's command is gone, until another one has taken it up.
        here = len(follower.here) if follower.resumptions > former else 0
        if moved := there.look(now):
            former, follower = follower.resumptions, Follower(there.run_dir)
        follower.read()
        before = follower.seconds if moved else before
        seen.look(now - began, here, asked.workers, now - looked)
        seen.present_s[here] += now - looked
        seen.merged[here] += follower.samples - done
        looked, done = now, follower.samples
        if now - began >= POINT_S * len(seen.points):
            seen.points.append((now - began, here, done - first))
        if follower.seconds != before:
            merged_at, before = now, follower.seconds
        paused = [one for one in seen.kills if one.pause is not None]
        if paused:
            paused[-1].pause = max(paused[-1].pause or 0.0, now - merged_at)
        if now - merged_at > LONGEST_S:
            raise MeasureError(f"nothing was merged for {LONGEST_S:.0f} s; see {there.log}")
        if faults is not None and (kind := faults.happen(now)) is not None:
            during = now - merged_at >= STALL_S  # the pause of the kill before lasts
            seen.kills.append(Kill(kind, now - began, done - first, None if during else 0.0))
    seen.seconds, seen.records = time.monotonic() - began, done - first
    return seen


def goes_on(there: Cluster) -> None:
    """Wait until a result is merged: what has no master yet could not export its model."""
    follower, merged = Follower(there.run_dir), None
    deadline = time.monotonic() + LONGEST_S
    while merged is None or follower.seconds == merged:
        if there.look(now := time.monotonic()):
            follower, merged = Follower(there.run_dir), None
        follower.read()
        merged = follower.seconds if merged is None else merged
        if now > deadline:
            raise MeasureError(f"nothing was merged for {LONGEST_S:.0f} s; see {there.log}")
        time.sleep(LOOK_S)


def lost(kills: Sequence[Kill], seen: Seen, calm: float) -> list[float]:
    """The seconds that each kill has lost, up to the next one, of a run that has `calm` records/s undisturbed."""
    ends = [(one.at, one.records) for one in kills[1:]] + [(seen.seconds, seen.records)]
    return [
        (at - one.at) - (records - one.records) / calm
        for one, (at, records) in zip(kills, ends, strict=True)
    ]


def told(name: str, seen: Seen, calm: float) -> Iterator[list[str]]:
    """The lines of the first table for this run."""
    costs = lost(seen.kills, seen, calm)
    for kind in ("all", *sorted({one.kind for one in seen.kills})):
        those = [at for at, one in enumerate(seen.kills) if kind in ("all", one.kind)]
        own = sum(costs[at] for at in those)
        missing = sum(seen.kills[at].missing_s for at in those)
        pauses = [pause for at in those if (pause := seen.kills[at].pause) is not None]
        back = [found for at in those if (found := seen.kills[at].back_s) is not None]
        yield [
            f"{name}, {kind}",
            str(len(those)),
            f"{own:.1f}",
            *(f"{one / len(those):.1f}" if those else "" for one in (own, missing)),
            *figures(pauses),
            *figures(back)[::2],
        ]


def by_workers(mode: str, seen: Seen, calm: float) -> Iterator[list[str]]:
    """The lines of the second table for this mode."""
    for count, seconds in sorted(seen.present_s.items(), reverse=True):
        share, speed = seconds / seen.seconds, seen.merged[count] / seconds
        yield [f"{mode}, {count}", f"{share:.1%}", f"{speed:,.0f}", f"{speed / calm:.1%}"]


def figures(pauses: Sequence[float]) -> tuple[str, ...]:
    """Median, 90 % and worst."""
    if not pauses:
        return ("", "", "")
    ordered = sorted(pauses)
    most = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return tuple(f"{one:.1f}" for one in (statistics.median(ordered), most, ordered[-1]))


def simulated(mode: str, workers: int, hosts: int, seen: Seen, calm: float) -> float:
    """The goodput that the simulator has with these faults."""
    lasted = [  # one that has a notice is there for a while
        one.missing_s * hosts / workers if one.kind == NOTICE else one.back_s or one.pause or 0.0
        for one in seen.kills
    ]
    faults = [(one.kind, one.at, took) for one, took in zip(seen.kills, lasted, strict=True)]
    return simulated_goodput(mode, workers, hosts, calm, seen.seconds, faults)


def total(
    name: str, workers: int, seen: Seen, calm: Sequence[Seen], in_simulation: float
) -> list[str]:
    """The line of the last table for this run, beside the undisturbed ones."""
    accuracies = sorted({f"{one.accuracy:.4f}" for one in calm})
    return [
        name,
        f"{seen.goodput(workers, calm[0].speed):.1%}",
        f"{in_simulation:.1%}",
        f"{seen.speed:,.0f} of {calm[0].speed:,.0f}",
        str(len(seen.kills)),
        f"{seen.present / workers:.1%}",
        str(seen.lost),
        str(seen.repeated),
        str(len(seen.problems)),
        f"{seen.accuracy:.4f}",
        " to ".join(dict.fromkeys((accuracies[0], accuracies[-1]))),
    ]


def draw(path: Path, workers: int, runs: Mapping[str, Seen]) -> None:
    """A PNG with a panel for each run: workers in the run and records/s over time, and a mark for each fault."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (12, 3 * len(runs))
    figure, panels = pyplot.subplots(
        len(runs), 1, figsize=size, layout="constrained", squeeze=False
    )
    kinds = sorted({one.kind for seen in runs.values() for one in seen.kills})
    for (name, seen), panel in zip(runs.items(), panels[:, 0], strict=True):
        seconds, here, records = zip(*seen.points, strict=True)
        panel.step(seconds, here, where="pre", color="tab:blue")
        panel.set(title=name, ylabel="workers", ylim=(-0.2, 1.3 * workers), xlim=(0, seen.seconds))
        speed = panel.twinx()
        ends = range(SPEED_POINTS, len(seconds))
        rates = [
            (records[end] - records[end - SPEED_POINTS])
            / (seconds[end] - seconds[end - SPEED_POINTS])
            for end in ends
        ]
        speed.plot([seconds[end] for end in ends], rates, color="tab:orange", linewidth=0.8)
        speed.set(ylabel="records/s", ylim=(0, 1.3 * max(rates, default=1.0) or 1.0))
        for number, kind in enumerate(kinds):
            at = [one.at for one in seen.kills if one.kind == kind]
            color = f"C{number % 10}"
            panel.plot(at, [1.2 * workers] * len(at), "v^"[number // 10], color=color, label=kind)
    panels[-1, 0].set(xlabel="seconds")
    panels[0, 0].legend(loc="lower right", ncols=4, fontsize="x-small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--minutes", type=float, default=20.0)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--script", action="store_true", help="train a PyTorch script")
    what.add_argument("--all", action="store_true", help="a solver, and a script, in their modes")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--hosts", type=int, default=2, metavar="N")
    often = parser.add_mutually_exclusive_group()
    often.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="mean time between faults"
    )
    often.add_argument("--faults", type=float, metavar="N", help="faults in an hour")
    kinds = (*KINDS, MACHINE, SERVER, NOTICE)
    parser.add_argument("--only", nargs="+", choices=kinds, metavar="KIND")
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--step-ms", type=float, default=0.0, metavar="MS", help="at least, a step")
    parser.add_argument("--servers", default="0", metavar="K")
    parser.add_argument("--checkpoint-interval", type=float, default=5.0, metavar="S")
    parser.add_argument("--target", type=float, default=0.88, metavar="GOODPUT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="undisturbed runs")
    parser.add_argument("--calm-minutes", type=float, metavar="M", help="at most 3 by default")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run folders and logs here")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    serves = asked.servers != "0"
    if asked.standby and (serves or asked.hosts < 2):
        parser.error("--standby needs two hosts or more, and no --servers")
    asked.every = 3600 / asked.faults if asked.faults else asked.every
    asked.only = asked.only or [*KINDS, *[MACHINE] * asked.standby, *[SERVER] * serves]
    calm_minutes = min(asked.minutes, 3.0) if asked.calm_minutes is None else asked.calm_minutes
    end_by_signals()
    heading("bench.kills")
    tables: list[table.Table] = [[HEADING], [BY_WORKERS], [TOTALS]]
    runs, failed = dict[str, Seen](), False
    with ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for mode, script in ALL if asked.all else [(one, asked.script) for one in asked.mode]:
            asked.script = script
            name = f"{'script' if asked.script else 'solver'} {mode}"
            stem = folder / name.replace(" ", "-")
            seeds = range(asked.seed, asked.seed + asked.seeds)
            try:
                calm = [
                    run(asked, mode, Path(f"{stem}-calm-{one}"), one, calm_minutes) for one in seeds
                ]
                chance = random.Random(asked.seed)
                seen = run(asked, mode, Path(f"{stem}-kills"), asked.seed, asked.minutes, chance)
            except MeasureError as error:
                print(f"{name}: {error}", flush=True)
                failed = True
                continue
            runs[name] = seen
            goodput = seen.goodput(asked.workers, calm[0].speed)
            print(
                f"{name}: goodput {goodput:.1%} ({seen.speed:,.0f} of {calm[0].speed:,.0f} records/s), "
                f"{len(seen.kills)} faults in {seen.seconds:.0f} s, "
                f"{seen.present:.2f} of {asked.workers} workers there ({calm[0].present:.2f} undisturbed), "
                f"{seen.restarts} restarts of the master",
                flush=True,
            )
            found = ", ".join(f"{count} {name}" for name, count in seen.unmerged.items() if count)
            print(f"  results not merged: {found or 'none'}", flush=True)
            problems = [one for each in (*calm, seen) for one in each.problems]
            for problem in problems[:10]:
                print(f"  {problem}", flush=True)
            tables[0] += told(name, seen, calm[0].speed)
            tables[1] += by_workers(name, seen, calm[0].speed)
            sizes = asked.workers, asked.hosts
            in_simulation = simulated(mode, *sizes, seen, calm[0].speed)
            tables[2].append(total(name, asked.workers, seen, calm, in_simulation))
            failed |= goodput < asked.target or bool(problems)
    write = table.markdown if asked.markdown else table.text
    print("\n" + "\n\n".join(write(one) for one in tables))
    if asked.picture is not None and runs:
        draw(asked.picture, asked.workers, runs)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
