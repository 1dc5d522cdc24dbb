"""When a run is continued in the same command, and when not."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caffenets.weight_files.stored import StoredState
from speedo.actors.attempts import Attempt, in_attempts, parting
from speedo.actors.run_stores import RunStores
from speedo.errors import (
    ClusterError,
    ConfigError,
    EngineError,
    FencedError,
    RunInterrupted,
    SpeedoError,
    StoreError,
    TrainingStopped,
)
from speedo.run.caffe_snapshot import CaffeSnapshot
from speedo.run.config.run_config import RunConfig, make_config
from speedo.run.prepare import PreparedRun
from speedo.run.result import RunResult
from speedo.run_dir.directory import CHECKPOINTS
from speedo.run_dir.fence import claim, epoch_of

DEAD = RunInterrupted("Ray's raylet process on this machine died", "; continue with --resume run")
Step = Callable[[Attempt], None]


def result_of(attempt: Attempt) -> RunResult:
    return RunResult(
        "sync", 2, True, "", 9, 9, None, {}, "", 1.0, 1.0, 9, {}, "", "",
        master_restarts=attempt.causes,
    )  # fmt: skip


class Trials:
    """Attempts that go as the steps say, one each; the last ends well."""

    def __init__(self, run_dir: Path, *steps: Step) -> None:
        self.run_dir, self.steps = run_dir, list(steps)
        self.seen: list[Attempt] = []
        self.notes: list[str] = []

    def once(self, attempt: Attempt) -> RunResult:
        self.seen.append(attempt)
        attempt.run_dir = self.run_dir
        if self.steps:
            self.steps.pop(0)(attempt)
        return result_of(attempt)

    def run(self, config: RunConfig) -> RunResult:
        return in_attempts(config, self.notes.append, self.once)


def trained(error: SpeedoError) -> Step:
    def step(attempt: Attempt) -> None:
        attempt.trains()
        raise error

    return step


def started(error: SpeedoError) -> Step:
    def step(attempt: Attempt) -> None:
        raise error

    return step


def with_checkpoint(folder: Path) -> Path:
    (folder / CHECKPOINTS).mkdir(parents=True)
    (folder / CHECKPOINTS / "000000-000000000001.checkpoint").touch()
    return folder


def weights_in(folder: Path) -> Path:
    (folder / "first.caffemodel").touch()
    return folder / "first.caffemodel"


def config(**options: object) -> RunConfig:
    return make_config({"workers": 2, **options})


def test_it_continues_from_the_checkpoint_in_the_same_directory(tmp_path: Path) -> None:
    run_dir = with_checkpoint(tmp_path / "run")
    trials = Trials(run_dir, trained(DEAD), trained(RunInterrupted("the master hangs")))
    weights = weights_in(tmp_path)
    result = trials.run(config(run_dir=run_dir, weights=weights))
    assert result.master_restarts == (DEAD.why, "the master hangs")
    first, second, _ = trials.seen
    assert (first.config.resume, first.config.weights) == (None, weights)
    assert (second.config.resume, second.config.run_dir) == (run_dir, None)
    assert (second.config.weights, second.anew_in) == (None, None)
    assert trials.notes[0] == (
        f"warning: {DEAD.why}: the run begins again from the newest checkpoint, restart 1 of 5"
    )
    assert trials.notes[1].endswith("restart 2 of 5")


def test_a_run_without_a_checkpoint_begins_anew_with_all_its_options(tmp_path: Path) -> None:
    trials = Trials(tmp_path, trained(DEAD))
    given = config(run_dir=tmp_path, weights=weights_in(tmp_path))
    trials.run(given)
    assert trials.seen[1].config == given
    assert trials.seen[1].anew_in == tmp_path
    assert "from the start, as there is no checkpoint" in trials.notes[0]


def begun(run_dir: Path, **options: Any) -> PreparedRun:
    """A run as an attempt has prepared it."""
    settings: Any = SimpleNamespace(run="a1b2c3")
    resumed = options.pop("resumed", None)
    return PreparedRun(config(**options), settings, run_dir, run_dir, None, resumed)


@pytest.mark.slow
def test_it_goes_on_from_the_newest_center_in_the_same_stores(tmp_path: Path) -> None:
    """With or without a checkpoint, and also if a restart does not come so far as to prepare the run."""
    made = begun(tmp_path, weights=weights_in(tmp_path))
    closed: list[RunStores] = []

    def first(attempt: Attempt) -> None:
        assert not attempt.takes_over
        attempt.made = made
        attempt.stores = Watched()
        trained(DEAD)(attempt)

    class Watched(RunStores):
        def close(self) -> None:
            closed.append(self)

    def second(attempt: Attempt) -> None:
        assert not closed
        raise ClusterError("no Ray node")

    def third(attempt: Attempt) -> None:
        again = attempt.prepared(trials.notes.append)
        assert (again.settings, again.config) == (made.settings, made.config)
        assert again.continues
        assert attempt.takes_over
        trained(RunInterrupted("the master hangs"))(attempt)

    trials = Trials(tmp_path, first, second, third)
    trials.run(made.config)
    assert all(attempt.config == made.config for attempt in trials.seen)
    assert len({id(attempt.stores) for attempt in trials.seen[1:]}) == 1
    assert closed == [trials.seen[-1].stores]
    assert [note.partition("from the ")[2] for note in trials.notes] == [
        f"newest center, restart {number} of 5" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("what", ["servers", "a snapshot of Caffe's"])
def test_what_no_store_of_the_master_has_is_not_taken_from_there(tmp_path: Path, what: str) -> None:
    snapshot = CaffeSnapshot(tmp_path, 0, tmp_path, StoredState(0, "", 0, ()))
    options: dict[str, Any] = {"servers": "2"} if what == "servers" else {"resumed": snapshot}
    made = begun(tmp_path, **options)

    def first(attempt: Attempt) -> None:
        attempt.made = made
        trained(DEAD)(attempt)

    trials = Trials(tmp_path, first)
    trials.run(made.config)
    assert not trials.seen[1].takes_over
    assert "from the start, as there is no checkpoint" in trials.notes[0]


def test_it_ends_after_so_many_restarts_in_a_row(tmp_path: Path) -> None:
    trials = Trials(with_checkpoint(tmp_path), *[trained(DEAD)] * 9)
    with pytest.raises(RunInterrupted, match="continue with --resume run"):
        trials.run(config(master_restarts=2))
    assert len(trials.seen) == 3
    trials = Trials(tmp_path, *[trained(DEAD)] * 9)
    with pytest.raises(RunInterrupted):
        trials.run(config(master_restarts=0))
    assert len(trials.seen) == 1
    assert trials.notes == []


@pytest.mark.parametrize(
    "error", [ConfigError("no"), FencedError("no"), TrainingStopped("no"), EngineError("no"), ClusterError("no")]
)  # fmt: skip
def test_other_errors_end_it(tmp_path: Path, error: SpeedoError) -> None:
    for step in (started(error), trained(error)):
        trials = Trials(with_checkpoint(tmp_path / str(id(step))), step)
        with pytest.raises(type(error)):
            trials.run(config())
        assert len(trials.seen) == 1


@pytest.mark.slow
def test_a_restart_that_does_not_start_counts_and_is_tried_again_after_a_pause(
    tmp_path: Path,
) -> None:
    trials = Trials(with_checkpoint(tmp_path), trained(DEAD), started(ClusterError("no Ray node")))
    began = time.monotonic()
    assert trials.run(config()).master_restarts == (DEAD.why, "no Ray node")
    assert time.monotonic() - began >= 1.0
    assert "in 1 s from the newest checkpoint, restart 2 of 5" in trials.notes[1]
    trials = Trials(tmp_path, trained(DEAD), started(ConfigError("its solver was changed")))
    with pytest.raises(ConfigError, match="its solver was changed"):
        trials.run(config())


def test_a_run_that_was_asked_to_stop_is_not_continued(tmp_path: Path) -> None:
    def stopped(attempt: Attempt) -> None:
        attempt.trains()
        with attempt.signals() as signals:
            signals.append("Ctrl-C")
        raise DEAD

    trials = Trials(with_checkpoint(tmp_path), stopped)
    with pytest.raises(RunInterrupted):
        trials.run(config())
    assert len(trials.seen) == 1


def test_a_run_that_another_command_has_taken_over_is_left_to_it(tmp_path: Path) -> None:
    run_dir = with_checkpoint(tmp_path)

    def taken_over(attempt: Attempt) -> None:
        attempt.epoch = 0
        attempt.trains()
        claim(run_dir)  # by another command, while all of ours stood still
        raise DEAD

    trials = Trials(run_dir, taken_over)
    with pytest.raises(FencedError, match="its epoch is 1, ours 0"):
        trials.run(config())
    assert len(trials.seen) == 1

    def too_late(attempt: Attempt) -> None:
        claim(run_dir)
        attempt.claims(run_dir, continues=True)

    trials = Trials(run_dir, lambda attempt: ours(attempt, run_dir), too_late)
    with pytest.raises(FencedError, match="its epoch is 3, ours 2"):
        trials.run(config())
    assert epoch_of(run_dir) == 3


def ours(attempt: Attempt, run_dir: Path) -> None:
    attempt.claims(run_dir, continues=True)
    trained(DEAD)(attempt)


@pytest.mark.slow
def test_a_signal_in_the_pause_ends_it_in_words(tmp_path: Path) -> None:
    failing = [trained(DEAD), *[started(ClusterError("no Ray node"))] * 9]
    trials = Trials(with_checkpoint(tmp_path), *failing)

    def interrupt() -> None:
        while len(trials.notes) < 3:  # the pause of 2 s
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        trials.run(config(master_restarts=20))
    assert time.monotonic() - began < 3.0
    assert trials.notes[-1] == f"stopped by Ctrl-C; continue with --resume {tmp_path}"


def test_the_nets_of_a_solver_are_tried_once_in_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []

    def check_nets(prepared: Any, scratch: Path) -> str:
        tried.append(prepared.spec)
        return f"facts of {prepared.spec}"

    monkeypatch.setattr("speedo.actors.attempts.check_nets", check_nets)
    solver = ["lenet"]

    def step(attempt: Attempt) -> None:
        prepared: Any = SimpleNamespace(spec=solver[0])
        assert str(attempt.facts(prepared, tmp_path)) == f"facts of {solver[0]}"
        if len(trials.seen) == 2:
            solver[0] = "another"  # its user has changed the file
        attempt.trains()
        raise DEAD

    trials = Trials(with_checkpoint(tmp_path / "run"), step, step, step)
    trials.run(config())
    assert tried == ["lenet", "another"]


@pytest.mark.parametrize(
    ("error", "has_standby", "steps"),
    [
        (None, True, ["leave"]),
        (StoreError("no Redis answers"), False, ["leave"]),
        (StoreError("no Redis answers"), True, ["abandon"]),
        (FencedError("another master"), True, ["abandon"]),
        (DEAD, False, ["abandon"]),
        (ConfigError("a mistake"), True, ["leave"]),
    ],
)
def test_hosts_are_not_sent_away_where_a_standby_may_have_the_run(
    error: SpeedoError | None, has_standby: bool, steps: list[str]
) -> None:
    took: list[str] = []
    with (
        suppress(SpeedoError),
        parting(
            lambda: took.append("leave"),
            otherwise=lambda: took.append("abandon"),
            has_standby=lambda: has_standby,
        ),
    ):
        if error is not None:
            raise error
    assert took == steps
