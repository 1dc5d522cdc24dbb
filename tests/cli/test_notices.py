"""What a run says of its store and its checkpoints, also of what came and went between two looks."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from speedo.messages import Checkpointed, Joined, Left, StoreTrouble
from speedo.watch.console import ConsoleProgress
from speedo.watch.status import (
    CHECKPOINTS_BACK,
    NO_WORKER_WAITS,
    NOTICES,
    STORE_BACK,
    StatusBoard,
)

FULL = "no checkpoint: No space left on device"


class Scene:
    """A board, and what a console says of it."""

    def __init__(self) -> None:
        self.board = StatusBoard("async", max_iter=100, batch=10)
        self.watch, self.out = self._new()

    def _new(self) -> tuple[ConsoleProgress, StringIO]:
        out = StringIO()
        return ConsoleProgress(Console(file=out, width=200)), out

    def come_later(self) -> None:
        """Another begins to look now."""
        self.watch, self.out = self._new()

    def said(self) -> list[str]:
        """Lines since the last question, without those on how far the run is."""
        self.out.seek(0)
        self.out.truncate()
        self.watch.show(self.board.status(1.0))
        lines = self.out.getvalue().splitlines()
        return [line for line in lines if not line.startswith("iteration")]

    def written(self, problem: str = "") -> None:
        self.board.saw(Checkpointed(1, 1, 0.0, 0 if problem else 100, problem), 1.0)


def test_trouble_and_its_end_are_each_told_once() -> None:
    scene = Scene()
    assert scene.said() == []
    scene.written(FULL)
    assert scene.said() == [f"warning: {FULL}"]
    scene.written(FULL)
    assert scene.said() == []
    scene.written()
    assert scene.said() == [CHECKPOINTS_BACK]


def test_what_came_and_went_between_two_looks_is_told() -> None:
    scene = Scene()
    assert scene.said() == []
    scene.written(FULL)
    scene.board.saw(StoreTrouble("Redis is away"), 1.0)
    scene.board.saw(StoreTrouble(""), 1.0)
    scene.written()
    assert scene.said() == [
        f"warning: {FULL}", "warning: Redis is away", STORE_BACK,
        CHECKPOINTS_BACK,
    ]  # fmt: skip
    assert scene.said() == []


def test_what_came_just_before_the_end_is_told() -> None:
    scene = Scene()
    assert scene.said() == []
    scene.written(FULL)
    scene.board.over = True
    assert scene.said() == [f"warning: {FULL}"]


def test_who_comes_later_hears_what_is_wrong_now_and_no_more() -> None:
    scene = Scene()
    scene.written(FULL)
    scene.board.saw(StoreTrouble("Redis is away"), 1.0)
    scene.board.saw(StoreTrouble(""), 1.0)
    scene.come_later()
    assert scene.said() == [f"warning: {FULL}"]


def test_of_very_many_the_latest_are_told() -> None:
    scene = Scene()
    assert scene.said() == []
    for number in range(NOTICES):
        scene.board.saw(StoreTrouble(f"trouble {number}"), 1.0)
        scene.board.saw(StoreTrouble(""), 1.0)
    said = scene.said()
    assert len(said) == NOTICES
    assert said[-2] == f"warning: trouble {NOTICES - 1}"


def test_of_workers_that_wait_for_the_store_the_first_is_noted_and_each_is_seen() -> None:
    scene = Scene()
    assert scene.said() == []
    scene.board.trouble_of_worker(1, "no room")
    scene.board.trouble_of_worker(2, "no room")
    assert scene.said() == ["warning: worker 1 waits for the store: no room"]
    assert [one.state for one in scene.board.status(1.0).workers] == [
        "waiting for the store: no room"
    ] * 2
    scene.board.trouble_of_worker(1, "")
    assert scene.said() == []
    scene.board.trouble_of_worker(2, "")
    assert scene.said() == [NO_WORKER_WAITS]


def test_another_reason_of_the_worker_whose_wait_was_noted_is_noted_too() -> None:
    scene = Scene()
    assert scene.said() == []
    scene.board.trouble_of_worker(1, "broke")
    scene.board.trouble_of_worker(2, "broke")
    scene.board.trouble_of_worker(2, "no room")
    scene.board.trouble_of_worker(1, "no room")
    assert scene.said() == [
        "warning: worker 1 waits for the store: broke",
        "warning: worker 1 waits for the store: no room",
    ]
    scene.board.trouble_of_worker(1, "")
    scene.board.trouble_of_worker(1, "no room")
    assert scene.said() == []


def test_a_worker_that_died_waits_for_nothing() -> None:
    scene = Scene()
    scene.board.saw(Joined(1, 1, 8), 1.0)
    scene.board.trouble_of_worker(1, "no room")
    scene.board.saw(Left(1, 1, "killed"), 1.0)
    assert [one.state for one in scene.board.status(1.0).workers] == ["gone: killed"]


def test_a_command_tells_of_its_own_run_what_came_and_went_before_its_first_look(
    tmp_path: Path,
) -> None:
    scene = Scene()
    with scene.watch:
        scene.watch.begin(tmp_path)
        scene.written(FULL)
        scene.written()
        assert scene.said() == [f"warning: {FULL}", CHECKPOINTS_BACK]
