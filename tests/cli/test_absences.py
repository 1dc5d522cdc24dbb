"""What a run says of workers that are away, and of how many there should be."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from speedo.messages import Joined, Kind, Left, SetAside, Train
from speedo.system.runs_at import RunsAt
from speedo.watch.console import ConsoleProgress, plain_line
from speedo.watch.status import StatusBoard

SIGNAL = "killed by SIGKILL"


class Scene:
    """A board, and what a console says of it."""

    def __init__(self) -> None:
        self.board = StatusBoard("async", max_iter=100, batch=10)
        self.out = StringIO()
        self.watch = ConsoleProgress(Console(file=self.out))
        for worker in range(2):
            self.board.name_host(worker, "alpha")
            self.board.saw(Joined(worker, 1, 10), 0.0)
            self.board.did(Train(worker, 1, worker, 0, 0, 1, 1, Kind.DELTA), 0.0)

    def said(self) -> list[str]:
        """Lines about workers since the last question."""
        self.out.seek(0)
        self.out.truncate()
        self.watch.show(self.board.status(1.0))
        return [line for line in self.out.getvalue().splitlines() if line.startswith("worker")]


def test_a_death_is_told_with_what_comes_next_and_the_return_too() -> None:
    scene = Scene()
    assert scene.said() == []
    scene.board.expect(1, "restarting in 4 s")
    scene.board.saw(Left(1, 1, SIGNAL), 1.0)
    assert scene.said() == [f"worker 1 on alpha is restarting in 4 s: {SIGNAL}"]
    assert scene.said() == []
    scene.board.saw(Joined(1, 2, 10), 2.0)
    assert scene.said() == ["worker 1 on alpha is back"]


def test_a_worker_is_told_with_its_process_and_cores_whenever_it_is_another() -> None:
    scene = Scene()
    scene.board.saw(Joined(1, 2, 10, runs_at=RunsAt("alpha", 4711, 1, "1")), 1.0)
    assert scene.said() == ["worker 1 on alpha has joined: process 4711, 1 thread, cores 1"]
    assert scene.said() == []
    scene.board.saw(Left(1, 2, SIGNAL), 2.0)
    assert scene.said() == [f"worker 1 on alpha is gone: {SIGNAL}"]
    scene.board.saw(Joined(1, 3, 10, runs_at=RunsAt("alpha", 4712, 2, "0-1")), 3.0)
    assert scene.said() == ["worker 1 on alpha is back: process 4712, 2 threads, cores 0-1"]


def test_giving_up_is_told_and_forgotten_at_the_return() -> None:
    scene = Scene()
    scene.board.expect(0, "gone, given up after 5 restarts")
    scene.board.saw(Left(0, 1, SIGNAL), 1.0)
    assert scene.said() == [f"worker 0 on alpha is gone, given up after 5 restarts: {SIGNAL}"]
    scene.board.saw(Joined(0, 2, 10), 2.0)
    scene.board.saw(Left(0, 2, "its host was stopped by Ctrl-C"), 3.0)
    assert scene.said() == ["worker 0 on alpha is gone: its host was stopped by Ctrl-C"]


def test_who_was_given_up_is_known_at_the_end_with_the_records_that_nobody_read() -> None:
    scene = Scene()
    board = scene.board
    board.given_up.shards = 2
    board.saw(Left(1, 1, SIGNAL), 1.0)
    board.expect(1, "restarting in 1 s")
    board.saw(Joined(1, 2, 10), 2.0)
    assert board.given_up.words("shard", 41) == ""
    board.iteration = 30
    board.saw(Left(1, 2, SIGNAL), 3.0)
    assert board.given_up.words("shard", 41) == ""  # nobody knows yet what comes next
    board.expect(1, "gone, given up after 5 restarts")
    board.expect(1, "gone, given up after 5 restarts")
    board.iteration = 70
    who = f"worker 1 was given up at iteration 30 ({SIGNAL})"
    assert board.given_up.words("shard", 41) == (
        f"{who}: its share of the data, 20 of 41 records, was not read after that"
    )
    assert (
        board.given_up.words("own", None) == f"{who}: its share of the data was not read after that"
    )
    assert board.given_up.words("once", 41) == f"{who}; the others trained its records"
    assert board.given_up.words("same", 41) == f"{who}; the others read all records"
    assert board.given_up.words(None, None) == who
    assert board.given_up.words(None, None, f"every worker died, the last: {SIGNAL}") == ""
    board.given_up.redistributed(1, board.iteration)
    first = (
        f"{who}: its share of the data, 20 of 41 records, was not read from there to iteration 70"
    )
    assert board.given_up.words("shard", 41) == first
    board.iteration = 80
    board.did(SetAside(0, 1, "NaN"), 4.0)
    board.saw(Left(0, 1, "NaN"), 4.0)
    board.expect(0, "gone")
    board.iteration = 90
    board.saw(Joined(0, 2, 10), 5.0)
    assert board.given_up.words("shard", 41) == (
        f"{first}; worker 0 was given up at iteration 80 (set aside: NaN): its share of the data, 41 of 41 records, "
        "was not read from there to iteration 90"
    )


def test_workers_let_go_at_the_end_are_not_told() -> None:
    scene = Scene()
    scene.board.over = True
    scene.board.saw(Left(0, 1, "the run is over"), 1.0)
    assert scene.said() == []


def test_a_line_says_how_many_of_those_wanted_are_there() -> None:
    scene = Scene()
    assert ", 2 workers" in plain_line(scene.board.status(1.0))
    scene.board.wanted = 3
    assert ", 2 of 3 workers" in plain_line(scene.board.status(1.0))
    scene.board.expect(0, "rebuilding")
    scene.board.saw(Left(0, 1, "takes a new shard: 1 of 2, batch 32"), 1.0)
    assert ", 1 of 3 workers" in plain_line(scene.board.status(1.0))
