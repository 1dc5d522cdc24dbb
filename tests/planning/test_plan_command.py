"""`speedo plan` as it is typed: on a tiny net with real Caffe and Redis, and from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from speedo.cli.main import main
from speedo.planning.calibration import read_calibration, write_calibration
from tests.planning.test_from_run import write_run
from tests.planning.times import calibration, passage
from tests.support.nets import net_text, write_data, write_solver


def typed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)])


@pytest.fixture
def solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_data(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return write_solver(tmp_path, net_text())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A calibration in a file: 10 samples in 100 ms, 20 ms for a passage."""
    path = tmp_path / "measured.json"
    write_calibration(
        calibration(near=passage(0.02), far=passage(0.02), origin={"compute": "made up"}), path
    )
    return path


@pytest.mark.caffe
@pytest.mark.redis
def test_a_net_is_measured_planned_and_kept(solver: Path, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    result = typed(
        solver, "--workers", "1..4", "--link", "10gbit", "--seconds", "0.1", "--save", tmp_path / "kept.json", "--json"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {(one["mode"], one["local_steps"]) for one in told["predictions"]} == {
        (mode, steps) for mode in ("sync", "async", "partial", "weed-out", "easgd") for steps in (1, 10)
    }  # fmt: skip
    assert {one["workers"] for one in told["predictions"]} == {1, 2, 4}
    assert all(one["images_per_s"] > 0 for one in told["predictions"])
    assert told["best"] in told["predictions"]
    kept = read_calibration(tmp_path / "kept.json")
    assert kept.model_dump(mode="json") == told["calibration"]
    assert kept.far.write.seconds > 0
    assert len(kept.steps) == 3
    assert set(tmp_path.iterdir()) == before | {tmp_path / "kept.json"}


@pytest.mark.caffe
@pytest.mark.redis
def test_messages_come_from_a_run_and_sizes_from_the_compression(
    solver: Path, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", rest=0.5)
    (run / "train.log").write_text("280 parameters in 4 blobs, 0.0 MB per exchange")
    result = typed(
        solver, "--from", run, "--workers", "1", "--seconds", "0.1", "--json", "--compress", "bfloat16"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["calibration"]
    assert told["message"] == pytest.approx(0.25, rel=0.1)
    assert str(run) in told["origin"]["messages"]
    assert (told["nbytes"], told["payload_bytes"], told["center_bytes"]) == (1120, 560, 1120)


@pytest.mark.caffe
@pytest.mark.redis
def test_a_net_that_caffe_refuses_is_told_in_its_words(solver: Path) -> None:
    net = solver.with_name("net.prototxt")
    net.write_text(net.read_text().replace("SoftmaxWithLoss", "NoSuchLoss"))
    result = typed(solver, "--seconds", "0.1")
    assert result.exit_code == 2
    assert "NoSuchLoss" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_table_names_the_best_and_what_limits_it(file: Path) -> None:
    result = typed(
        "--from",
        file,
        "--workers",
        "1..4",
        "--link",
        "1gbit",
        "--mode",
        "async",
        "--local-steps",
        "1,10",
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "made up, batch 10, 12.5 MB of parameters; one plain Caffe: 100 images/s"
    assert lines[1].startswith("1 worker on each machine, the master and Redis on one more")
    assert lines[3].split() == ["images/s", "1", "2", "4"]
    assert lines[4].startswith("async, 1 local step ")
    assert any(line.startswith("best: async, 10 local steps, 4 workers: ") for line in lines)
    assert any(line.startswith("best with 1 local step: async, 1 local step, ") for line in lines)
    assert any(line.startswith("  limit: the workers' own arithmetic") for line in lines)
    assert "compute: made up" in lines


def test_the_same_seed_prints_the_same(file: Path) -> None:
    words = (
        "--from",
        file,
        "--workers",
        "1..4",
        "--mode",
        "async",
        "--mode",
        "weed-out",
        "--seed",
        "3",
    )
    assert typed(*words).stdout == typed(*words).stdout


def test_a_run_is_enough_to_plan_with(tmp_path: Path) -> None:
    result = typed(
        "--from", write_run(tmp_path / "run"), "--workers", "2", "--cores", "4", "--mode", "easgd"
    )
    assert result.exit_code == 0, result.output
    assert "4.0 MB of parameters; one plain Caffe: 1,600 images/s" in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--workers", "many"), "--workers 'many' is no number or range"),
        (("--workers", "8..2"), "a range goes from 1 or more"),
        (("--link", "fast"), "--link 'fast' is no rate above 0; use bits per second"),
        (("--link", "1gbit", "--latency", "low"), "--latency 'low' is no time"),
        (("--local-steps", "0"), "--local-steps '0' is no list of numbers"),
        (("--workers", "11", "--mode", "sync"), "batch_size 10 cannot be split over 11 workers"),
        (("--compress", "int8"), "--compress is measured: give SOLVER beside --from"),
        (("--compress", "zip"), "zip"),
        (("--compress", "topk:0.1", "--mode", "easgd"), "use bfloat16 or int8"),
        (("a/solver.prototxt",), "leave SOLVER out, or --from"),
        (("--from", "nowhere"), "--from nowhere is not there; give a run directory"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_remedy(
    file: Path, words: tuple[Any, ...], sentence: str
) -> None:
    result = typed("--from", file, *words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stdout == ""


def test_mistakes_are_told_before_anything_is_measured(tmp_path: Path) -> None:
    result = typed("--link", "1", "--workers", "1")
    assert result.exit_code == 2
    assert "measuring" not in result.stderr
