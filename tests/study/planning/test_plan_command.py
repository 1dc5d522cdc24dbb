"""`speedo plan` as it is typed: on a tiny net with real Caffe and Redis, and from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from speedo.cli.main import main
from speedo.study.planning.calibration import HANDLE_S, read_calibration, write_calibration
from tests.study.planning.test_from_run import write_run
from tests.study.planning.test_team_round import lenet
from tests.study.planning.times import calibration, passage
from tests.support.nets import net_text, write_data, write_solver
from tests.support.outside import outside as outside


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
@pytest.mark.usefixtures("forked_python")
@pytest.mark.redis
def test_a_net_is_measured_planned_and_kept(solver: Path, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    result = typed(
        solver, "--workers", "1..2", "--link", "10gbit", "--seconds", "0.1", "--save", tmp_path / "kept.json", "--json"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {(one["mode"], one["local_steps"]) for one in told["predictions"]} == {
        (mode, steps) for mode in ("sync", "async", "partial", "weed-out", "easgd") for steps in (1, 10)
    }  # fmt: skip
    assert {one["workers"] for one in told["predictions"]} == {1, 2}
    assert all(one["images_per_s"] > 0 for one in told["predictions"])
    assert told["best"] in told["predictions"]
    kept = read_calibration(tmp_path / "kept.json")
    assert kept.model_dump(mode="json") == told["calibration"]
    assert kept.far.write.seconds > 0
    assert 0.0 < kept.handle < 0.01
    assert kept.handle != HANDLE_S
    assert f"{1000 * kept.handle:.2f} ms for everything else" in kept.origin["master"]
    assert len(kept.steps) == 3
    over = kept.over_hosts
    assert over is not None
    assert sum(4 * (one.stop - one.start) for one in over.ready) == kept.nbytes
    assert [one.rows for one in over.products] == [kept.batch]
    assert over.ring_call > 0
    assert set(tmp_path.iterdir()) == before | {tmp_path / "kept.json"}


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
@pytest.mark.redis
def test_the_merge_is_measured_by_the_rule_and_planned_for_the_modes_that_it_goes_with(
    solver: Path, outside: str
) -> None:
    rule = f"{outside}:Backwards"
    result = typed(solver, "--rule", rule, "--workers", "2", "--seconds", "0.1", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {one["mode"] for one in told["predictions"]} == {"async", "partial", "weed-out"}
    assert f"merge by rule {rule} and" in told["calibration"]["origin"]["master"]


def test_a_rule_that_cannot_be_planned_with_is_told_first(file: Path) -> None:
    result = typed("--from", file, "--rule", "delay-compensated")
    assert (result.exit_code, "--rule is measured: give SOLVER" in result.output) == (2, True)
    result = typed("--mode", "async", "--rule", "outer-momentum")
    assert (result.exit_code, "does not go with mode async" in result.output) == (2, True)
    result = typed("--from", file, "--mode", "nowhere:Mode", "--workers", "2")
    assert (result.exit_code, "there is no module nowhere" in result.output) == (2, True)


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
@pytest.mark.redis
def test_messages_come_from_a_run_and_sizes_from_the_compression(
    solver: Path, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", rest=0.5)
    (run / "train.log").write_text("280 parameters in 4 blobs, 0.0 MB per exchange")
    result = typed(
        solver, "--from", run, "--workers", "1", "--mode", "async", "--seconds", "0.1", "--json",
        "--compress", "bfloat16",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["calibration"]
    assert told["message"] == pytest.approx(0.25, rel=0.1)
    assert str(run) in told["origin"]["messages"]
    assert (told["nbytes"], told["payload_bytes"], told["center_bytes"]) == (1120, 560, 1120)


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
@pytest.mark.redis
def test_a_net_that_caffe_refuses_is_told_in_its_words(solver: Path) -> None:
    net = solver.with_name("net.prototxt")
    net.write_text(net.read_text().replace("SoftmaxWithLoss", "NoSuchLoss"))
    result = typed(solver, "--seconds", "0.1")
    assert result.exit_code == 2
    assert "NoSuchLoss" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
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


@pytest.mark.slow
def test_servers_and_given_steps_are_told_and_planned_with(file: Path) -> None:
    words = (
        "--from",
        file,
        "--workers",
        "4",
        "--link",
        "1gbit",
        "--mode",
        "async",
        "--local-steps",
        "1",
    )
    given = typed(*words, "--step-time", "10ms", "--servers", "auto")
    assert given.exit_code == 0, given.output
    lines = given.stdout.splitlines()
    assert lines[0] == "made up, batch 10, 12.5 MB of parameters; one worker alone: 1,000 images/s"
    assert lines[1].endswith(
        "round trip 0.2 ms; a server of the center on each machine with workers"
    )
    assert "server busy" in given.stdout
    assert (
        "compute: given: 10 ms for a step of the whole batch, always the same, on no core"
        in given.stdout
    )
    two = typed(*words, "--threads", "2:1.6", "--servers", "2")
    assert "one plain Caffe with 2 threads: 160 images/s" in two.stdout
    assert "; the center on 2 servers" in two.stdout


def test_workers_of_a_host_are_a_team_unless_it_is_off(file: Path) -> None:
    words = (
        "--from",
        file,
        "--workers",
        "4",
        "--cores",
        "4",
        "--mode",
        "sync",
        "--whole-batch",
        "--json",
    )
    speeds = [
        json.loads(typed(*words, "--local-steps", "1", *more).stdout)["best"]["images_per_s"]
        for more in ((), ("--team", "host"), ("--team", "off"))
    ]
    assert speeds[0] == speeds[1] > 1.3 * speeds[2]


@pytest.mark.slow
def test_a_plan_says_what_goes_as_factors_or_that_it_is_not_known(
    file: Path, tmp_path: Path
) -> None:
    words = (
        *("--workers", "4", "--link", "100mbit", "--mode", "sync", "--whole-batch"),
        *("--local-steps", "1"),
    )
    old = typed("--from", file, *words)
    assert "a round with 1 local step and 4 workers: each machine sends 18.75 MB on the ring" in old.stdout  # fmt: skip
    assert "not known from a run, or a file of an earlier version: which inner products" in old.stdout  # fmt: skip
    known = tmp_path / "lenet.json"
    write_calibration(lenet(), known)
    found = typed("--from", known, *words)
    assert "each machine sends 0.19 MB on the ring, and 1.00 MB as factors of ip1/0" in found.stdout
    assert "not known" not in found.stdout
    told = json.loads(typed("--from", known, *words, "--team", "factors=off", "--json").stdout)
    assert told["site"]["factors"] == "off"
    assert (told["best"]["ring_bytes"], told["best"]["factor_bytes"]) == (2_586_480, 0)


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
@pytest.mark.redis
def test_with_a_given_step_a_net_needs_no_records(tmp_path: Path) -> None:
    """Weights for images of 6 x 6, which the prototxt crops: 6 x 1 x 3 x 3 + 6 and 4 x 24 + 4."""
    net = net_text(train="nowhere").replace(
        "transform_param { scale", "transform_param { crop_size: 6 force_gray: true scale"
    )
    solver = write_solver(tmp_path, net)
    kept = tmp_path / "kept.json"
    result = typed(solver, "--step-time", "80ms", "--workers", "1", "--save", kept, "--json")
    assert result.exit_code == 0, result.output
    told = read_calibration(kept)
    assert told.nbytes == 4 * (60 + 100)
    assert (told.batch_size, told.step_seconds(8), told.offloaded) == (8, 0.08, True)
    assert told.far.read.seconds > 0
    assert told.over_hosts is not None
    assert [one.rows for one in told.over_hosts.products] == [8]
    net = net_text(train="nowhere")
    unknown = typed(write_solver(tmp_path, net), "--step-time", "80ms")
    assert unknown.exit_code == 2
    assert "without them the size of the net is not known" in unknown.stderr


@pytest.mark.caffe
@pytest.mark.usefixtures("forked_python")
@pytest.mark.redis
def test_steps_are_measured_with_the_threads_that_are_asked_for(
    solver: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    result = typed(
        solver, "--threads", "2", "--workers", "1", "--mode", "async", "--seconds", "0.1", "--save", kept
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "one plain Caffe with 2 threads" in result.stdout
    assert read_calibration(kept).threads == 2
    again = typed("--from", kept, "--threads", "2", "--workers", "1", "--mode", "async")
    assert again.exit_code == 0, again.output


@pytest.mark.slow
def test_the_same_seed_prints_the_same(file: Path) -> None:
    words = (
        "--from",
        file,
        "--workers",
        "2",
        "--local-steps",
        "1",
        "--mode",
        "async",
        "--mode",
        "weed-out",
        "--seed",
        "3",
    )
    assert typed(*words).stdout == typed(*words).stdout


@pytest.mark.slow
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
        (("--servers", "many"), "--servers 'many' is no number from 0 to 10000"),
        (
            ("--threads", "2"),
            "the steps were measured with 1: give SOLVER, or how much faster they are",
        ),
        (("--threads", "2:1.8", "--step-time", "80ms"), "leave --threads out"),
        (("--step-time", "0ms"), "--step-time '0ms' is no time above 0; use 80ms"),
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
