"""A comparison by a script: its runs, its table, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from speedo.cli.main import main
from speedo.watch.report.run_history import read_history
from tests.support.invariants import check_too_few, read_lines

SCRIPT = Path(__file__).parents[2] / "run" / "script" / "scripts" / "fit.py"
ALONE = "sync-w1-seed1"


def compare(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["compare", "--out", str(folder / "out"), *words])


@pytest.mark.ray
@pytest.mark.usefixtures("forked_python")
@pytest.mark.redis
def test_one_worker_and_the_modes_are_compared_and_made_once(tmp_path: Path) -> None:
    words = ("--modes", "easgd", "--sweep", "local_steps=2", str(SCRIPT), "none", "0.01")
    done = compare(tmp_path, *words)
    assert done.exit_code == 0, done.output
    heading, alone, easgd, page = done.stdout.splitlines()
    assert [word.strip() for word in heading.split("  ") if word.strip()] == [
        "run", "seconds", "records/s", "x throughput", "loss at end", "epochs to loss", "speed-up", "accuracy",
    ]  # fmt: skip
    assert alone.startswith("sync, 1 worker ")
    assert easgd.startswith("easgd, 2 workers ")
    # One worker reaches its own loss in its own time, after the three epochs that the script makes.
    assert alone.split()[-3:] == ["3.00", "1.00", "-"]
    data = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert (data["runs_done"], data["runs_planned"], data["records"]) == (2, 2, 240)
    assert data["reference"] == "sync, 1 worker"
    assert data["wish"]["script"] == [str(SCRIPT), "none", "0.01"]
    runs = {run.name: read_history(run) for run in (tmp_path / "out" / "runs").iterdir()}
    assert set(runs) == {ALONE, "easgd-w2-local_steps=2-seed1"}
    for run in runs.values():
        assert run.complete
        assert run.images == 720
        assert run.seed == 1
    other = runs["easgd-w2-local_steps=2-seed1"]
    assert (other.mode, other.wanted, other.options["local_steps"]) == ("easgd", 2, 2)
    assert page == str(tmp_path / "out" / "report.html")
    assert "SGD modes compared: fit.py" in Path(page).read_text()

    again = compare(tmp_path, *words)
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    assert "begun" not in again.output
    another = compare(tmp_path, *words[:-1], "0.5")
    assert another.exit_code == 2
    assert "holds another comparison (script was " in another.output


@pytest.mark.ray
@pytest.mark.usefixtures("forked_python")
@pytest.mark.redis
@pytest.mark.matrix
def test_a_run_that_fails_is_told_and_the_others_are_made(tmp_path: Path) -> None:
    done = compare(
        tmp_path, "--modes", "async", "--sweep", "restarts=0", "--sweep", "min_workers=2", "--sweep", "join_timeout=2",
        str(SCRIPT), "nan",
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    name = "async-w2-restarts=0-min_workers=2-join_timeout=2-seed1"
    assert f"run {name} failed (status 3: " in done.output
    assert f"see {tmp_path / 'out' / 'logs' / f'{name}.log'}" in done.output
    assert "sync, 1 worker " in done.stdout
    assert read_history(tmp_path / "out" / "runs" / ALONE).complete
    run = tmp_path / "out" / "runs" / name
    lines = read_lines(run / "metrics.jsonl")
    assert check_too_few(lines) == [True]
    assert "waits for workers: 1 of at least 2 are there" in (run / "train.log").read_text()
    last = max((one["version"] for one in lines if one.get("decision") == "merged"), default=0)
    assert [one["version"] for one in lines if one["event"] == "checkpoint"][-1] == last


def test_a_dry_run_lists_the_runs_each_once(tmp_path: Path) -> None:
    done = compare(
        tmp_path, "--dry-run", "--workers", "1,2", "--modes", "sync,easgd", "--seeds", "2",
        "--sweep", "moving_rate=0.3,0.9", str(SCRIPT), "--dry-run",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    expected = [
        name.replace("SEED", f"seed{seed}")
        for seed in (1, 2)
        for name in (
            "sync-w1-SEED",
            "easgd-w1-moving_rate=0.3-SEED",
            "easgd-w1-moving_rate=0.9-SEED",
            "sync-w2-SEED",
            "easgd-w2-moving_rate=0.3-SEED",
            "easgd-w2-moving_rate=0.9-SEED",
        )
    ]
    assert done.stdout.splitlines() == expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--epochs", "3", "--lr", "0.1", str(SCRIPT)),
            "--epochs, --lr: a script decides that itself; give it its own arguments, behind its name",
        ),
        (("--loss", "test", str(SCRIPT)), "--loss test: the runs of a script are compared by"),
        (("--sweep", "batch=8,16", str(SCRIPT)), "--sweep batch: `speedo run` has no --batch"),
        (("--sweep", "moving_rate=7.0", "--modes", "easgd", str(SCRIPT)), "seed1: moving_rate is"),
        (("nothing.py",), "nothing.py is not a file; give the path of a Python script"),
        (("solver.prototxt", "more"), "'more' is one argument too many: give one solver"),
    ],
)
def test_what_a_comparison_by_a_script_cannot_have_is_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = compare(tmp_path, *words)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []
