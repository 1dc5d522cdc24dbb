"""A cluster in which random faults happen again and again, beside the same cluster undisturbed.

    python -m bench.kills [--minutes 20] [--mode sync async easgd] [--script] [--workers 8] [--hosts 4]
                          [--every 5 | --faults 125] [--only master link] [--seed 1] [--keep FOLDER]

As root. Hosts are network namespaces: one with `speedo master`, and on each a `speedo worker` with its part of the
workers, which a loop of the shell starts again, as systemd would. LeNet over made-up records, or with `--script` a
LeNet of PyTorch in a script. Faults come by a seeded Poisson process, every `--every` seconds on average, or `--faults`
an hour. SIGKILL gets a worker (of a script: the script's process), the master's process, Redis, Ray's GCS, a raylet,
what keeps a host's workers, a host's command, a server, or all that runs on a host; `frozen` is a worker that gets
SIGSTOP, and goes on after 20 s if it is still there; `link` takes a host off the network for 20 s. The host of the
master stays, and so does `speedo master` itself. `notice`, which is there with `--only` alone, is SIGTERM to a host's
command, which has 30 s to hand in what it has; the loop starts another one then.

Goodput: records that were merged and not undone, against the undisturbed run, for the same wall time. A pause is the
longest time without a merge after a fault; faults during a pause are part of it. What a fault has `lost` are the
seconds that the undisturbed run would not have needed for the records until the next one. It is `back` once all workers
are in the run again. A second table has the speed by the number of workers that were in the run. Nobody helps: status 1
if the run ends, breaks a promise (by tests/support/invariants.py; a script also by a record that is not trained exactly
once in an epoch that is over), or has a goodput below `--target`.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from bench.support import table
from bench.support.figures import MeasureError
from bench.support.machine import heading
from bench.support.processes import MARK, child, end_by_signals, last_words, processes
from bench.support.runs import START_S
from bench.support.timed import FIRST_TURNS, Follower
from speedo.master.reasons import RUN_OVER
from speedo.run_dir.directory import CHECKPOINTS, METRICS
from tests.support.bundled_nets import Bench
from tests.support.invariants import broken, read_lines
from tests.support.network import Host, network

KINDS: Final = ("worker", "master", "redis", "GCS", "raylet", "keeper", "host command")
OTHERS: Final = ("host", "frozen", "link", "server")
NOTICE: Final = "notice"
NOTICE_S: Final = 30.0  # as of Google and Azure
AWAY_S: Final = 20.0  # frozen, or off the network
SCRIPT: Final = Path(__file__).with_name("support") / "own_loop_script.py"
RECORDS: Final = 6400  # of the script
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
    """One fault, `at` seconds after the begin, when `records` were merged; `pause` is None within that of another.

    `back_s` is the time until all workers were in the run again, None if none was seen to be missing.
    """

    kind: str
    at: float
    records: int
    pause: float | None = None
    missed: bool = False
    back_s: float | None = None


@dataclass
class Seen:
    """What was seen of a run: records merged in `seconds`, what was killed, and what went wrong.

    `present_s` has the seconds in which so many workers were in the run, `merged` the records merged meanwhile.
    `unmerged` counts the results that were not merged, by decision; `left_out` are their records that nobody trains
    again, `again` those that somebody did.
    """

    seconds: float = 0.0
    records: int = 0
    kills: list[Kill] = field(default_factory=list)
    present_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    merged: Counter[int] = field(default_factory=Counter)
    restarts: int = 0
    unmerged: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    again: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return self.records / self.seconds

    @property
    def present(self) -> float:
        """Workers in the run, on average."""
        return sum(count * seconds for count, seconds in self.present_s.items()) / self.seconds

    def look(self, now: float, here: int, workers: int) -> None:
        """So many of the `workers` are in the run, `now` seconds after the begin."""
        for one in self.kills:
            one.missed |= here < workers
            if one.missed and one.back_s is None and here == workers:
                one.back_s = now - one.at

    def count(self, lines: Sequence[dict[str, Any]]) -> None:
        """Take from the run's log what was not merged before its end."""
        for line in lines:
            if line["event"] == "result" and line["decision"] != "merged":
                self.unmerged[line["decision"]] += line["reason"] != RUN_OVER
            elif line["event"] == "finish":
                self.left_out, self.again = line["left_out"], line["trained_again"]


