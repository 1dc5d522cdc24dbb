"""Members of a team that scripts drive, each in a thread: they step with the mean of their gradients, or all fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from speedo.errors import NotFiniteError, ScriptMistake, TeamBrokenError
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import Rendezvous
from speedo.exchange.lease import DealRequest, Dealt, Lease, LeaseRequest, NoLease
from speedo.exchange.team_meeting import TeamMeeting
from speedo.exchange.vector import Vector, as_bytes, header_for
from speedo.master.lease_book import LeaseBook
from speedo.master.leases import Leases
from speedo.messages import Kind, Team, Train
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.worker.array_weights import ArrayWeights
from speedo.worker.driven_meeting import Comes, Follows
from speedo.worker.driven_team import DrivenTeam
from speedo.worker.membership import Membership
from speedo.worker.script_turn import ScriptWorker

Answer = TypeVar("Answer")
CENTER = np.array([1, 2, 3], np.float32)


@dataclass
class Momentum:
    """Two parameters, of 2 values and of 1; a gradient that is None is none."""

    w: Vector
    blobs: int = 2
    made: int = 0
    gradients: list[Vector | None] = field(default_factory=lambda: [None, None])
    speed: Vector = field(default_factory=lambda: np.zeros(3, np.float32))
    rate: int = 0

    def take_gradients(self, out: Vector, present: npt.NDArray[np.uint8]) -> None:
        for number, place in enumerate((slice(0, 2), slice(2, 3))):
            own = self.gradients[number]
            out[place] = 0 if own is None else own
            present[number] = own is not None

    def set_gradients(self, mean: Vector, present: npt.NDArray[np.uint8]) -> None:
        for number, place in enumerate((slice(0, 2), slice(2, 3))):
            self.gradients[number] = mean[place].copy() if present[number] else None

    def is_finite(self) -> bool:
        return all(one is None or bool(np.isfinite(one).all()) for one in self.gradients)

    def rates_key(self) -> int:
        return self.rate

    def rates(self) -> bytes:
        return bytes([self.rate])

    def load_rates(self, state: bytes) -> None:
        (self.rate,) = state

    def step(self) -> None:
        for own, place in zip(self.gradients, (slice(0, 2), slice(2, 3)), strict=True):
            if own is not None:
                self.speed[place] = 0.5 * self.speed[place] + own
                self.w[place] -= self.speed[place]
        self.made += 1

    def state(self) -> bytes:
        return json.dumps(self.speed.tolist()).encode()

    def load_state(self, state: bytes) -> None:
        self.speed[:] = json.loads(state)


class Members:
    """Workers 0, 1, ... of which each does what it is told in a thread of its own."""

    def __init__(self, folder: Path, count: int, hosts: int) -> None:
        """Worker `w` is on host `w` modulo `hosts`."""
        self.store, self.hosts = MemoryStore(clock=lambda: 0.0), hosts
        self.now = 0.0  # seconds
        self.folder, self.workers = folder, dict[int, ScriptWorker]()
        for one in ("store", *map(str, range(hosts))):
            (folder / one).mkdir()
        self.optimizers, self.teams = dict[int, Momentum](), dict[int, DrivenTeam]()
        for worker in range(count):
            self.add(worker, 1)
        body = as_bytes(CENTER)
        header = header_for(body, self.workers[0].weights.layout, Kind.CENTER, version=0)
        self.store.write(keys.center("run", 0), header.pack(), body)

    def add(self, worker: int, incarnation: int) -> None:
        w = np.zeros(3, np.float32)
        weights = ArrayWeights({"w": w})
        one = ScriptWorker("run", worker, incarnation, weights, self.store, lambda: self.now)
        self.workers[worker], self.optimizers[worker] = one, Momentum(w)
        meeting = TeamMeeting(self.folder / str(worker % self.hosts), worker, incarnation)

        def reach(team: Team) -> HostExchange:
            leaders = [team.workers[ranks[0]] for ranks in team.spread]
            store, own = SharedMemoryStore(self.folder / "store"), leaders.index(worker)
            at = Rendezvous(store, "run", f"team{team.formed}", "127.0.0.1")
            return HostExchange(at, leaders, own, 20.0, str)

        membership = Membership(worker, meeting, reach)
        self.teams[worker] = DrivenTeam(one, membership, self.optimizers[worker])

    def close(self) -> None:
        for team in self.teams.values():
            team.close()

    def begin(self, formed: int, rounds: int = 2, seconds: float = 0.0) -> None:
        members = tuple((worker, self.workers[worker].incarnation, 4) for worker in self.workers)
        spread = tuple(
            tuple(rank for rank, worker in enumerate(self.workers) if worker % self.hosts == host)
            for host in range(self.hosts)
        )
        spread = spread if self.hosts > 1 else ()
        team = Team(formed, members, rounds, patience_s=20.0, spread=spread, seconds=seconds)
        self.all(
            lambda worker: self.teams[worker].begin(
                Train(worker, members[worker][1], formed, 0, 0, 1, 1, Kind.WEIGHTS, team=team)
            )
        )

    def all(self, do: Callable[[int], Answer]) -> list[Answer]:
        with ThreadPoolExecutor(len(self.workers)) as pool:
            return list(pool.map(do, self.workers))

    def step(
        self,
        *gradients: tuple[list[float] | None, float | None],
        samples: list[int],
        most: float = np.inf,
    ) -> None:
        """Each makes a step with these gradients; who has no samples comes for none. Who has some clips the mean."""

        def one(worker: int) -> None:
            optimizer, team = self.optimizers[worker], self.teams[worker]
            first, last = gradients[worker]
            optimizer.gradients = [
                None if first is None else np.array(first, np.float32),
                None if last is None else np.array([last], np.float32),
            ]
            what = Comes.GRADIENT if samples[worker] else Comes.ASK
            assert team.come(what, samples[worker]) is Follows.MEAN
            team.require_finite()
            for mean in optimizer.gradients:
                if samples[worker] and mean is not None:
                    mean.clip(-most, most, out=mean)
            if not team.is_complete:
                what = Comes.STEP if samples[worker] else Comes.ASK
                assert team.come(what) is Follows.STEP
            optimizer.step()
            team.is_own = bool(samples[worker])
            self.workers[worker].stepped(samples[worker])

        self.all(one)

    def weights(self) -> list[list[float]]:
        return [one.w.tolist() for one in self.optimizers.values()]


@pytest.fixture(params=[1, 2], ids=["one-host", "two-hosts"])
def team(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[int], Members]]:
    """Makes the members of a team, in this count."""
    made: list[Members] = []

    def make(count: int) -> Members:
        made.append(Members(tmp_path, count, request.param))
        return made[-1]

    yield make
    for members in made:
        members.close()


def test_all_step_with_the_mean_by_samples_and_who_has_none_weighs_nothing(
    team: Callable[[int], Members],
) -> None:
    members = team(3)
    members.begin(1)
    nothing = ([9.0, 9.0], 9.0)
    members.step(([1.0, 0.0], 4.0), ([4.0, 3.0], None), nothing, samples=[2, 1, 0])
    expected = (CENTER - np.array([2, 1, 8 / 3], np.float32)).tolist()
    assert members.weights() == [pytest.approx(expected)] * 3
    assert members.weights()[0] == members.weights()[1] == members.weights()[2]
    members.step(([1.0, 1.0], None), ([1.0, 1.0], None), nothing, samples=[4, 4, 0])
    assert members.optimizers[2].gradients[1] is None  # nobody has one: its momentum is left alone
    results = members.all(lambda worker: members.workers[worker].end())
    assert [one.samples for one in results] == [6, 5, 0]
    assert [one.has_payload for one in results] == [True, False, False]


def test_who_has_no_records_steps_with_what_the_script_of_another_has_clipped(
    team: Callable[[int], Members],
) -> None:
    members = team(2)
    members.begin(1)
    members.step(([9.0, 0.0], 4.0), ([0.0, 0.0], 0.0), samples=[0, 2], most=0.5)
    assert members.weights() == [CENTER.tolist()] * 2  # what one without records has is not used
    members.step(([8.0, -8.0], 4.0), ([0.0, 0.0], 0.0), samples=[2, 0], most=0.5)
    assert members.weights() == [(CENTER - np.array([0.5, -0.5, 0.5])).tolist()] * 2


def test_who_steps_waits_for_those_that_accumulate_more(team: Callable[[int], Members]) -> None:
    """Its gradient is then theirs."""
    members = team(3)
    members.begin(1)

    def one(worker: int) -> list[Follows]:
        optimizer, team = members.optimizers[worker], members.teams[worker]
        optimizer.gradients = [np.array([worker, 0], np.float32), None]
        came = [Comes.GRADIENT, Comes.GRADIENT if worker else Comes.STEP]
        if worker == 2:
            came = [Comes.ASK, Comes.ASK]
        follows = [team.come(came[0], 4)]
        if worker == 1:
            optimizer.gradients = [np.array([3, 0], np.float32), None]
        follows.append(team.come(came[1], 4))
        follows.append(team.come(Comes.ASK if worker == 2 else Comes.STEP))
        return follows

    assert members.all(one) == [[Follows.MEAN, Follows.MEAN, Follows.STEP]] * 3
    gradients = [one.gradients[0] for one in members.optimizers.values()]
    assert [None if own is None else own.tolist() for own in gradients] == [[3, 0]] * 3


def test_sums_are_of_those_that_come_with_one_and_the_others_wait(
    team: Callable[[int], Members],
) -> None:
    members = team(3)
    members.begin(1)

    def one(worker: int) -> list[float]:
        team, values = members.teams[worker], np.full(2, worker + 1, np.float32)
        if worker == 2:
            assert [team.come(Comes.ASK), team.come(Comes.ASK)] == [Follows.SUM, Follows.MEAN]
        else:
            team.add_up(values)
            assert team.come(Comes.GRADIENT, 4) is Follows.MEAN
        return [float(one) for one in values]

    assert members.all(one) == [[3, 3], [3, 3], [3, 3]]


def test_steps_that_not_all_make_are_a_mistake(team: Callable[[int], Members]) -> None:
    members = team(2)
    members.begin(1)
    members.optimizers[1].made = 3

    def come(worker: int) -> str:
        with pytest.raises(ScriptMistake) as caught:
            members.teams[worker].come(Comes.GRADIENT, 4)
        return str(caught.value)

    for said in members.all(come):
        assert said.startswith("worker 1 has made a step of the optimizer where worker 0 has made")


def test_the_rates_of_all_are_those_of_who_made_the_last_step_by_its_own_script(
    team: Callable[[int], Members],
) -> None:
    members = team(3)
    members.begin(1)
    ones: list[float] = [1, 1]
    members.step((ones, 1), (ones, 1), (ones, 1), samples=[0, 4, 4])
    for worker, optimizer in members.optimizers.items():
        optimizer.rate = 7 if worker else 3
    members.step((ones, 1), (ones, 1), (ones, 1), samples=[4, 4, 4])
    assert [one.rate for one in members.optimizers.values()] == [7, 7, 7]


def test_the_same_gradients_again_and_again_are_told_once(
    team: Callable[[int], Members], capsys: pytest.CaptureFixture[str]
) -> None:
    members = team(2)
    members.begin(1, rounds=99)
    for number in range(1, 9):
        same: list[float] = [number, 1]
        members.step((same, 1), (same, 1), samples=[4, 4])
    told = capsys.readouterr().err
    assert told.count("all workers had the same gradients 5 times in a row") == 1


@pytest.mark.parametrize("is_noted", [True, False])
def test_what_scripts_change_after_the_last_step_of_a_turn_stays_if_the_center_is_as_before(
    team: Callable[[int], Members], is_noted: bool
) -> None:
    members = team(2)
    members.begin(1)
    for worker, optimizer in members.optimizers.items():
        if is_noted:
            members.teams[worker].note_weights()
        optimizer.w += 1
    members.begin(1)
    assert members.weights() == [(CENTER + is_noted).tolist()] * 2


def test_one_that_joins_later_has_the_weights_and_the_state_of_the_others(
    team: Callable[[int], Members],
) -> None:
    members = team(2)
    members.begin(1, rounds=1)
    members.step(([1.0, 0.0], 4.0), ([1.0, 0.0], 4.0), samples=[4, 4])
    members.all(lambda worker: members.teams[worker].part("gone"))
    members.teams[0].close()
    members.add(0, 2)  # the leader
    members.begin(2, rounds=1)
    assert [one.made for one in members.optimizers.values()] == [1, 1]
    assert members.weights() == [CENTER.tolist()] * 2
    members.step(([0.0, 0.0], 0.0), ([0.0, 0.0], 0.0), samples=[4, 4])
    assert members.weights() == [(CENTER - 0.5 * np.array([1, 0, 4])).tolist()] * 2


def test_a_gradient_that_is_not_finite_is_its_workers_fault(team: Callable[[int], Members]) -> None:
    members = team(2)
    members.begin(1)
    members.optimizers[1].gradients = [np.array([np.nan, 1], np.float32), None]

    def error_of(worker: int) -> BaseException | None:
        try:
            members.teams[worker].come(Comes.GRADIENT, 4)
            members.teams[worker].require_finite()
        except (NotFiniteError, TeamBrokenError) as error:
            members.teams[worker].part(f"worker {worker} has left the team")
            return error
        return None

    other, own = members.all(error_of)
    assert isinstance(own, NotFiniteError)
    assert isinstance(other, TeamBrokenError)
    assert str(other) == "the gradient of worker 1 is not finite"


def test_the_leader_deals_the_records_of_all(team: Callable[[int], Members]) -> None:
    members = team(2)
    members.begin(1)
    epochs = list[int]()

    def deal(epoch: int) -> Dealt:
        epochs.append(epoch)
        return Dealt(((Lease(0, 0, 4), Lease(0, 4, 8)), (Lease(0, 8, 9), None)), NoLease.WAIT)

    def ask(worker: int) -> tuple[list[Lease | None], NoLease | None]:
        team = members.teams[worker]
        assert team.come(Comes.ASK, epoch=3 * worker) is Follows.NOTHING
        assert team.deal_follows
        return team.dealt(deal)

    assert members.all(ask) == [
        ([Lease(0, 0, 4), Lease(0, 8, 9)], NoLease.WAIT),
        ([Lease(0, 4, 8), None], NoLease.WAIT),
    ]
    assert epochs == [3]


def test_what_a_leader_does_not_hand_out_is_taken_back_by_the_number_of_the_deal(
    team: Callable[[int], Members],
) -> None:
    """It is the same for the leader, and for members that have not heard of the deal, with the records of each."""
    members, leases = team(3), Leases(LeaseBook(seed=1), pytest.fail)
    members.begin(7)
    everyone = tuple((worker, 1) for worker in members.workers)

    def ask(worker: int, *, dies: bool) -> list[Lease | None]:
        team = members.teams[worker]
        team.come(Comes.ASK)
        number = team.next_deal
        assert number is not None

        def deal(epoch: int) -> Dealt:
            request = LeaseRequest(100, False, 4, epoch, 1)
            found = leases.deal(DealRequest(number, request, everyone, 1))
            if dies:
                raise TeamBrokenError("killed")
            return found

        try:
            return team.dealt(deal)[0]
        except TeamBrokenError:
            team.part("gone")
            leases.not_dealt(worker, 1, number)
            return []

    first: list[list[Lease | None]] = [
        [Lease(0, 4 * worker, 4 * worker + 4)] for worker in (0, 1, 2)
    ]
    assert members.all(lambda worker: ask(worker, dies=False)) == first
    assert members.all(lambda worker: ask(worker, dies=True)) == [[]] * 3
    members.begin(9)
    second: list[list[Lease | None]] = [[Lease(0, start, start + 4)] for start in (12, 16, 20)]
    assert members.all(lambda worker: ask(worker, dies=False)) == second


def test_the_deals_that_it_got_are_not_among_those_that_a_member_missed(
    team: Callable[[int], Members],
) -> None:
    """The team would meet anew with others, who do not come."""
    members = team(2)
    members.begin(7)
    members.all(lambda worker: members.teams[worker].come(Comes.ASK))
    members.all(lambda worker: members.teams[worker].dealt(lambda epoch: Dealt(())))
    members.teams.pop(1).close()
    anew = Team(9, ((0, 1, 4), (1, 1, 4)), 2, patience_s=0.1)
    with pytest.raises(TeamBrokenError):
        members.teams[0].begin(Train(0, 1, 9, 0, 0, 1, 1, Kind.WEIGHTS, team=anew))
    assert members.teams[0].next_deal == (7, 2)


def test_if_nobody_steps_and_not_all_ask_each_comes_again(team: Callable[[int], Members]) -> None:
    members = team(2)
    members.begin(1)

    def come(worker: int) -> tuple[Follows, bool]:
        team = members.teams[worker]
        return team.come(Comes.IDLE if worker else Comes.ASK), team.deal_follows

    assert members.all(come) == [(Follows.NOTHING, False)] * 2


def test_one_that_is_gone_breaks_the_step_of_the_others(team: Callable[[int], Members]) -> None:
    members = team(2)
    members.begin(1)
    members.teams[1].part("worker 1 has left the team")
    with pytest.raises(TeamBrokenError, match="worker 1 has left the team"):
        members.teams[0].come(Comes.GRADIENT, 4)


@pytest.mark.parametrize("steps", [True, False])
def test_the_turn_of_all_ends_with_the_step_in_which_one_leaves(
    team: Callable[[int], Members], steps: bool
) -> None:
    members = team(3)
    members.begin(1, rounds=9)
    ones: list[float] = [1, 1]
    members.step((ones, 1), (ones, 1), (ones, 1), samples=[4, 4, 4])
    assert not any(team.ends for team in members.teams.values())
    others = Comes.GRADIENT if steps else Comes.ASK

    def come(worker: int) -> tuple[Follows, bool]:
        team = members.teams[worker]
        what = Comes.LEAVE if worker == 2 else others
        return team.come(what, 4 * (worker != 2), wants_deal=worker == 0), team.deal_follows

    follows = Follows.MEAN if steps else Follows.NOTHING
    assert members.all(come) == [(follows, False)] * 3
    assert all(team.ends for team in members.teams.values())
    members.begin(2)
    assert not any(team.ends for team in members.teams.values())


def test_a_turn_that_takes_much_longer_than_the_master_expects_ends_with_its_step(
    team: Callable[[int], Members],
) -> None:
    """It has not seen what a script does between two steps of its first turn."""
    members = team(2)
    members.begin(1, rounds=1000, seconds=0.5)
    for now, ends in ((1.9, False), (2.1, True)):
        members.now = now
        members.step(([1, 1], 1), ([1, 1], 1), samples=[4, 4])
        assert [team.ends for team in members.teams.values()] == [ends] * 2
    members.begin(2, rounds=1000)  # nothing is known yet
    members.now = 100.0
    members.step(([1, 1], 1), ([1, 1], 1), samples=[4, 4])
    assert not any(team.ends for team in members.teams.values())
