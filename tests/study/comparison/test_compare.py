"""A comparison with real workers that Ctrl-C interrupts, and the same command continues it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from speedo.cli.main import main
from speedo.watch.report.run_history import read_history
from tests.support.commands import commands, wait_for_line
from tests.support.nets import LENET, net_text, records, write_data, write_lmdb, write_solver

pytestmark = [
    *(pytest.mark.caffe, pytest.mark.ray, pytest.mark.redis, pytest.mark.slow),
    pytest.mark.usefixtures("forked_python"),
]

EPOCHS = 50  # of 64 records in batches of 8: 400 iterations
LONGER = 8  # times as many of the mode: a run that ends long after a late signal


@dataclass
class Seen:
    """What both commands left and said, and what lay there between them."""

    folder: Path
    words: list[str]
    interrupted: tuple[int, str]
    between: dict[str, int]  # iterations of each run then
    done: tuple[int, str, str]
    sequential: tuple[int, int]  # inode of its log, before and after


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("compare")
    write_data(folder, train=64)
    solver = write_solver(folder, net_text(LENET), max_iter=100, base_lr=0.005)
    words = [
        "compare", str(solver), "--modes", "async", "--epochs", str(EPOCHS), "--longer", str(LONGER),
        "--tests", "0", "--out", str(folder / "out"),
    ]  # fmt: skip
    runs = folder / "out" / "runs"
    with commands(folder) as started:
        first = started.start(*words)
        wait_for_line(runs / "async-w2-seed1" / "metrics.jsonl", '"decision":"merged"', 120)
        os.kill(first.pid, signal.SIGINT)  # alone, as its child has a session of its own
        _, errors = first.communicate(timeout=200)
        between = {run.name: int(read_history(run).images // 8) for run in runs.iterdir()}
        log = runs / "sequential-seed1" / "metrics.jsonl"
        before = log.stat().st_ino
        second = started.start(*words)
        output, said = second.communicate(timeout=280)
        yield Seen(
            folder / "out", words, (first.returncode, errors), between,
            (second.returncode, output, said), (before, log.stat().st_ino),
        )  # fmt: skip


@pytest.mark.timeout(600)
def test_ctrl_c_ends_the_run_and_says_how_to_go_on(seen: Seen) -> None:
    status, errors = seen.interrupted
    assert status == 130, errors
    assert "stopped; the same command continues from here" in errors
    assert "Traceback" not in errors
    assert seen.between["sequential-seed1"] == 8 * EPOCHS
    assert 0 < seen.between["async-w2-seed1"] < 8 * EPOCHS * LONGER


def test_the_same_command_makes_only_what_is_missing(seen: Seen) -> None:
    status, output, errors = seen.done
    assert status == 0, errors
    assert "sequential-seed1" not in errors
    assert "[2/2] async-w2-seed1: going on with it" in errors
    assert seen.sequential[0] == seen.sequential[1]
    run = read_history(seen.folder / "runs" / "async-w2-seed1")
    assert run.complete, run.reason
    assert len(run.resumes) == 1
    assert run.images >= 64 * EPOCHS * LONGER
    assert output.splitlines()[-1].endswith("out/report.html")


def test_all_figures_are_in_one_file(seen: Seen) -> None:
    data = json.loads((seen.folder / "compare.json").read_text())
    assert (data["runs_done"], data["runs_planned"], data["records"]) == (2, 2, 64)
    alone, trained = data["series"]
    assert (alone["series"], trained["series"]) == ("sequential Caffe", "async, 2 workers")
    assert alone["epoch_factor"] == 1.0
    assert trained["images_per_s"] > 0
    assert trained["throughput_is"] == (
        "measured" if len(os.sched_getaffinity(0)) > 1 else "predicted"
    )
    assert trained["epoch_factor"] is not None or trained["epoch_factor_at_most"] is not None
    assert (seen.folder / "report.html").is_file()


def test_a_finished_comparison_makes_nothing_again(seen: Seen) -> None:
    again = CliRunner().invoke(main, seen.words)
    assert again.exit_code == 0, again.output
    assert "begun" not in again.output
    assert "async, 2 workers" in again.output


def test_another_command_in_its_folder_is_refused(seen: Seen) -> None:
    other = CliRunner().invoke(main, [*seen.words, "--seeds", "2"])
    assert other.exit_code == 2
    assert "holds another comparison (seeds was 1, is 2)" in other.output


def test_a_run_that_fails_is_told_and_the_others_are_made(tmp_path: Path) -> None:
    write_data(tmp_path, train=64)
    # A test reads 40 records; a run of ours looks at all of them first.
    images, labels = records(41, 2)
    labels[40] = 4
    write_lmdb(tmp_path / "test", images, labels)
    solver = write_solver(tmp_path, net_text(LENET))
    words = [
        "compare",
        str(solver),
        "--modes",
        "sync",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "sequential-seed1: done" in done.output
    assert "run sync-w2-seed1 failed (status 2: " in done.output
    assert "num_output 5 or more); see " in done.output
    assert "Traceback" not in done.output
    assert (tmp_path / "out" / "report.html").is_file()
    assert yaml.safe_load((tmp_path / "out" / "compare.yaml").read_text())["modes"] == ["sync"]


def test_a_dry_run_lists_the_runs_and_leaves_nothing(tmp_path: Path) -> None:
    write_data(tmp_path, train=64)
    solver = write_solver(tmp_path, net_text())
    words = ["compare", str(solver), "--modes", "async,easgd", "--epochs", "2", "--dry-run"]
    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    listed = [line.split()[0] for line in done.stdout.splitlines() if "iterations" in line]
    assert listed == ["sequential-seed1", "async-w2-seed1", "easgd-w2-seed1"]
    assert "3 runs, some " in done.stdout
    assert not (tmp_path / "out").exists()