class Faults:
    """What can happen to the hosts of one run, and what ends by itself after a while."""

    def __init__(
        self, chance: random.Random, mark: str, kinds: Sequence[str], hosts: Sequence[Host]
    ) -> None:
        self._chance, self._mark, self._kinds, self._hosts = chance, mark, kinds, hosts
        self._ends: list[tuple[float, Callable[[], object]]] = []
        self._away = set[str]()

    def happen(self, now: float) -> str | None:
        """A fault of a random kind; the kind, or None if there is nothing that it could befall now."""
        for kind in self._chance.sample(self._kinds, len(self._kinds)):
            if done := self._befall(kind, now):
                return done
        return None

    def end(self, now: float) -> None:
        """End those whose time is over."""
        for at, undo in [one for one in self._ends if one[0] <= now]:
            undo()
            self._ends.remove((at, undo))

    def _befall(self, kind: str, now: float) -> str | None:
        others = [one for one in self._hosts[1:] if one.name not in self._away]
        if kind in ("host", "link"):
            if not others:
                return None
            host = self._chance.choice(others)
            if kind == "host":
                host.kill_all()
                return kind
            host.pull_the_cable()
            self._away.add(host.name)
            self._ends.append((now + AWAY_S, partial(self._plug_in, host)))
            return kind
        name = {"frozen": "worker", NOTICE: "host command"}.get(kind, kind)
        victims = sorted(processes(name, self._mark), key=lambda one: one.pid)
        if not victims:
            return None
        with suppress(psutil.NoSuchProcess):
            victim = self._chance.choice(victims)
            if kind == "frozen":
                victim.suspend()
                self._ends.append((now + AWAY_S, partial(_resume, victim)))
                return kind
            if kind == NOTICE:
                victim.terminate()
                return kind
            is_head = kind == "raylet" and HEAD in victim.cmdline()
            victim.kill()
            return "raylet of the head" if is_head else kind
        return None

    def _plug_in(self, host: Host) -> None:
        host.plug_in_again()
        self._away.discard(host.name)


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()


@contextmanager
def cluster(
    asked: argparse.Namespace, mode: str, folder: Path, mark: str
) -> Iterator[tuple[subprocess.Popen[str], Path, list[Host]]]:
    """The command of the master, its run directory and the hosts, while they train with it."""
    run_dir = folder / "run"
    if asked.script:
        trained = ("--own", "--local-steps", "10")[: 1 if mode == "sync" else 3]
        script: tuple[str, ...] = ("--", sys.executable, str(SCRIPT), "--seconds", "1e9")
    else:
        net = Bench.make("lenet", folder / "net")
        trained = (
            str(net.solver(net.batch)),
            "--max-iter",
            "100000000",
            "--test-interval",
            "0",
            "--device",
            "cpu",
        )
        script = ()
    environment = {
        MARK: mark, "SPEEDO_TOKEN_FILE": str(folder / "token"), "SPEEDO_RUNTIME_DIR": str(folder / "runtime"),
    }  # fmt: skip
    speedo = (sys.executable, "-m", "speedo")
    with ExitStack() as stack:
        hosts: list[Host] = stack.enter_context(network(asked.hosts))
        chief = hosts[0]
        master = [
            *chief.inside, *speedo, "master", *trained, "--host", chief.address, "--mode", mode,
            "--workers", str(asked.workers), "--seed", "1", "--run-dir", str(run_dir),
            "--checkpoint-interval", str(asked.checkpoint_interval), *FOR_EVER, "--servers", asked.servers,
        ]  # fmt: skip
        log = stack.enter_context((folder / "master.log").open("w"))
        command = stack.enter_context(child(master, log=log, environment=environment))
        for number, host in enumerate(hosts):
            part = asked.workers // asked.hosts + (number < asked.workers % asked.hosts)
            words = (
                "worker",
                "--master",
                chief.address,
                "--workers",
                str(part),
                "--timeout",
                "300",
                "--grace",
                str(NOTICE_S),
            )
            loop = ["sh", "-c", AGAIN, "sh", *host.inside, *speedo, *words, *script]
            out = stack.enter_context((folder / f"host-{number}.log").open("w"))
            stack.enter_context(child(loop, log=out, environment=environment))
        yield command, run_dir, hosts
        if command.poll() is None:
            command.send_signal(signal.SIGINT)
            command.wait(END_S)
        else:
            raise MeasureError(f"the run ended with {command.returncode}: {last_words(log)}")


