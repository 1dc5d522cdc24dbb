"""A team's turn on the exact toy problem: its sum is that of synchronous SGD, to the bit, and all fail together."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from speedo.engines.base import Done, nobody
from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import MissingKeyError, SpeedoError
from speedo.exchange.channel import refusal
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import Rendezvous
from speedo.exchange.team_meeting import TeamMeeting
from speedo.exchange.transfer import fetch_vector
from speedo.exchange.vector import Vector, as_bytes, header_for
from speedo.messages import Kind, OwnResults, Refused, Team, Train, Trained
from speedo.sgd_modes.rules import AverageDeltas, Contribution, mean_into
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.study.simulation.simulated_team import train_together
from speedo.worker import team_memory
from speedo.worker.membership import Membership
from speedo.worker.team_memory import TeamMemory, stretch_of
from speedo.worker.team_turn import TeamMember
from speedo.worker.turn import EngineWorker
from tests.support.damaged_wire import DamagedWire, flipped
from tests.support.quick import tried
from tests.support.simulation.spoilt import spoil

SIZE = 40


class Members:
    """Workers 0, 1, ... with batches of their own, and a store with center 3."""

    def __init__(
        self, *batches: int, size: int = SIZE, momentum: float = 0.9, noise: float = 0.1
    ) -> None:
        self.batches, self.momentum, self.noise = batches, momentum, noise
        self.store = MemoryStore(clock=lambda: 0.0)
        self.center = np.linspace(-1.0, 1.0, size, dtype=np.float32)
        self.workers = {
            worker: EngineWorker("run", worker, 1, self.engine(worker), self.store, lambda: 0.0)
            for worker in range(len(batches))
        }
        layout = self.workers[0].engine.layout
        body = as_bytes(self.center)
        header = header_for(body, layout, Kind.CENTER, version=3)
        self.store.write(keys.center("run", 3), header.pack(), body)

    def engine(self, worker: int) -> QuadraticEngine:
        batch, count = self.batches[worker], len(self.batches)
        return QuadraticEngine(
            self.center.size,
            rank=worker,
            count=count,
            batch=batch,
            momentum=self.momentum,
            noise=self.noise,
        )

    def commands(self, rounds: int, kind: Kind, steps: int = 1, hosts: int = 1) -> dict[int, Train]:
        """Worker `w` is on host `w` modulo `hosts`."""
        members = tuple((worker, 1, batch) for worker, batch in enumerate(self.batches))
        spread = tuple(tuple(range(host, len(members), hosts)) for host in range(hosts))
        team = Team(50, members, rounds, patience_s=20.0, spread=spread if hosts > 1 else ())
        return {
            worker: Train(worker, 1, 50 + worker, 3, 10, steps, 1, kind, team=team)
            for worker in self.workers
        }

    def train(
        self,
        rounds: int,
        kind: Kind,
        steps: int = 1,
        stops: Mapping[int, int] = MappingProxyType({}),
        bad: tuple[int, ...] = (),
        hosts: int = 1,
    ) -> dict[int, Trained | Refused]:
        commands = self.commands(rounds, kind, steps, hosts)
        team = commands[0].team
        assert team is not None
        spoil(bad, self.workers, commands)
        return train_together(team, self.workers, commands, stops)

    def published(self, kind: Kind, ticket: int = 50) -> Vector:
        layout = self.workers[0].engine.layout
        out = layout.zeros()
        fetch_vector(self.store, keys.payload("run", 0, ticket), layout, kind, out)
        return out

    def by_hand(self, rounds: int, steps: int = 1, history: bytes = b"") -> Vector:
        """Synchronous SGD, round for round: one solver with the mean gradient, or the mean of the deltas."""
        engines = [self.engine(worker) for worker in self.workers]
        center, solver = self.center.copy(), self.engine(0)
        solver.load_weights(center)
        if history:
            solver.load_history(history)
        for number in range(rounds):
            payloads = []
            for engine, batch in zip(engines, self.batches, strict=True):
                engine.load_weights(center)
                engine.set_iteration(10 + number * steps)
                payload = engine.layout.zeros()
                if steps == 1:
                    engine.gradient(1, payload)
                else:
                    engine.step(steps)
                    engine.read_weights(payload)
                    payload -= center
                payloads.append(Contribution(payload, batch))
            if steps == 1:
                mean = np.empty_like(center)
                mean_into(mean, payloads)
                solver.apply_gradient(mean)
                solver.read_weights(center)
            else:
                AverageDeltas().merge(center, payloads, 1.0, 10)
        return center


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("batches", [(4, 4), (5, 3), (2, 2, 2), (1, 2, 3, 4), (9, 1, 9)])
def test_rounds_of_a_team_are_those_of_synchronous_sgd(
    batches: tuple[int, ...], steps: int
) -> None:
    members = Members(*batches)
    answers = members.train(5, Kind.WEIGHTS, steps)
    assert all(isinstance(answer, Trained) for answer in answers.values())
    assert members.published(Kind.WEIGHTS).tobytes() == members.by_hand(5, steps).tobytes()


@pytest.mark.parametrize("batches", [(4, 4), (5, 3)])
def test_two_hosts_with_a_worker_each_make_the_bits_of_one_host(batches: tuple[int, ...]) -> None:
    members = Members(*batches)
    members.train(5, Kind.WEIGHTS, hosts=2)
    assert members.published(Kind.WEIGHTS).tobytes() == members.by_hand(5).tobytes()


@pytest.mark.parametrize(
    ("batches", "hosts"),
    [((4, 4, 4), 2), ((4, 4, 4), 3), ((1, 2, 3, 4, 5), 2), ((1, 2, 3, 4, 5), 3)],
)
def test_rounds_over_hosts_are_those_of_synchronous_sgd(
    batches: tuple[int, ...], hosts: int
) -> None:
    members = Members(*batches)
    answers = members.train(5, Kind.WEIGHTS, hosts=hosts)
    assert all(isinstance(answer, Trained) for answer in answers.values())
    assert [answer.has_payload for answer in answers.values()].count(True) == 1
    found = members.published(Kind.WEIGHTS)
    np.testing.assert_allclose(found, members.by_hand(5), rtol=0, atol=1e-6)


class InProcesses:
    """The same members, each in a thread of its own, over the meetings and exchanges of processes."""

    def __init__(self, members: Members, folder: Path, hosts: int) -> None:
        self.members, self.hosts, self.folder = members, hosts, folder
        self.calls: list[str] = []
        self.wire: DamagedWire | None = None  # through which hosts are reached, if there is one
        for one in ("store", *map(str, range(hosts))):
            (folder / one).mkdir()
        self.teams = {worker: self.team(worker) for worker in members.workers}

    def team(self, worker: int) -> TeamMember:
        def reach(team: Team) -> HostExchange:
            self.calls.append(f"reach {worker}")
            leaders = [team.workers[ranks[0]] for ranks in team.spread]
            store = SharedMemoryStore(self.folder / "store")
            own = leaders.index(worker)
            at = Rendezvous(self.wire or store, "run", f"team{team.formed}", "127.0.0.1")
            return HostExchange(at, leaders, own, 20.0, str)

        meeting = TeamMeeting(self.folder / str(worker % self.hosts), worker, 1)
        return TeamMember(self.members.workers[worker], Membership(worker, meeting, reach))

    def turn(self, commands: Mapping[int, Train]) -> dict[int, Trained | Refused]:
        def one(worker: int) -> Trained | Refused:
            try:
                return self.teams[worker].turn(commands[worker])
            except SpeedoError as error:
                return refusal(commands[worker], error)

        with ThreadPoolExecutor(len(commands)) as pool:
            return dict(zip(commands, pool.map(one, commands), strict=True))

    def center_of(self, host: int) -> Vector:
        """This host's own copy, in the memory that its workers share; worker `host` is the first of them."""
        memory = self.teams[host]._membership._meeting._memory
        assert memory is not None
        return np.frombuffer(memory, np.float32, count=self.members.center.size)

    def close(self) -> None:
        for team in self.teams.values():
            team.close()
        if self.wire is not None:
            self.wire.close()


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_processes_make_the_same_bits_on_all_hosts_and_those_of_the_simulator(
    processes: Callable[[Members, int], InProcesses], hosts: int
) -> None:
    """In two turns of one gathering, of which the second begins from what the first has made.

    The simulator sums in the order of the hosts, the ring begins each piece at another host: of two hosts no bit is
    another.
    """
    members = Members(1, 2, 3, 4, 5)
    made: list[bytes] = []
    for worker in members.workers.values():
        worker.made_in_team = partial(note_weights, worker, made)  # type: ignore[method-assign]
    teams = processes(members, hosts)
    commands = members.commands(5, Kind.WEIGHTS, hosts=hosts)
    answers = teams.turn(commands)
    assert all(isinstance(answer, Trained) for answer in answers.values()), answers
    members.store.delete(keys.center("run", 3))  # nobody fetches it
    commands = {
        worker: replace(one, ticket=one.ticket + 50, version=4, own=OwnResults(one.ticket))
        for worker, one in commands.items()
    }
    answers = teams.turn(commands)
    assert all(isinstance(answer, Trained) for answer in answers.values()), answers
    assert sorted(teams.calls) == [f"reach {host}" for host in range(hosts) if hosts > 1]
    assert [made.count(one) for one in dict.fromkeys(made)] == [5, 5]
    simulated = Members(1, 2, 3, 4, 5)
    simulated.train(10, Kind.WEIGHTS, hosts=hosts)
    found, expected = members.published(Kind.WEIGHTS, 100), simulated.published(Kind.WEIGHTS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0 if hosts < 3 else 1e-6)


