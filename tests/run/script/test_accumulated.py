"""Scripts that make several backward passes for a step, and not all the same number: no step waits for long."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from speedo.errors import SpeedoError, TeamBrokenError
from speedo.exchange.lease import DealRequest, Dealt, Lease, LeaseRequest, NoLease
from speedo.exchange.vector import Vector, as_bytes, header_for
from speedo.master.lease_book import LeaseBook
from speedo.master.leases import Leases
from speedo.messages import Kind, Left, Team, Train, Trained
from speedo.run.script import gradients
from speedo.run.script.gradients import GradientTurns
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from speedo.worker.array_weights import ArrayWeights
from speedo.worker.script_turn import ScriptWorker
from speedo.worker.share import RecordShare
from tests.faults.scripts import trained
from tests.run.script.test_run_command import run
from tests.support.commands import Commands
from tests.support.invariants import read_lines

RECORDS, EPOCHS, PATIENCE_S = 23, 3, 10.0


class Died(Exception):
    """A process is killed."""


class Member:
    """A worker, in a thread; the gradient of a record is 1 at its place, so the weights say what has been stepped."""

    blobs, made = 1, 0

    def __init__(self, run: Together, worker: int, incarnation: int = 1) -> None:
        self.run, self.who, self.script = run, (worker, incarnation), run.scripts[worker]
        self.w = np.zeros(EPOCHS * RECORDS, np.float32)
        self.gradient: Vector | None = None
        weights = ArrayWeights({"w": self.w})
        self.worker = ScriptWorker("run", *self.who, weights, run.store, lambda: 0.0)
        self.share = RecordShare(self._lease, lambda: None, 0)
        self.turns = GradientTurns(
            self,
            self.has_turn,
            self.end,
            self.lose,
            self,
            self.share,  # type: ignore[arg-type]
        )
        self.turns.listen(run.folder, self.worker.worker, self.worker.incarnation)
        self.turns.open(self.worker, lambda team: pytest.fail("one host"))

    # -------------------------------------------------------- as the gradients of a module

    on_processor = True

    def gradients(self) -> Member:
        return self

    def take_gradients(self, out: Vector, present: npt.NDArray[np.uint8]) -> None:
        out[:] = 0 if self.gradient is None else self.gradient
        present[0] = self.gradient is not None

    def set_gradients(self, mean: Vector, present: npt.NDArray[np.uint8]) -> None:
        self.gradient = mean.copy() if present[0] else None

    def forget(self, number: int | None = None) -> None:
        self.gradient = None

    def rates_key(self) -> int:
        return 0

    def state(self) -> bytes:
        return b""

    def load_state(self, state: bytes) -> None:
        pass

    def watch_parameters(self) -> None:
        pass

    def remove(self) -> None:
        pass

    def step(self, number: int) -> None:
        """What `speedo.join` does with a step is behind it."""
        if self.gradient is not None:
            self.w += self.gradient
        turns, share = self.turns, self.share
        if turns.lost:
            return
        is_idle, counted = turns.idle, turns.after_step()
        samples, share.given = (counted, share.given - counted) if is_idle else (share.given, 0)
        if self.has_turn() and (self.worker.stepped(samples) or turns.turn_ends):
            self.end()

    # -------------------------------------------------------- as the master

    def has_turn(self) -> bool:
        while self.worker.command is None:
            command = self.run.next_turn(self.who[0])
            try:
                self.turns.begin(command)
            except TeamBrokenError as problem:
                self.worker.command = command
                self.lose(problem)
        return True

    def end(self) -> None:
        self.turns.note_weights()
        command, self.worker.command = self.worker.command, None
        assert command is not None
        self.run.ended(command, self.w, self.share.taken()[0])

    def lose(self, problem: SpeedoError) -> None:
        self.worker.command = None
        self.share.give_back(self.share.taken()[0])
        self.share.given = 0
        self.turns.part(str(problem))
        self.run.lose(str(problem))

    def _lease(self, request: LeaseRequest) -> Lease | NoLease:
        return self.turns.lease(request)

    def deal(self, request: DealRequest) -> Dealt:
        return self.run.leases.deal(request)

    def not_dealt(self, number: tuple[int, int]) -> None:
        self.run.leases.not_dealt(*self.who, number)

    # -------------------------------------------------------- the script

    def train(self) -> None:
        """A step after every so many batches, and one at the end of an epoch for what is left."""
        script, since = self.script, self.script.offset
        for _ in range(EPOCHS):
            for batch in self.share.batches(np.arange(RECORDS), 1, False, EPOCHS):
                self.has_turn()
                self.run.may_die(self)
                since += 1
                steps = since % script.every == 0
                own = np.zeros_like(self.w) if self.gradient is None else self.gradient
                own[self.share._taken[-1].epoch * RECORDS + int(batch[0])] += 1
                self.gradient = own
                with self.turns.accumulating() if script.says_so and not steps else nullcontext():
                    self.turns.after_backward(self.share.given)
                if steps:
                    since = self.make_step()
            if since and script.ends:
                since = self.make_step()
        if self.turns.in_team:
            self.turns.leave()
        if self.worker.command is not None and self.worker.steps:
            self.end()
        self.turns.close()

    def make_step(self) -> int:
        self.turns.before_step(self.share.given, closure=False, number=0)
        self.step(0)
        self.gradient = None
        return 0


@dataclass(frozen=True)
class Script:
    """A step after every so many batches."""

    every: int
    offset: int  # of its count
    ends: bool = True  # an epoch with a step for what is left
    says_so: bool = False  # by `run.accumulate()`


class Together:
    """The turns of all members: each has some rounds, and begins once all that have not left wait for it."""

    def __init__(
        self, folder: Path, scripts: Sequence[Script], rounds: int, deaths: Collection[int] = ()
    ) -> None:
        """In the turns of these numbers a worker dies."""
        self.folder, self.scripts, self.rounds = folder, scripts, rounds
        self.store = MemoryStore(clock=lambda: 0.0)
        self.leases = Leases(LeaseBook(seed=1), pytest.fail)
        self.merged, self.lost = Counter[tuple[int, int]](), set[str]()
        self._deaths = set(deaths)
        self._change, self._number, self._formed, self._breaks = threading.Condition(), 0, 1, False
        self.center = np.zeros((EPOCHS, RECORDS), np.float32)
        self._waiting = set[int]()
        self.members = {worker: Member(self, worker) for worker in range(len(scripts))}
        self.left = dict[int, Member]()

    def next_turn(self, worker: int) -> Train:
        with self._change:
            number = self._number
            self._waiting.add(worker)
            self._begin_if_all_wait()
            if not self._change.wait_for(lambda: self._number > number, PATIENCE_S):
                raise TimeoutError(f"worker {worker} waits for a turn")
            command = replace(self._command, worker=worker)
            return replace(command, incarnation=self.members[worker].who[1])

    def _begin_if_all_wait(self) -> None:
        if not self._waiting or self._waiting != set(self.members):
            return
        self._number, self._formed = self._number + 1, self._formed + self._breaks
        self._breaks = False
        self._waiting.clear()
        body = as_bytes(self.center)
        layout = next(iter(self.members.values())).worker.weights.layout
        header = header_for(body, layout, Kind.CENTER, version=self._number)
        self.store.write(keys.center("run", self._number), header.pack(), body)
        members = tuple((*one.who, 1) for one in self.members.values())
        team = Team(self._formed, members, self.rounds, patience_s=PATIENCE_S)
        self._command = Train(0, 1, self._number, self._number, 0, 1, 1, Kind.WEIGHTS, team=team)
        self._change.notify_all()

    def lose(self, why: str) -> None:
        with self._change:
            self._breaks = True
            self.lost.add(why)

    def ended(self, command: Train, w: Vector, records: tuple[Lease, ...]) -> None:
        with self._change:
            assert command.team is not None
            if command.worker == command.team.leader:
                self.center = w.reshape(EPOCHS, RECORDS).copy()
            ticket = 100 * command.ticket + command.worker
            ranges = tuple((one.epoch, one.start, one.stop) for one in records)
            done = Trained(command.worker, command.incarnation, ticket, 0.0, 0, {}, records=ranges)
            self.leases.saw(done, 0.0)
            self.leases._book.merged(ticket)
            self.merged.update((e, r) for e, start, stop in ranges for r in range(start, stop))

    def may_die(self, member: Member) -> None:
        with self._change:
            if self._number in self._deaths:
                self._deaths.remove(self._number)
                raise Died

    def train(self) -> None:
        problems: list[BaseException] = []

        def one(worker: int) -> None:
            member = self.members[worker]
            try:
                member.train()
            except Died:
                member.turns.close()
                with self._change:
                    self.leases.saw(Left(*member.who, "killed"), 0.0)
                    self.members[worker] = Member(self, worker, member.who[1] + 1)
                    self._breaks = True
                return one(worker)
            except BaseException as error:
                problems.append(error)
                member.turns.close()
            with self._change:
                self.left[worker] = self.members.pop(worker)
                self.leases.saw(Left(*member.who, "ended", done=True), 0.0)
                self._breaks = True
                self._begin_if_all_wait()

        threads = [threading.Thread(target=one, args=(worker,)) for worker in list(self.members)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]


@pytest.mark.parametrize("seed", range(40))
def test_all_step_together_however_many_batches_each_has_counted_and_whoever_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """As those do that start again, have an uneven end of an epoch, or step where others do not: nobody waits."""
    monkeypatch.setattr(gradients, "AGAIN_S", 0.0)
    chance = random.Random(seed)
    every, ends, says_so = chance.randint(1, 4), chance.random() < 0.8, chance.random() < 0.3
    scripts = [
        Script(every, chance.randrange(every), ends, says_so) for _ in range(chance.randint(1, 4))
    ]
    deaths = {chance.randint(1, 25) for _ in range(chance.choice([0, 1, 3]))}
    team = Together(tmp_path, scripts, chance.choice([1, 2, 3, 5, 100]), deaths)
    team.train()
    assert not [why for why in team.lost if "does not come" in why]
    stepped = {(e, r) for e in range(EPOCHS) for r in range(RECORDS) if team.center[e, r] > 0}
    if ends:
        assert team.merged == Counter({(e, r): 1 for e in range(EPOCHS) for r in range(RECORDS)})
    else:  # what all have left over is in no step
        assert team.merged.total() == len(team.merged) >= EPOCHS * RECORDS - len(scripts) * every
    assert stepped >= team.merged.keys() if ends else len(stepped) >= len(team.merged) - 16
    assert team.center.max() < 1.001
    if not says_so:  # each pass is a mean
        assert min(team.center[one] for one in stepped) > 0.999 / len(scripts)


@pytest.mark.torch
@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(
    ("records", "epochs", "dies"),
    [
        pytest.param(85, 4, 5, id="one-dies"),
        pytest.param(5, 1, 0, id="one-leaves-as-another-steps"),
    ],
)
def test_a_script_that_steps_after_every_second_batch_trains_each_record_once(
    speedo: Commands, tmp_path: Path, records: int, epochs: int, dies: int
) -> None:
    """An epoch has an odd number of batches, so one worker comes to its step where the other does not."""
    script = Path(__file__).parent / "scripts" / "accumulated.py"
    words = (str(script), *map(str, (records, epochs, dies)))
    status, _, errors = run(speedo, "--workers", "2", *words)
    assert status == 0, errors
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert trained(lines) == Counter({(e, r): 1 for e in range(epochs) for r in range(records)})
    assert sum(line["event"] == "joined" for line in lines) == 2 + bool(dies)
    assert "does not come" not in errors
