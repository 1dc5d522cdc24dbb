"""What looks on: the status board and the metrics log, fed by hand and by whole simulated runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from speedo import messages
from speedo.errors import ConfigError
from speedo.master.observers import Observer
from speedo.master.plan import Plan
from speedo.master.reasons import waits_for_workers
from speedo.messages import (
    Action,
    Drop,
    Event,
    Finish,
    Joined,
    Kind,
    Left,
    Merge,
    Part,
    SetAside,
    Snapshotted,
    TeamGivenUp,
    Train,
    Trained,
    Waiting,
)
from speedo.run_dir.directory import METRICS, RESULT, create_run_dir, write_result, write_whole
from speedo.run_dir.metrics_log import MetricsLog
from speedo.sgd_modes.rules import AddDelta
from speedo.sgd_modes.weed_out import WeedOut
from speedo.system.runs_at import RunsAt
from speedo.watch.console import ConsoleProgress, plain_line
from speedo.watch.status import RECENT_S, WORKERS_BACK, StatusBoard
from tests.support.simulation.simulate import simulate
from tests.support.simulation.world import Faults, World

WAITS = waits_for_workers(1, 2)


def part(worker: int, ticket: int, samples: int = 10, loss: float = 0.5) -> Part:
    return Part(worker, 1, ticket, samples, 0, loss)


def train(worker: int, ticket: int) -> Train:
    return Train(worker, 1, ticket, 0, 0, 1, 1, Kind.DELTA)


@pytest.fixture
def board() -> StatusBoard:
    return StatusBoard("async", max_iter=100, batch=10, records=1000)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[MetricsLog]:
    made = MetricsLog(tmp_path, start=100.0)
    yield made
    made.close()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


# ---------------------------------------------------------------- status


def test_a_run_waits_trains_and_tests(board: StatusBoard) -> None:
    assert board.status(0.0).state == "waiting for workers"
    board.did(train(0, 1), 1.0)
    assert board.status(1.0).state == "training"
    board.did(Finish(True, "reached max_iter 100"), 2.0)
    assert board.status(2.0).state == "testing the last version"
    assert not board.status(2.0).over


def test_a_worker_whose_last_result_is_merged_after_it_left_stays_gone(board: StatusBoard) -> None:
    for worker in (0, 1):
        board.saw(Joined(worker, 1, 10), 0.0)
        board.did(train(worker, 1), 0.0)
    board.saw(Left(1, 1, "fewer workers are wanted"), 1.0)
    board.did(Merge(1, 1, 20, 1.0, (part(0, 1), part(1, 1))), 2.0)
    assert [worker.is_away for worker in board.status(2.0).workers] == [False, True]


def test_a_worker_whose_script_has_ended_is_away_without_an_alarm() -> None:
    board = StatusBoard("async", max_iter=100, batch=10, counted="samples")
    board.saw(Joined(0, 1, 10), 0.0)
    board.did(train(0, 1), 0.0)
    board.saw(Left(0, 1, "its script has ended", done=True), 1.0)
    board.did(Merge(1, 1, 10, 1.0, (part(0, 1),)), 2.0)
    status = board.status(2.0)
    assert [(one.state, one.is_away) for one in status.workers] == [("ended", True)]
    assert plain_line(status) == "iteration 1/100, loss 0.5000, 5 samples/s, 0 workers"
    assert plain_line(replace(status, over=True, state="finished")) == (
        "iteration 1/100, loss 0.5000, finished"
    )
    noted = Mock()
    progress = ConsoleProgress(Console(file=StringIO()))
    progress.note = noted  # type: ignore[method-assign]
    progress.show(status)
    assert noted.call_args_list[0].args == ("worker 0 on  has done its part",)


def test_a_worker_waits_trains_and_is_gone(board: StatusBoard) -> None:
    board.name_host(0, "alpha")
    states = []
    for happens in (Joined(0, 1, 10), train(0, 1), Merge(1, 1, 10, 1.0, (part(0, 1),)),
                    Left(0, 1, "killed")):  # fmt: skip
        if isinstance(happens, Joined | Left):
            board.saw(happens, 1.0)
        else:
            board.did(happens, 1.0)
        states.append(board.status(1.0).workers[0].state)
    assert states == ["waiting", "training", "waiting", "gone: killed"]
    assert board.status(1.0).workers[0].host == "alpha"


def test_a_worker_is_shown_with_its_process_and_cores_until_it_is_gone(board: StatusBoard) -> None:
    def shown() -> tuple[int, int, str]:
        (worker,) = board.status(1.0).workers
        return worker.process, worker.threads, worker.cores

    board.saw(Joined(0, 1, 10, runs_at=RunsAt("alpha", 4711, 2, "0-1")), 1.0)
    assert shown() == (4711, 2, "0-1")
    board.saw(Left(0, 1, "killed"), 2.0)
    assert shown() == (0, 0, "")


def test_how_far_a_test_is_is_shown_until_it_is_over(board: StatusBoard) -> None:
    board.did(messages.Evaluate(7, 40), 0.0)
    board.saw(messages.Testing(7, 30, 1000), 1.0)
    assert "testing: 30 of 1000 batches at 40" in plain_line(board.status(1.0))
    board.saw(messages.Tested(7, {"accuracy": 0.5}), 2.0)
    assert board.status(2.0).testing == ""


def test_what_a_worker_could_not_restore_is_told_once(board: StatusBoard) -> None:
    board.saw(Joined(1, 2, 8, lost="its solver history is lost"), 0.0)
    assert board.status(1.0).notices == ("warning: worker 1: its solver history is lost",)


def test_a_worker_is_shown_with_the_leader_of_its_team_until_it_is_gone(board: StatusBoard) -> None:
    team = messages.Team(7, ((1, 1, 10), (0, 1, 10)))
    board.did(replace(train(0, 1), team=team), 1.0)
    board.did(train(2, 2), 1.0)
    assert [one.team for one in board.status(1.0).workers] == [1, None]
    board.did(train(0, 3), 2.0)
    assert board.status(2.0).workers[0].team is None
    board.did(replace(train(0, 4), team=team), 3.0)
    board.saw(Left(0, 1, "killed"), 3.0)
    assert board.status(3.0).workers[0].team is None


def test_a_worker_that_is_set_aside_is_gone_with_the_reason(board: StatusBoard) -> None:
    board.did(SetAside(4, 1, "3 results in a row were refused"), 1.0)
    (worker,) = board.status(1.0).workers
    assert (worker.worker, worker.state) == (4, "gone: 3 results in a row were refused")


def test_speed_and_loss_are_of_the_latest_seconds(board: StatusBoard) -> None:
    board.did(train(0, 1), 0.0)
    board.did(Merge(1, 1, 10, 1.0, (part(0, 1, 10, 9.0),)), 1.0)
    board.did(Merge(2, 5, 50, 1.0, (part(0, 2, 30, 1.0), part(1, 3, 10, 2.0))), 15.0)
    status = board.status(20.0)
    assert status.loss == pytest.approx((30 * 1.0 + 10 * 2.0) / 40)
    assert status.images_per_s == pytest.approx(40 / RECENT_S)
    assert [worker.images_per_s for worker in status.workers] == [3.0, 1.0]
    assert (status.iteration, status.version, status.epoch) == (5, 2, 0.05)
    assert status.seconds == 20.0


def test_speed_at_the_start_is_over_the_seconds_there_were(board: StatusBoard) -> None:
    board.did(train(0, 1), 10.0)
    board.did(Merge(1, 1, 10, 1.0, (part(0, 1),)), 12.0)
    assert board.status(12.0).images_per_s == 5.0


def test_a_run_without_results_has_neither_loss_nor_speed(board: StatusBoard) -> None:
    status = board.status(3.0)
    assert math.isnan(status.loss)
    assert status.images_per_s == 0.0


def test_dropped_results_are_counted_by_worker_and_by_kind(board: StatusBoard) -> None:
    for decision in ("late", "late", "refused", "discarded"):
        board.did(Drop(2, 1, 7, decision, "why"), 1.0)
    assert board.dropped == {"late": 2, "refused": 1, "discarded": 1}
    assert board.status(1.0).workers[0].dropped == 4


def test_metrics_are_shown_with_the_iteration_they_belong_to(board: StatusBoard) -> None:
    board.did(Merge(1, 1, 10, 1.0, (part(0, 1),)), 1.0)
    board.did(messages.Evaluate(1, 1), 1.0)
    board.did(Merge(2, 2, 20, 1.0, (part(0, 2),)), 2.0)
    board.saw(messages.Tested(1, {"accuracy": 0.5}), 3.0)
    status = board.status(3.0)
    assert (status.tested_iteration, status.metrics) == (1, {"accuracy": 0.5})
    board.saw(messages.Tested(2, {}, "no answer"), 4.0)
    assert board.status(4.0).metrics == {"accuracy": 0.5}


def test_that_batchnorm_has_no_statistics_yet_is_said_once(board: StatusBoard) -> None:
    nothing = {"accuracy": float("nan"), "loss": float("nan")}
    for version in (0, 1):
        board.saw(messages.Tested(version, nothing), 1.0)
    status = board.status(1.0)
    assert [line.partition(":")[0] for line in status.notices] == [
        "the test at iteration 0 has no number for accuracy, loss"
    ]
    assert "test at 0: accuracy nan, loss nan" in plain_line(status)


def test_a_board_does_not_grow_with_the_run(board: StatusBoard) -> None:
    for version in range(1, 5001):
        board.did(Merge(version, version, 10 * version, 1.0, (part(0, version),)), version / 10)
    assert len(board._iterations) <= 1000
    assert len(board._recent) <= 10 * RECENT_S + 1
    assert len(board._lines[0].recent) <= 10 * RECENT_S + 1


# ---------------------------------------------------------------- runlog


def test_every_result_has_one_line(tmp_path: Path, log: MetricsLog) -> None:
    """A run with all faults: as many lines as results reached the master, each with what became of it."""
    results: list[tuple[int, int, int]] = []

    class Counting:
        def __init__(self, after: Observer) -> None:
            self.after = after

        def saw(self, event: Event, now: float) -> None:
            if isinstance(event, Trained):
                results.append((event.worker, event.incarnation, event.ticket))
            self.after.saw(event, now)

        def did(self, action: Action, now: float) -> None:
            self.after.did(action, now)

    faults = Faults(die=0.05, repeat=0.2, late=0.1, poison=0.1, return_s=0.5)
    simulation = simulate(
        WeedOut(AddDelta(), window=2),
        Plan(10, 200, workers=4),
        world=World(faults=faults, slowness=lambda worker: (1.0, 1.0, 1.0, 5.0)[worker]),
        observer=lambda trace: Counting(log),
        seed=3,
    )
    written = [line for line in lines(tmp_path) if line["event"] == "result"]
    told = [(line["worker"], line["incarnation"], line["ticket"]) for line in written]
    assert told == results
    assert set(Counter(line["decision"] for line in written)) == {
        "merged",
        "discarded",
        "late",
        "refused",
    }
    merged = [line for line in written if line["decision"] == "merged"]
    assert sum(line["samples"] for line in merged) == simulation.outcome.samples
    assert [line["version"] for line in merged] == list(range(1, simulation.outcome.version + 1))
    assert all(line["reason"] for line in written if line["decision"] != "merged")


def test_a_merged_result_is_written_with_all_that_is_known(tmp_path: Path, log: MetricsLog) -> None:
    log.saw(Trained(0, 1, 5, 0.5, 10, {"fetch": 0.1, "compute": 0.7}), 101.0)
    log.did(Merge(3, 2, 20, 0.5, (Part(0, 1, 5, 10, 4, 0.25, steps=2),)), 101.5)
    assert lines(tmp_path) == [
        {
            "time": 1.5, "event": "result", "decision": "merged", "worker": 0, "incarnation": 1,
            "ticket": 5, "version": 3, "iteration": 2, "staleness": 4, "samples": 10, "steps": 2,
            "loss": 0.25, "rate": 0.5, "timings": {"fetch": 0.1, "compute": 0.7},
        }
    ]  # fmt: skip


def test_numbers_that_json_does_not_know_are_null(tmp_path: Path, log: MetricsLog) -> None:
    log.did(Drop(0, 1, 5, "refused", "it is not finite", loss=float("inf")), 101.0)
    log.saw(messages.Tested(1, {"loss": float("nan")}), 102.0)
    assert lines(tmp_path)[0]["loss"] is None
    assert lines(tmp_path)[1]["metrics"] == {"loss": None}


def test_joins_deaths_tests_snapshots_and_the_end_have_their_lines(
    tmp_path: Path, log: MetricsLog
) -> None:
    log.saw(Joined(0, 1, 10), 100.0)
    log.did(Merge(4, 9, 90, 1.0, ()), 101.0)
    log.saw(messages.Tested(4, {"accuracy": 0.5}), 102.0)
    log.saw(Snapshotted(4, 9), 103.0)
    log.did(SetAside(0, 1, "bad results"), 104.0)
    log.saw(Left(1, 2, "killed"), 105.0)
    log.did(TeamGivenUp((0, 2), "they cannot meet"), 105.5)
    log.did(Waiting(WAITS), 105.6)
    log.did(Waiting(""), 105.7)
    log.did(Finish(False, "no workers", 2, 1), 106.0)
    assert lines(tmp_path) == [
        {"time": 0.0, "event": "joined", "worker": 0, "incarnation": 1},
        {"time": 2.0, "event": "test", "version": 4, "iteration": 9,
         "metrics": {"accuracy": 0.5}, "problem": None},
        {"time": 3.0, "event": "snapshot", "version": 4, "iteration": 9, "problem": None},
        {"time": 4.0, "event": "set-aside", "worker": 0, "reason": "bad results"},
        {"time": 5.0, "event": "left", "worker": 1, "incarnation": 2, "cause": "killed"},
        {"time": 5.5, "event": "team-given-up", "workers": [0, 2], "reason": "they cannot meet"},
        {"time": 5.6, "event": "workers", "problem": WAITS},
        {"time": 5.7, "event": "workers", "problem": None},
        {"time": 6.0, "event": "finish", "complete": False, "reason": "no workers", "trained_again": 2,
         "left_out": 1},
    ]  # fmt: skip


def test_a_team_that_is_given_up_is_told_once(board: StatusBoard) -> None:
    board.did(TeamGivenUp((0, 2), "they cannot meet"), 1.0)
    assert board.status(1.0).notices == ("warning: they cannot meet",)


def test_a_run_that_waits_for_workers_says_so_once_and_is_seen_to_wait(board: StatusBoard) -> None:
    board.did(Waiting(WAITS), 1.0)
    assert (board.state, board.status(1.0).notices) == (WAITS, (f"warning: the run {WAITS}",))
    board.did(Waiting(""), 2.0)
    assert (board.state, board.status(2.0).notices[1:]) == ("training", (WORKERS_BACK,))


def test_a_join_tells_where_the_worker_computes(tmp_path: Path, log: MetricsLog) -> None:
    log.saw(Joined(3, 7, 10, runs_at=RunsAt("alpha", 4711, 2, "0-1")), 100.0)
    assert lines(tmp_path) == [
        {"time": 0.0, "event": "joined", "worker": 3, "incarnation": 7, "host": "alpha", "process": 4711,
         "threads": 2, "cores": "0-1"},
    ]  # fmt: skip


def test_a_line_is_there_as_soon_as_it_is_known(tmp_path: Path, log: MetricsLog) -> None:
    log.saw(Joined(0, 1, 10), 100.0)
    assert len(lines(tmp_path)) == 1


def test_a_folder_that_holds_a_run_is_not_taken_again(tmp_path: Path) -> None:
    folder = create_run_dir(tmp_path / "run")
    write_result(folder, {"accuracy": float("nan"), "version": 3})
    assert json.loads((folder / RESULT).read_text()) == {"accuracy": None, "version": 3}
    with pytest.raises(ConfigError, match="already holds a run; give another"):
        create_run_dir(folder)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        create_run_dir(tmp_path / "file" / "run")


def test_files_are_written_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", "first")
    write_whole(tmp_path / "a.txt", "second")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "second"