def note_weights(
    worker: EngineWorker, made: list[bytes], command: Train, center: Vector, *, publishes: bool
) -> None:
    found = np.empty_like(center)
    worker.engine.read_weights(found)
    made.append(found.tobytes())
    EngineWorker.made_in_team(worker, command, center, publishes=publishes)


def test_a_center_of_which_the_team_made_another_is_fetched(
    processes: Callable[[Members, int], InProcesses],
) -> None:
    members = Members(4, 4)
    teams = processes(members, 2)
    commands = members.commands(2, Kind.WEIGHTS, hosts=2)
    teams.turn(commands)
    members.store.delete(keys.center("run", 3))
    for merged in (0, 49):  # no result of theirs, or another one
        later = {
            worker: replace(one, ticket=one.ticket + 50, own=OwnResults(merged))
            for worker, one in commands.items()
        }
        answers = teams.turn(later)
        assert all("center" in one.reason for one in answers.values() if isinstance(one, Refused))
        assert all(isinstance(one, Refused) for one in answers.values()), answers


@pytest.mark.parametrize("steps", [1, 3])
def test_a_host_whose_copy_of_the_center_is_another_begins_the_next_turn_from_the_leaders(
    processes: Callable[[Members, int], InProcesses], steps: int
) -> None:
    """As on a processor that rounds in another way, or after a bit in memory has changed."""
    members = Members(4, 4, 4, 4)
    teams = processes(members, 2)
    commands = members.commands(3, Kind.WEIGHTS, steps, hosts=2)
    teams.turn(commands)
    own, layout = teams.center_of(1), members.workers[0].engine.layout
    for version in (4, 5):
        center = members.published(Kind.WEIGHTS, commands[0].ticket)
        header = header_for(as_bytes(center), layout, Kind.CENTER, version=version)
        members.store.write(keys.center("run", version), header.pack(), as_bytes(center))
        own[:] = np.nextafter(own, np.float32(9))
        commands = {
            worker: replace(
                one, ticket=one.ticket + 50, version=version, own=OwnResults(one.ticket)
            )
            for worker, one in commands.items()
        }
        answers = teams.turn(commands)
        assert all(isinstance(answer, Trained) for answer in answers.values()), answers
        assert own.tobytes() == teams.center_of(0).tobytes() != center.tobytes()
    assert sorted(teams.calls) == ["reach 0", "reach 1"]