def run(asked: argparse.Namespace, mode: str, folder: Path, chance: random.Random | None) -> Seen:
    """One run, with faults if there is `chance`."""
    folder.mkdir()
    mark, seen = os.urandom(8).hex(), Seen()
    with cluster(asked, mode, folder, mark) as (command, run_dir, hosts):
        follower = Follower(run_dir)
        # A team reports for its workers by its leader alone.
        follower.wait(command, lambda: follower.total() >= FIRST_TURNS * asked.workers, 2 * START_S)
        follower.wait(command, lambda: any((run_dir / CHECKPOINTS).glob("*")))
        began = merged_at = time.monotonic()
        first = done = follower.samples
        before, looked = follower.seconds, began
        end = began + 60 * asked.minutes
        next_kill = end if chance is None else began + chance.expovariate(1 / asked.every)
        faults = None if chance is None else Faults(chance, mark, asked.only, hosts)
        while (now := time.monotonic()) < end and command.poll() is None:
            time.sleep(LOOK_S)
            here = len(follower.here)
            follower.read()
            seen.look(now - began, here, asked.workers)
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
            if faults is not None:
                faults.end(now)
            if chance is not None and faults is not None and now >= next_kill:
                next_kill = now + chance.expovariate(1 / asked.every)
                if (kind := faults.happen(now)) is not None:
                    during = now - merged_at >= STALL_S  # the pause of the kill before lasts
                    seen.kills.append(
                        Kill(kind, now - began, done - first, None if during else 0.0)
                    )
        seen.seconds, seen.records = time.monotonic() - began, follower.samples - first
    lines = read_lines(run_dir / METRICS)
    seen.restarts = sum(line["event"] == "resumed" for line in lines)
    seen.count(lines)
    seen.problems = broken(lines, None, gap_s=LONGEST_S)
    if asked.script:  # which says no loss
        seen.problems = [one for one in seen.problems if "the loss of ticket" not in one]
        seen.problems += records_not_once(lines)
    return seen


def records_not_once(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What is not so of the epochs of a script that are over, each record trained once; none that was undone counts."""
    undone = {0: sys.maxsize}  # by epoch of the run: merges behind this version are
    for line in lines:
        if line["event"] == "resumed":
            undone = {begun: min(version, line["version"]) for begun, version in undone.items()}
            undone[line["epoch"]] = sys.maxsize
    epoch, times = 0, Counter[tuple[int, int]]()
    for line in lines:
        if line["event"] == "resumed":
            epoch = line["epoch"]
        elif (
            line["event"] == "result"
            and line["decision"] == "merged"
            and line["version"] <= undone[epoch]
        ):
            for number, start, stop in line.get("records", ()):
                times.update((number, place) for place in range(start, stop))
    last = max((number for number, _ in times), default=0)
    for number in range(last - 1):
        found = [times[number, place] for place in range(RECORDS)]
        if set(found) != {1}:
            twice = sum(one > 1 for one in found)
            yield f"epoch {number}: {found.count(0)} of {RECORDS} records are not trained, {twice} twice or more"


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
        back = [found for at in those if (found := seen.kills[at].back_s) is not None]
        each = f"{own / len(those):.1f}" if those else ""
        yield [
            f"{mode}, {kind}",
            str(len(those)),
            f"{own:.1f}",
            each,
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--mode", nargs="+", default=["sync", "async", "easgd"])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--script", action="store_true", help="train a PyTorch script")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--hosts", type=int, default=2, metavar="N")
    often = parser.add_mutually_exclusive_group()
    often.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="mean time between faults"
    )
    often.add_argument("--faults", type=float, metavar="N", help="faults in an hour")
    parser.add_argument("--only", nargs="+", choices=(*KINDS, *OTHERS, NOTICE), metavar="KIND")
    parser.add_argument("--servers", default="0", metavar="K")
    parser.add_argument("--checkpoint-interval", type=float, default=5.0, metavar="S")
    parser.add_argument("--target", type=float, default=0.88, metavar="GOODPUT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run folders and logs here")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    asked.every = 3600 / asked.faults if asked.faults else asked.every
    asked.only = asked.only or [*KINDS, *OTHERS[: 3 + (asked.servers != "0")]]
    end_by_signals()
    heading("bench.kills")
    lines = [
        [
            "",
            "faults",
            "lost, s",
            "each",
            "median pause, s",
            "90 %",
            "worst",
            "median back, s",
            "worst",
        ]
    ]
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
                f"{len(seen.kills)} faults in {seen.seconds:.0f} s, "
                f"{seen.present:.2f} of {asked.workers} workers there ({calm.present:.2f} undisturbed), "
                f"{seen.restarts} restarts of the master, "
                f"{len(seen.problems)} broken promises",
                flush=True,
            )
            found = ", ".join(f"{count} {name}" for name, count in seen.unmerged.items() if count)
            print(
                f"  results not merged: {found or 'none'}; "
                f"records left out {seen.left_out}, trained again {seen.again}",
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
