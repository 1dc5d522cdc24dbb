"""Members of a team over real sockets, each in a thread of its own: they meet, share memory, and notice who is gone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from speedo.errors import TeamBrokenError
from speedo.exchange.team_meeting import TeamMeeting
from speedo.messages import Team


def team_of(*workers: int, formed: int = 7, patience_s: float = 5.0) -> Team:
    return Team(formed, tuple((worker, 1, 4) for worker in workers), patience_s=patience_s)


@contextmanager
def meetings(folder: Path, *workers: int) -> Iterator[dict[int, TeamMeeting]]:
    found = {worker: TeamMeeting(folder, worker, 1) for worker in workers}
    try:
        yield found
    finally:
        for meeting in found.values():
            meeting.close()


def together(*tasks: Callable[[], object]) -> list[object]:
    """What each task returned or raised, run at the same time."""
    results: list[object] = [None] * len(tasks)

    def carry_out(at: int) -> None:
        try:
            results[at] = tasks[at]()
        except TeamBrokenError as error:
            results[at] = error

    threads = [threading.Thread(target=carry_out, args=(at,)) for at in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_what_one_member_writes_the_others_read(tmp_path: Path) -> None:
    team = team_of(0, 2, 5)

    def task(meeting: TeamMeeting, value: int) -> Callable[[], object]:
        def run() -> object:
            values = np.frombuffer(meeting.gather(team, 12), np.float32)
            values[value] = value + 1.0
            meeting.meet(5.0)
            return values.tolist()

        return run

    with meetings(tmp_path, 0, 2, 5) as members:
        tasks = [task(meeting, at) for at, meeting in enumerate(members.values())]
        assert together(*tasks) == [[1.0, 2.0, 3.0]] * 3


def test_nobody_goes_on_before_the_last_has_come(tmp_path: Path) -> None:
    team, went_on = team_of(0, 1), []

    def early(meeting: TeamMeeting) -> None:
        meeting.gather(team, 4)
        meeting.meet(5.0)
        went_on.append("early")

    def late(meeting: TeamMeeting) -> None:
        meeting.gather(team, 4)
        time.sleep(0.2)
        went_on.append("late")
        meeting.meet(5.0)

    with meetings(tmp_path, 0, 1) as members:
        together(lambda: early(members[0]), lambda: late(members[1]))
    assert went_on == ["late", "early"]


def test_a_meeting_of_some_is_not_held_up_by_the_others(tmp_path: Path) -> None:
    team, went_on = team_of(0, 1, 2), threading.Event()

    def comes(meeting: TeamMeeting) -> None:
        meeting.gather(team, 4)
        meeting.meet(5.0, (0, 1))
        went_on.set()
        meeting.meet(5.0)

    def late(meeting: TeamMeeting) -> object:
        meeting.gather(team, 4)
        before = went_on.wait(5.0)
        meeting.meet(5.0, (0, 1))
        meeting.meet(5.0)
        return before

    with meetings(tmp_path, 0, 1, 2) as members:
        tasks = [lambda one=one: comes(members[one]) for one in (0, 1)]
        assert together(*tasks, lambda: late(members[2])) == [None, None, True]


@pytest.mark.parametrize("seed", range(5))
def test_nobody_goes_on_before_those_who_come_whatever_the_meetings(
    tmp_path: Path, seed: int
) -> None:
    chance, workers = random.Random(seed), range(4)
    team = team_of(*workers)
    wanted = [tuple(sorted(chance.sample(workers, chance.randint(1, 4)))) for _ in range(200)]

    def task(meeting: TeamMeeting, own: int) -> Callable[[], object]:
        def run() -> object:
            reached = np.frombuffer(meeting.gather(team, 32), np.int64)
            for number, come in enumerate(wanted):
                reached[own] = number
                meeting.meet(5.0, come if len(come) < 4 else None)
                if (reached[list(come)] < number).any():
                    return f"worker {own} went on at {number}"
            meeting.meet(5.0)
            return None

        return run

    with meetings(tmp_path, *workers) as members:
        assert together(*(task(one, own) for own, one in members.items())) == [None] * 4


def test_meetings_of_the_same_gathering_use_the_same_memory(tmp_path: Path) -> None:
    team = team_of(0, 1)

    def run(meeting: TeamMeeting) -> object:
        first = meeting.gather(team, 64)
        meeting.meet(5.0)
        again = meeting.gather(team, 64)
        first[0] = 9
        return again[0]

    with meetings(tmp_path, 0, 1) as members:
        assert together(*(lambda one=one: run(one) for one in members.values())) == [9, 9]


@pytest.mark.parametrize(
    ("why", "heard"), [("", "worker 0 has left the team"), ("worker 7 is dead", "worker 7 is dead")]
)
def test_who_parts_is_noticed_at_once_and_why(tmp_path: Path, why: str, heard: str) -> None:
    team = team_of(0, 1)

    def leaves(meeting: TeamMeeting) -> None:
        meeting.gather(team, 4)
        meeting.meet(60.0)
        meeting.part(why)

    def stays(meeting: TeamMeeting) -> None:
        meeting.gather(team, 4)
        meeting.meet(60.0)
        meeting.meet(60.0)

    began = time.monotonic()
    with meetings(tmp_path, 0, 1) as members:
        _, error = together(lambda: leaves(members[0]), lambda: stays(members[1]))
    assert isinstance(error, TeamBrokenError)
    assert str(error) == heard
    assert time.monotonic() - began < 40.0


@pytest.mark.parametrize(
    ("why", "heard"), [("", "worker 0 has left the team"), ("worker 7 is dead", "worker 7 is dead")]
)
def test_who_comes_after_one_has_parted_hears_why(tmp_path: Path, why: str, heard: str) -> None:
    team, parted = team_of(0, 1), threading.Event()

    def leaves(meeting: TeamMeeting) -> None:
        meeting.gather(team, 4)
        meeting.part(why)
        parted.set()

    def comes_late(meeting: TeamMeeting) -> None:
        meeting.gather(team, 4)
        assert parted.wait(60.0)
        meeting.meet(60.0)

    with meetings(tmp_path, 0, 1) as members:
        _, error = together(lambda: leaves(members[0]), lambda: comes_late(members[1]))
    assert isinstance(error, TeamBrokenError)
    assert str(error) == heard


def test_who_hangs_is_waited_for_no_longer_than_patience_allows(tmp_path: Path) -> None:
    team, done = team_of(0, 1), threading.Event()

    def hangs(meeting: TeamMeeting) -> None:
        meeting.gather(team, 4)
        done.wait(10)

    def waits(meeting: TeamMeeting) -> None:
        meeting.gather(team, 4)
        try:
            meeting.meet(0.2, until="all gradients are there")
        finally:
            done.set()

    with meetings(tmp_path, 0, 1) as members:
        _, error = together(lambda: hangs(members[0]), lambda: waits(members[1]))
    assert str(error) == "worker 0 does not come: the others wait until all gradients are there"


def test_a_member_that_is_not_there_ends_the_gathering(tmp_path: Path) -> None:
    with (
        meetings(tmp_path, 1) as members,
        pytest.raises(TeamBrokenError, match="worker 0"),
    ):
        members[1].gather(team_of(0, 1, patience_s=0.2), 4)


@pytest.mark.slow
def test_a_gathering_takes_nobody_of_an_earlier_one(tmp_path: Path) -> None:
    """Worker 1 knocks for gathering 7, is let go, and comes back for gathering 8."""

    def comes_twice(meeting: TeamMeeting) -> object:
        with pytest.raises(TeamBrokenError):
            meeting.gather(team_of(0, 1, formed=7, patience_s=0.3), 4)
        values = meeting.gather(team_of(0, 1, formed=8), 4)
        meeting.meet(5.0)
        return bytes(values)

    def comes_late(meeting: TeamMeeting) -> object:
        time.sleep(0.6)
        values = meeting.gather(team_of(0, 1, formed=8), 4)
        values[:] = b"abcd"
        meeting.meet(5.0)
        return bytes(values)

    with meetings(tmp_path, 0, 1) as members:
        told = together(lambda: comes_late(members[0]), lambda: comes_twice(members[1]))
    assert told == [b"abcd", b"abcd"]


def test_a_long_name_of_the_folder_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    team = team_of(0, 1)
    with meetings(folder, 0, 1) as members:
        tasks = [lambda one=one: len(one.gather(team, 4096)) for one in members.values()]
        assert together(*tasks) == [4096, 4096]
