"""Modes of a user: found, tried before the run, trained with; what is broken is refused with the schedule."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedo.errors import ConfigError
from speedo.master.plan import Plan
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.sgd_modes.rules import AddDelta, Elastic
from speedo.study.contracts import trial
from speedo.study.contracts.trial import require_sound
from tests.support.outside import outside as outside
from tests.support.simulation.simulate import simulate

REPOSITORY = Path(__file__).parents[3]


def test_a_users_mode_is_tried_and_trained_with(outside: str) -> None:
    config = make_config({"mode": f"{outside}:EveryOther", "every": 4, "workers": 3})
    require_sound(config)
    run = simulate(make_strategy(config, 16), Plan(16, max_iter=20, workers=3), seed=1)
    assert run.outcome.complete
    assert run.trace.text().count("discarded") >= 3 * 20


def test_what_is_an_object_is_the_place_of_its_class_with_its_options(
    outside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(REPOSITORY)
    made = importlib.import_module(outside)
    config = make_config({"mode": made.EveryOther(AddDelta(0.5), every=3)})
    assert (config.mode, config.foreign) == (f"{outside}:EveryOther", {"every": 3})
    assert (config.rule, config.delta_scale) == ("add-delta", 0.5)
    assert config.code_from == str(tmp_path)
    heavy = make_config({"mode": "sync", "rule": made.Heavy(0.25), "team": "off"})
    assert make_strategy(heavy, 16).rule == made.Heavy(0.25)
    assert make_config({"mode": "partial", "rule": Elastic}).rule == "elastic"


def test_the_options_of_a_users_mode_are_checked(outside: str) -> None:
    with pytest.raises(ConfigError, match="every is 99: use 1 to 9"):
        make_config({"mode": f"{outside}:EveryOther", "every": 99})


class Own(AddDelta):
    """Of a test's own module."""


def test_a_class_that_no_other_process_can_import_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Own, "__module__", "__main__")
    with pytest.raises(ConfigError, match="class Own is of the program itself"):
        make_config({"mode": "async", "rule": Own})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Stuck", "it deadlocks: no worker trains, and workers 0, 1 would wait forever"),
        ("Twice", "it merges a result of worker 0 twice"),
        ("Raises", "KeyError: 'mine'"),
    ],
)
def test_a_broken_mode_is_refused_with_its_schedule(outside: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        require_sound(make_config({"mode": f"{outside}:{name}"}))
    first, *schedule = refused.value.problems[0].splitlines()
    assert words in first
    assert f"mode {outside}:{name} cannot be used: in the simulator, schedule 0" in first
    assert schedule[0].strip() == "workers 0, 1 join: train 0, 1"


@pytest.mark.slow
def test_a_mode_that_does_not_come_back_from_a_decision_is_refused(
    outside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "PATIENCE_S", 0.5)
    with pytest.raises(ConfigError, match="its trial has not ended after"):
        require_sound(make_config({"mode": f"{outside}:Sleeps"}))


def test_a_rule_that_breaks_a_promise_is_refused(outside: str) -> None:
    file = Path(f"{outside}.py")
    text = file.read_text()
    file.write_text(text + "\nclass Liar(Normed):\n    by_ranges = True\n")
    with pytest.raises(ConfigError, match="rule Liar says by_ranges, but"):
        require_sound(make_config({"mode": "async", "rule": f"{outside}:Liar"}))


def speedo(*words: str, folder: Path, path: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "speedo", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{path}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.processes
def test_the_command_refuses_a_mode_that_deadlocks_before_anything_starts(
    outside: str, tmp_path: Path
) -> None:
    ended = speedo("train", "--mode", f"{outside}:Stuck", folder=tmp_path)
    assert ended.returncode == 2
    assert "it deadlocks" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.processes
def test_a_module_that_is_not_there_is_said(tmp_path: Path) -> None:
    ended = speedo("train", "--mode", "nowhere_at_all:Stuck", folder=tmp_path)
    assert ended.returncode == 2
    assert "there is no module nowhere_at_all, neither installed nor in the folder" in ended.stderr


@pytest.mark.processes
def test_an_installed_package_has_its_modes_and_rules_in_the_help(
    outside: str, tmp_path: Path
) -> None:
    facts = tmp_path / "theirs-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        f"[speedo.modes]\nevery-other = {outside}:EveryOther\n\n"
        f"[speedo.rules]\nheavy = {outside}:Heavy\nlost = {outside}:Lost\nelastic = {outside}:Added\n"
    )
    told = speedo("train", "--help-all", folder=tmp_path, path=tmp_path)
    text = " ".join(told.stdout.split())
    assert "every-other|" in text.replace("| ", "|")
    assert "every-other: merge each N-th result." in text
    assert "rule heavy: momentum of the rounds." in text
    lost = speedo("train", "--rule", "lost", folder=tmp_path, path=tmp_path)
    assert lost.returncode == 2
    assert f"lost of the installed {outside}:Lost cannot be used" in lost.stderr
    wrong = speedo("train", "--mode", "sync", "--rule", "heavy=0.3", folder=tmp_path, path=tmp_path)
    assert (
        "heavy is 0.3, but only rule heavy uses it; give --rule, or leave heavy out" in wrong.stderr
    )


def test_the_rule_in_the_docs_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "docs" / "modes.md").read_text(encoding="utf-8")
    begin = text.index("# mine.py")
    (tmp_path / "mine_of_the_docs.py").write_text(text[begin : text.index("```", begin)])
    monkeypatch.chdir(tmp_path)
    config = make_config({"mode": "sync", "rule": "mine_of_the_docs:HeavyBall", "heavy": 0.7})
    assert config.teams
    require_sound(config)