@pytest.mark.parametrize("steps", [1, 3])
def test_a_bit_that_is_flipped_between_hosts_is_in_no_weights_and_the_turn_is_made_again(
    processes: Callable[[Members, int], InProcesses], steps: int
) -> None:
    members = Members(4, 4, 4, 4, size=1000, momentum=0.0, noise=0.0)
    teams = processes(members, 2)
    teams.wire = DamagedWire(SharedMemoryStore(teams.folder / "store"))
    commands = members.commands(3, Kind.WEIGHTS, steps, hosts=2)
    team = commands[0].team
    assert team is not None
    for formed in (51, 52, 53, 54):
        # Among the values of a piece, in the first round or a later one.
        key, at = keys.collective("run", formed % 2, f"team{formed}"), 1000 * (formed - 50)
        damaged = {
            worker: replace(one, team=replace(team, formed=formed), ticket=10 * formed + worker)
            for worker, one in commands.items()
        }
        teams.wire.damage(key, at, flipped(7))
        answers = teams.turn(damaged)
        refused = [one for one in answers.values() if isinstance(one, Refused)]
        ended = [one for one in answers.values() if isinstance(one, Trained)]
        reasons = [*(one.reason for one in refused), *(one.broken for one in ended)]
        assert any(f"sent to worker {formed % 2} came damaged" in one for one in reasons)
        assert not any(one.blame for one in refused)
        if not refused:  # after whole rounds
            (whole,) = {one.samples // 4 for one in ended}
            found, expected = members.published(Kind.WEIGHTS, 10 * formed), members.by_hand(whole)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        elif not ended:
            with pytest.raises(MissingKeyError):
                members.published(Kind.WEIGHTS, 10 * formed)
    answers = teams.turn(commands)
    assert all(isinstance(answer, Trained) for answer in answers.values()), answers
    found = members.published(Kind.WEIGHTS)
    np.testing.assert_allclose(found, members.by_hand(3, steps), rtol=0, atol=1e-6)
    assert [teams.center_of(host).tobytes() for host in range(2)] == [found.tobytes()] * 2


@pytest.mark.parametrize("at", range(4500, 17_000, 1500))
def test_what_follows_a_turn_that_was_broken_begins_from_its_last_whole_round(
    processes: Callable[[Members, int], InProcesses], at: int
) -> None:
    """From its weights and momentum: in the end both are those of a turn that was not broken."""
    members, rounds = Members(4, 4, 4, 4, size=1000, noise=0.0), 5
    teams = processes(members, 2)
    teams.wire = DamagedWire(SharedMemoryStore(teams.folder / "store"))
    teams.wire.damage(keys.collective("run", 0, "team50"), at, flipped(7))
    commands = members.commands(rounds, Kind.WEIGHTS, hosts=2)
    answers = [one for one in teams.turn(commands).values() if isinstance(one, Trained)]
    assert all("came damaged" in one.broken for one in answers)
    whole = max(one.samples // 4 for one in answers)
    first = next(one for one in answers if one.has_payload and one.samples == 4 * whole)
    layout, center = members.workers[0].engine.layout, np.empty_like(members.center)
    key = keys.payload("run", first.worker, first.ticket)
    fetch_vector(members.store, key, layout, Kind.WEIGHTS, center)
    header = header_for(as_bytes(center), layout, Kind.CENTER, version=4)
    members.store.write(keys.center("run", 4), header.pack(), as_bytes(center))
    team = commands[0].team
    assert team is not None
    team = replace(team, formed=60, rounds=rounds - whole)
    rest = {
        worker: replace(one, ticket=60 + worker, version=4, samples=10 + whole, team=team)
        for worker, one in commands.items()
    }
    assert all(isinstance(one, Trained) for one in teams.turn(rest).values())
    found = members.published(Kind.WEIGHTS, 60)
    np.testing.assert_allclose(found, members.by_hand(rounds), rtol=0, atol=1e-5)
    assert len({one.engine.history() for one in members.workers.values()}) == 1


@pytest.mark.parametrize("worker", range(4))
@pytest.mark.parametrize("hosts", [2, 4])
def test_one_that_is_not_finite_breaks_the_turn_on_all_hosts_which_hear_who_it_was(
    processes: Callable[[Members, int], InProcesses], worker: int, hosts: int
) -> None:
    """With one member on each host, its gradient is under way before it is known whole. No solver takes anything in."""
    members = Members(4, 4, 4, 4)
    teams = processes(members, hosts)
    engine = members.workers[worker].engine
    gradient, before = engine.gradient, [one.engine.history() for one in members.workers.values()]

    def poisoned(n: int, out: Vector, done: Done = nobody, factors: object = ()) -> float:
        loss = gradient(n, out)
        out[7] = np.nan
        done(0, out.size)
        return loss

    engine.gradient = poisoned  # type: ignore[method-assign,assignment]
    answers = teams.turn(members.commands(3, Kind.WEIGHTS, hosts=hosts))
    for one, answer in answers.items():
        assert isinstance(answer, Refused)
        assert answer.blame == (one == worker)
        if hosts == 2 and one in (0, 1):  # who act for their hosts
            assert "not finite" in answer.reason
            assert one == worker or f"worker {worker}" in answer.reason
    assert [one.engine.history() for one in members.workers.values()] == before


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 40])
def test_a_member_that_trained_alone_is_given_the_others_state_or_they_its(
    processes: Callable[[Members, int], InProcesses], hosts: int, size: int
) -> None:
    """The one with the most updates has the state of all afterwards, also where the model is shorter than that."""
    members = Members(2, 2, 2, size=size)
    former = members.engine(1)
    for engine in (former, members.workers[1].engine):
        engine.step(2)
        engine.advance(-2)  # the records again
    members.workers[1].solver_state = (-2, 2)
    teams = processes(members, hosts)
    answers = teams.turn(members.commands(4, Kind.WEIGHTS, hosts=hosts))
    assert all(isinstance(answer, Trained) for answer in answers.values()), answers
    histories = {one.engine.history() for one in members.workers.values()}
    assert len(histories) == 1
    assert {one.solver_state for one in members.workers.values()} == {(50, 6)}
    expected = members.by_hand(4, history=former.history())
    np.testing.assert_allclose(
        members.published(Kind.WEIGHTS), expected, rtol=1e-6, atol=1e-7 if hosts == 3 else 0
    )


