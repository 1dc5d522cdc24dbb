"""One answer of Redis is late by 0.5 to 30 s, or fails in any way: no run is lost, and none ends that could go on.

What the standby does, the lease and its renewal, the copy of the run's files, the fence, the store that repeats and
what a master takes over are the product's; Redis, network, time and Ray are simulated. The master's process is killed,
or its machine is gone, or nothing else happens.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from speedo.errors import FencedError, StoreError
from speedo.master import center as center_module
from speedo.master.driver import Limits
from speedo.run.kept_lease import KeptLease
from speedo.run.standby_copy import RunFollower
from speedo.run.standby_mirror import IDLE_S, LOOK_S, RunMirror
from speedo.run.standby_watch import StandbyWatch
from speedo.storage.conditional import Guard
from speedo.storage.lease import CALL_S, RENEW_S, MasterLease
from speedo.storage.retrying_store import Patience, RetryingStore
from tests.study.simulation.test_partitions import (
    MODES,
    RUN,
    MasterProcess,
    Run,
)
from tests.support.machines import KilledError, Link, Machine, Process
from tests.support.quick import tried
from tests.support.slow_stores import SlowLink, drawn_fault

RUNS = int(os.environ.get("SPEEDO_SLOW_STORES", tried(40)))  # `make faults` has 2,000
MANY: Final = 1000
PATIENCE_S: Final = 60.0  # as --timeout, above the longest delay
PASS_S: Final = 0.5  # how often a command looks at its master
TIMEOUT_S: Final = 5.0  # of a connection
ROLES: Final = {
    "process": ("command", "command", "master", "workers"),
    "machine": ("standby", "standby", "copy", "copy", "master"),
    "none": ("command", "master", "workers", "mirror", "standby", "copy"),
}
"""Whose answer is late, by what dies."""


class Command(Process):
    """A command with the lease of the run, which it renews in whatever it waits for, as a thread of it does."""

    def __init__(self, run: SlowRun, machine: Machine, role: str, now: float) -> None:
        super().__init__(run.works, machine, now)
        self.run = run
        self.kept: KeptLease | None = None
        self._next = 0.0
        token = str(self.number)
        self.lease = MasterLease(
            run.link(self, CALL_S, role=role),
            *(RUN, machine.name),
            patient=run.link(self, TIMEOUT_S, role=role),
            patience=Patience(PATIENCE_S, clock=self.clock, sleep=self.rest, has_worked=True),
            clock=self.clock,
            token=token,
        )

    def keep(self, lease: MasterLease, note: Callable[[str], None]) -> KeptLease:
        self.kept = KeptLease(lease, note, clock=self.clock, thread=False)
        return self.kept

    def rest(self, seconds: float) -> None:
        """Sleep, and renew the lease meanwhile."""
        end = self.now + seconds
        while True:
            if self.is_killed:
                raise KilledError
            if self.kept is not None and self.now >= self._next:
                self._next = self.now + RENEW_S
                self.kept.renew()
            if self.now >= end:
                return
            self.sleep(min(RENEW_S / 2, max(1e-3, end - self.now)))


class MirrorProcess(Process):
    """Sends the files of a run to its standby; once it `is_told`, the last ones."""

    is_told = False
    problem = ""


class SlowRun(Run):
    """A run of this mode, drawn from a seed, with a master's machine A and a standby's B."""

    def __init__(self, mode: str, seed: int, folder: Path) -> None:
        super().__init__(mode, seed, folder)
        chance = self.chance
        self.patience_s, self.limits = PATIENCE_S, Limits(turn_s=2 * PATIENCE_S)
        self.fence_s = TIMEOUT_S
        self.has_standby = chance.random() < 0.8
        self.death = chance.choice(
            ("process", "machine", "none") if self.has_standby else ("process",)
        )
        self.fault = drawn_fault(chance, ROLES[self.death])
        # From the start, from the death, or from the standby's claim on.
        self.counts_from = chance.choice(("start", "death", "claim", "claim"))
        if self.counts_from == "claim" and self.death == "machine":
            self.fault.at = chance.choice((1, 1, 2, 3))  # there are only some
        elif self.counts_from == "claim":
            self.counts_from = "death"
        self.fault.counts = self.counts_from == "start"
        self.dies_at = chance.uniform(3.0, 12.0)
        self.ended: dict[str, str] = {}
        self.masters: list[MasterProcess] = []

    def _machine(self, name: str) -> Machine:
        return Machine(name)

    def link(
        self,
        process: Process,
        timeout_s: float,
        guard: Guard | None = None,
        *,
        role: str = "master",
        **options: Any,
    ) -> Link:
        return SlowLink(
            *(self.server, process, timeout_s, guard), role=role, fault=self.fault, **options
        )

    def store_of_workers(self, master: MasterProcess) -> Any:
        link = self.link(master, TIMEOUT_S, role="workers")
        return RetryingStore(link, patience_s=PATIENCE_S, clock=master.clock, sleep=master.sleep)

    def __call__(self) -> None:
        chief = Command(self, self.machines[0], "command", 0.0)
        self.works.start(chief, partial(self._named, "A", lambda: self._begin(chief)))
        if self.has_standby:
            spare = Command(self, self.machines[1], "standby", 0.5)
            self.works.start(spare, partial(self._named, "B", lambda: self._stand_by(spare)))
        self.works.later(self.dies_at, partial(self._die, chief))
        self.works.run()
        assert self.is_over, self.ended
        samples = sum(part.samples for merge in self.published.merges for part in merge.parts)
        assert samples >= self.plan.samples
        self.published.check(self.records if self.once else None)
        self.counts["takeovers"] += self.published.takeovers
        self.counts[f"{self.death} died"] += 1

    def _die(self, chief: Command) -> None:
        self.fault.counts |= self.counts_from == "death"
        if self.death == "process" and self.masters:
            self.masters[-1].is_killed = True
        elif self.death == "machine":
            for process in [one for one in self.works._live if one.machine is chief.machine]:
                process.is_killed = True

    def _named(self, name: str, body: Callable[[], None]) -> None:
        """Whoever ends badly must have been replaced: its run goes on elsewhere."""
        try:
            body()
        except FencedError:
            assert self.published.takeovers or self._taken(name), "nobody else has the run"
            self.ended[name] = "fenced"
        except StoreError as error:
            error.add_note(f"{name} has given up, after {self.fault}")
            raise

    def _taken(self, name: str) -> bool:
        holder = MasterLease(self.server, RUN).holder()
        return holder.is_over or (holder.epoch > 0 and holder.address != name)

    # ------------------------------------------------------------ the commands

    def _begin(self, command: Command) -> None:
        command.lease.claim()
        command.keep(command.lease, self._note)
        self._serve(command)

    def _stand_by(self, command: Command) -> None:
        here = self.folder / f"{self.seed}-B"
        here.mkdir()
        copy = RunFollower(
            self.link(command, TIMEOUT_S, role="copy"), RUN, here, "B", command.clock
        )
        watch = StandbyWatch(
            *(copy, command.lease, here, "A", PATIENCE_S, self._note),
            keep=command.keep,
            clock=command.clock,
            sleep=command.rest,
        )
        claim = command.lease.claim

        def counted(after: int | None = None) -> int:
            self.fault.counts |= self.counts_from == "claim"
            return claim(after)

        command.lease.claim = counted  # type: ignore[method-assign, assignment]
        taken = watch.follow(())
        command.lease.claim = claim  # type: ignore[method-assign]
        if taken is None:
            self.is_over = True
            return
        self._serve(command)

    def _serve(self, command: Command) -> None:
        """As `launch._follow` and `MasterProcess.replace` do with Ray."""
        kept = command.kept
        assert kept is not None
        master = self._start_master(command, kept)
        mirror = None
        if command.machine is self.machines[0] and self.has_standby:
            mirror = self._mirror(command, kept)
        try:
            while master.outcome != "complete" or not master.has_ended:
                command.rest(PASS_S)
                kept.check()
                if not master.has_ended or master.outcome == "complete":
                    continue
                assert master.outcome != "cut off", f"a master has given up, after {self.fault}"
                if master.outcome == "fenced":
                    raise FencedError("as the master's process has found out")
                kept.next_epoch()
                master = self._start_master(command, kept)
        except FencedError:
            for process in (master, *(() if mirror is None else (mirror,))):
                process.is_killed = True
            raise
        if mirror is not None:
            mirror.is_told = True
            while not mirror.has_ended:
                command.rest(PASS_S)
            assert not mirror.problem or self._taken("A"), mirror.problem
        kept.end(over=True)
        self.is_over = True

    def _start_master(self, command: Command, kept: KeptLease) -> MasterProcess:
        master = MasterProcess(self, command, kept.epoch)
        self.masters.append(master)
        self.works.start(master, master.work)
        return master

    def _mirror(self, command: Command, kept: KeptLease) -> MirrorProcess:
        there = self.folder / f"{self.seed}-A"
        there.mkdir()
        (there / "config.yaml").write_text("mode: sync\n")
        process = MirrorProcess(self.works, command.machine, command.now)

        def tell(address: str, may_come: bool) -> None:
            kept.expect_standby(may_come)
            self.masters[-1].fence.expect_standby(may_come)

        mirror = RunMirror(
            *(self.link(process, TIMEOUT_S, role="mirror"), RUN, there, self._note, tell),
            process.clock,
            process.sleep,
        )

        def work() -> None:
            while not process.is_told:
                process.sleep(LOOK_S if mirror.standby else IDLE_S)
                if process.is_killed:
                    return
                with (there / "train.log").open("a") as log:  # there is always something to send
                    log.write(f"{process.now}\n")
                with suppress(StoreError, OSError):
                    mirror.step()
            process.problem = mirror.finish(PATIENCE_S)

        self.works.start(process, work)
        return process

    def _note(self, text: str) -> None:
        self.counts[text.partition(":")[0].partition(" 10.")[0][:40]] += 0


@pytest.mark.timeout(1800)
def test_no_run_is_lost_by_one_answer_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(center_module, "reached", lambda point: None)
    totals: Counter[str] = Counter()
    for seed in range(RUNS):
        mode = MODES[seed % len(MODES)]
        run = SlowRun(mode, seed, tmp_path)
        try:
            run()
        except BaseException as error:
            error.add_note(f"mode {mode}, seed {seed}, {run.death} died, {run.fault}")
            raise
        totals += run.counts
    if RUNS >= MANY:
        with capsys.disabled():
            print(f"\n{RUNS} runs: {dict(sorted(totals.items()))}", file=sys.stderr)
    assert totals["struck"] > RUNS // 2
    assert totals["takeovers"] > RUNS // 4
