"""A cluster in which a random process is killed again and again, beside the same cluster undisturbed.

    python -m bench.kills [--minutes 20] [--mode sync async easgd] [--every 5] [--only master] [--keep FOLDER]

As root. Two hosts are network namespaces: one with `speedo master`, and on each a `speedo worker` with two workers,
which a loop of the shell starts again, as systemd would. LeNet over made-up records. After exponentially distributed
pauses with the mean `--every` one process gets SIGKILL: a worker, the master's process, Redis, Ray's GCS, a raylet,
what keeps a host's workers, a host's command, or a server. `speedo master` itself is not killed.

Goodput: records that were merged and not undone, against the undisturbed run, for the same wall time. A pause is the
longest time without a merge after a kill; kills during a pause are part of it. What a kill has `lost` are the seconds
that the undisturbed run would not have needed for the records until the next kill. A second table has the speed by the
number of workers that were in the run. Nobody helps: status 1 if the run ends, breaks a promise (by
tests/support/invariants.py), or has a goodput below `--target`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from bench.support import table
from bench.support.figures import MeasureError
from bench.support.machine import heading
from bench.support.processes import MARK, child, end_by_signals, last_words, processes
from bench.support.runs import START_S
from bench.support.timed import FIRST_TURNS, Follower
from speedo.run_dir.directory import CHECKPOINTS, METRICS
from tests.support.bundled_nets import Bench
from tests.support.invariants import broken, read_lines
from tests.support.network import Host, network

KINDS: Final = ("worker", "master", "redis", "GCS", "raylet", "keeper", "host command")
WORKERS: Final = 4
LOOK_S: Final = 0.02
HEAD: Final = "--head"  # of a raylet
STALL_S: Final = 2.0  # without a merge: longer than a team takes for a report
LONGEST_S: Final = 300.0  # without a merge: somebody would have to help
END_S: Final = 120.0
AGAIN: Final = 'until "$@"; do sleep 1; done'
FOR_EVER: Final = (
    "--restarts",
    "1000000",
    "--restarts",
    "master_restarts=1000000",
    "--timeout",
    "300",
)


@dataclass
class Kill:
    """One kill, `at` seconds after the begin, when `records` were merged; `pause` is None within that of another."""

    kind: str
    at: float
    records: int
    pause: float | None = None


@dataclass
class Seen:
    """What was seen of a run: records merged in `seconds`, what was killed, and what went wrong.

    `present_s` has the seconds in which so many workers were in the run, `merged` the records merged meanwhile.
    """

    seconds: float = 0.0
    records: int = 0
    kills: list[Kill] = field(default_factory=list)
    present_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    merged: Counter[int] = field(default_factory=Counter)
    restarts: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return self.records / self.seconds


@contextmanager
def cluster(
    asked: argparse.Namespace, mode: str, folder: Path, mark: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The command of the master and its run directory, while two hosts train with it."""
    run_dir, net = folder / "run", Bench.make("lenet", folder / "net")
    environment = {
        MARK: mark, "SPEEDO_TOKEN_FILE": str(folder / "token"), "SPEEDO_RUNTIME_DIR": str(folder / "runtime"),
    }  # fmt: skip
    speedo = (sys.executable, "-m", "speedo")
    with ExitStack() as stack:
        hosts: list[Host] = stack.enter_context(network(2))
        chief = hosts[0]
        master = [
            *chief.inside, *speedo, "master", str(net.solver(net.batch)), "--host", chief.address, "--mode", mode,
            "--workers", str(WORKERS), "--max-iter", "100000000", "--test-interval", "0", "--seed", "1", "--device",
            "cpu", "--run-dir", str(run_dir), "--checkpoint-interval", str(asked.checkpoint_interval), *FOR_EVER,
            "--servers", asked.servers,
        ]  # fmt: skip
        log = stack.enter_context((folder / "master.log").open("w"))
        command = stack.enter_context(child(master, log=log, environment=environment))
        for number, host in enumerate(hosts):
            words = ("worker", "--master", chief.address, "--workers", str(WORKERS // 2))
            loop = ["sh", "-c", AGAIN, "sh", *host.inside, *speedo, *words, "--timeout", "300"]
            out = stack.enter_context((folder / f"host-{number}.log").open("w"))
            stack.enter_context(child(loop, log=out, environment=environment))
        yield command, run_dir
        if command.poll() is None:
            command.send_signal(signal.SIGINT)
            command.wait(END_S)
        else:
            raise MeasureError(f"the run ended with {command.returncode}: {last_words(log)}")


def run(asked: argparse.Namespace, mode: str, folder: Path, chance: random.Random | None) -> Seen:
    """One run, with kills if there is `chance`."""
    folder.mkdir()
    mark, seen = os.urandom(8).hex(), Seen()
    with cluster(asked, mode, folder, mark) as (command, run_dir):
        follower = Follower(run_dir)
        # A team reports for its workers by its leader alone.
        follower.wait(command, lambda: follower.total() >= FIRST_TURNS * WORKERS, 2 * START_S)
        follower.wait(command, lambda: any((run_dir / CHECKPOINTS).glob("*")))
        began = merged_at = time.monotonic()
        first = done = follower.samples
        before, looked = follower.seconds, began
        end = began + 60 * asked.minutes
        next_kill = end if chance is None else began + chance.expovariate(1 / asked.every)
        while (now := time.monotonic()) < end and command.poll() is None:
            time.sleep(LOOK_S)
            here = len(follower.here)
            follower.read()
            seen.present_s[here] += now - looked
            seen.merged[here] += follower.samples - done
            looked, done = now, follower.samples
            if follower.seconds != before:
                merged_at, before = now, follower.seconds
            paused = [one for one in seen.kills if one.pause is not None]
            if paused:
                paused[-1].pause = max(paused[-1].pause or 0.0, now - merged_at)
            if now - merged_at > LONGEST_S:
                raise MeasureError(f"nothing was merged for {LONGEST_S:.0f} s")
            if chance is not None and now >= next_kill:
                next_kill = now + chance.expovariate(1 / asked.every)
                if (kind := kill(chance, mark, asked.only)) is not None:
                    during = now - merged_at >= STALL_S  # the pause of the kill before lasts
                    seen.kills.append(
                        Kill(kind, now - began, done - first, None if during else 0.0)
                    )
        seen.seconds, seen.records = time.monotonic() - began, follower.samples - first
    lines = read_lines(run_dir / METRICS)
    seen.restarts = sum(line["event"] == "resumed" for line in lines)
    seen.problems = broken(lines, None, gap_s=LONGEST_S)
    return seen


def kill(chance: random.Random, mark: str, kinds: Sequence[str]) -> str | None:
    """Kill one process of a random kind; the kind, or None if there is nothing to kill now."""
    for kind in chance.sample(kinds, len(kinds)):
        if victims := sorted(processes(kind, mark), key=lambda one: one.pid):
            with suppress(psutil.NoSuchProcess):
                victim = chance.choice(victims)
                is_head = kind == "raylet" and HEAD in victim.cmdline()
                victim.kill()
                return "raylet of the head" if is_head else kind
    return None


def lost(kills: Sequence[Kill], seen: Seen, calm: float) -> list[float]:
    """The seconds that each kill has lost, up to the next one, of a run that has `calm` records/s undisturbed."""
    ends = [(one.at, one.records) for one in kills[1:]] + [(seen.seconds, seen.records)]
    return [
        (at - one.at) - (records - one.records) / calm
        for one, (at, records) in zip(kills, ends, strict=True)
    ]


def told(mode: str, seen: Seen, calm: float) -> Iterator[list[str]]:
    """The lines of the first table for this mode."""
    costs = lost(seen.kills, seen, calm)
    for kind in ("all", *sorted({one.kind for one in seen.kills})):
        those = [at for at, one in enumerate(seen.kills) if kind in ("all", one.kind)]
        own = sum(costs[at] for at in those)
        pauses = [pause for at in those if (pause := seen.kills[at].pause) is not None]
        each = f"{own / len(those):.1f}" if those else ""
        yield [f"{mode}, {kind}", str(len(those)), f"{own:.1f}", each, *figures(pauses)]


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--mode", nargs="+", default=["sync", "async", "easgd"])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="mean time between kills"
    )
    parser.add_argument("--only", nargs="+", choices=(*KINDS, "server"), metavar="KIND")
    parser.add_argument("--servers", default="0", metavar="K")
    parser.add_argument("--checkpoint-interval", type=float, default=5.0, metavar="S")
    parser.add_argument("--target", type=float, default=0.88, metavar="GOODPUT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run folders and logs here")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    asked.only = asked.only or [*KINDS, *(["server"] if asked.servers != "0" else [])]
    end_by_signals()
    heading("bench.kills")
    lines = [["", "kills", "lost, s", "each", "median pause, s", "90 %", "worst"]]
    speeds, failed = [["workers", "of the time", "records/s", "of undisturbed"]], False
    with ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for mode in asked.mode:
            calm = run(asked, mode, folder / f"{mode}-calm", None)
            seen = run(asked, mode, folder / f"{mode}-kills", random.Random(asked.seed))
            goodput = seen.speed / calm.speed
            print(
                f"{mode}: goodput {goodput:.1%} ({seen.speed:,.0f} of {calm.speed:,.0f} records/s), "
                f"{len(seen.kills)} kills in {seen.seconds:.0f} s, {seen.restarts} restarts of the master, "
                f"{len(seen.problems)} broken promises",
                flush=True,
            )
            for problem in [*calm.problems, *seen.problems][:10]:
                print(f"  {problem}", flush=True)
            lines += told(mode, seen, calm.speed)
            speeds += by_workers(mode, seen, calm.speed)
            failed |= goodput < asked.target or bool(seen.problems or calm.problems)
    write = table.markdown if asked.markdown else table.text
    print(f"\n{write(lines)}\n\n{write(speeds)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