@pytest.mark.parametrize("hosts", [1, 2])
def test_the_number_that_shows_a_gradient_to_another_process_comes_after_a_fence(
    processes: Callable[[Members, int], InProcesses], hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors other than x86-64 may show it before the gradient otherwise."""
    members, before = Members(4, 4, 4, 4), list[object]()
    monkeypatch.setattr(team_memory, "memory_fence", lambda: lambda: before.append(None))
    answers = processes(members, hosts).turn(members.commands(3, Kind.WEIGHTS, hosts=hosts))
    assert all(isinstance(answer, Trained) for answer in answers.values()), answers
    assert len(before) == (3 * 4 if hosts > 1 else 0)
    layout = members.workers[0].engine.layout
    memory = TeamMemory.over(bytearray(TeamMemory.bytes_for(2, 2, layout)), 2, 2, layout)
    fenced = replace(memory, fence=lambda: before.append(memory.ready.tolist()))
    fenced.say_ready(1, slice(0, 1), 7)
    assert (before[-1], memory.ready.tolist()) == ([[0], [0]], [[0], [7]])


def test_members_with_one_state_hand_nothing_over(
    processes: Callable[[Members, int], InProcesses],
) -> None:
    members = Members(2, 2, 2)
    for one in members.workers.values():
        one.engine.load_history = None  # type: ignore[method-assign,assignment]
    teams = processes(members, 2)
    answers = teams.turn(members.commands(2, Kind.WEIGHTS, hosts=2))
    assert all(isinstance(answer, Trained) for answer in answers.values()), answers


def test_one_round_with_other_hosts_leaves_the_mean_for_the_master() -> None:
    members = Members(5, 3)
    members.train(1, Kind.DELTA)
    center = members.center.copy()
    center += members.published(Kind.DELTA)
    np.testing.assert_allclose(center, members.by_hand(1), rtol=0, atol=1e-7)


def test_gradients_are_averaged_by_samples() -> None:
    members = Members(6, 2)
    members.train(1, Kind.GRADIENT)
    expected = np.zeros(SIZE, np.float64)
    for worker, share in ((0, 0.75), (1, 0.25)):
        engine, gradient = members.engine(worker), np.empty(SIZE, np.float32)
        engine.load_weights(members.center)
        engine.gradient(1, gradient)
        expected += share * gradient.astype(np.float64)
    np.testing.assert_allclose(members.published(Kind.GRADIENT), expected, rtol=1e-5, atol=1e-7)


def test_each_member_says_what_it_trained_and_lost() -> None:
    members = Members(5, 3)
    answers = members.train(4, Kind.WEIGHTS)
    first, second = answers[0], answers[1]
    assert isinstance(first, Trained)
    assert isinstance(second, Trained)
    assert (first.samples, second.samples) == (20, 12)
    assert (members.workers[0].samples, members.workers[1].samples) == (20, 12)
    assert len(first.losses) == 4
    assert first.loss == pytest.approx(sum(first.losses) / 4)
    assert set(first.timings) == {"fetch", "compute", "team", "wait", "publish"}


def test_the_iteration_of_each_round_follows_the_stride() -> None:
    members = Members(4, 4)
    asked: list[int] = []
    engine = members.workers[0].engine
    take = engine.set_iteration

    def note(iteration: int) -> None:
        asked.append(iteration)
        take(iteration)

    engine.set_iteration = note  # type: ignore[method-assign]
    commands = members.commands(3, Kind.WEIGHTS, steps=2)
    strides = {worker: replace(one, stride=4) for worker, one in commands.items()}
    team = commands[0].team
    assert team is not None
    train_together(team, members.workers, strides, {})
    assert asked == [10, 14, 18, 22, 26, 30]


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("meeting", range(7))
def test_who_dies_at_any_meeting_ends_the_turn_of_all_after_the_last_whole_round(
    meeting: int, victim: int
) -> None:
    """There is one meeting before the first round, and two are in each."""
    members = Members(4, 4, 4)
    answers = members.train(3, Kind.WEIGHTS, stops={victim: meeting})
    whole = (meeting - 1) // 2
    for worker in {0, 1, 2} - {victim}:
        answer = answers[worker]
        if whole < 1:
            assert isinstance(answer, Refused)
            assert not answer.blame
            assert f"worker {victim}" in answer.reason
            continue
        assert isinstance(answer, Trained)
        assert f"worker {victim}" in answer.broken
        assert (answer.samples, answer.has_payload) == (4 * whole, worker < 2)
        found = members.engine(worker).layout.zeros()
        members.workers[worker].engine.read_weights(found)
        assert found.tobytes() == members.by_hand(whole).tobytes()
        if answer.has_payload:
            key = keys.payload("run", worker, 50 + worker)
            layout = members.workers[worker].engine.layout
            fetch_vector(members.store, key, layout, Kind.WEIGHTS, found)
            assert found.tobytes() == members.by_hand(whole).tobytes()


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_who_is_left_has_the_weights_of_the_rounds_that_it_says_it_has_made(hosts: int) -> None:
    """Members die at any wait, in any order of the others: these are at most one round apart."""
    apart = 0
    for seed in range(tried(60)):
        chance, members = random.Random(f"{hosts} {seed}"), Members(4, 4, 4, 4, 4)
        commands = members.commands(6, Kind.WEIGHTS, hosts=hosts)
        team = commands[0].team
        assert team is not None
        waits = 1 + (5 if hosts > 1 else 2) * 6
        stops = {
            one: chance.randrange(waits) for one in chance.sample(range(5), chance.choice([1, 2]))
        }
        answers = train_together(team, members.workers, commands, stops, chance=chance)
        made = set[int]()
        for worker, answer in answers.items():
            if isinstance(answer, Refused):
                assert not answer.blame
                made.add(0)
                continue
            whole, found = answer.samples // 4, np.empty_like(members.center)
            made.add(whole)
            members.workers[worker].engine.read_weights(found)
            if hosts == 1:
                assert found.tobytes() == members.by_hand(whole).tobytes(), seed
            np.testing.assert_allclose(found, members.by_hand(whole), rtol=0, atol=1e-6)
            if answer.has_payload:
                published, key = np.empty_like(found), keys.payload("run", worker, 50 + worker)
                layout = members.workers[worker].engine.layout
                fetch_vector(members.store, key, layout, Kind.WEIGHTS, published)
                assert published.tobytes() == found.tobytes()
        assert max(made) - min(made) <= 1, (seed, made)
        apart += len(made) > 1
        whole_rounds = [one for one, answer in answers.items() if isinstance(answer, Trained)]
        states = {members.workers[one].solver_state for one in whole_rounds}
        assert len(states) == len(made - {0}), "who is level has the same state"
    assert apart <= tried(60) / 5


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("victim", [2, 3])
def test_who_dies_while_hosts_add_up_its_gradient_has_made_that_round(
    victim: int, number: int
) -> None:
    """Workers 0 and 1 act for their hosts. The victim has come to the meeting where all gradients are there."""
    members = Members(4, 4, 4, 4)
    answers = members.train(4, Kind.WEIGHTS, stops={victim: 3 + 2 * number}, hosts=2)
    assert len(answers) == 3
    for answer in answers.values():
        assert isinstance(answer, Trained), answer
        assert answer.samples == 4 * (number + 1)


def test_who_is_not_finite_is_to_blame_and_the_others_are_not() -> None:
    members = Members(4, 4)
    answers = members.train(3, Kind.WEIGHTS, bad=(1,))
    refused = [answers[worker] for worker in (0, 1)]
    assert [one.blame for one in refused if isinstance(one, Refused)] == [False, True]
    assert "worker 1" in getattr(refused[0], "reason", "")


@pytest.mark.parametrize("size", [1, 15, 16, 17, 431_080])
@pytest.mark.parametrize("parts", [(1,), (1, 1), (1, 0, 1, 1), (5,) * 7, (0, 1)])
def test_the_shares_of_all_members_are_the_whole_vector_once(
    parts: tuple[int, ...], size: int
) -> None:
    shares = [stretch_of(place, parts, size) for place in range(len(parts))]
    assert all(part or one.start >= one.stop for part, one in zip(parts, shares, strict=True))
    assert shares[0].start == 0
    assert [share.stop for share in shares[:-1]] == [share.start for share in shares[1:]]
    assert shares[-1].stop == size
