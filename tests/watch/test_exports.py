"""What a run writes for other tools, read by these tools: TensorBoard, Prometheus, Caffe's parse_log."""

from __future__ import annotations

import csv
import math
import os
import re
import socket
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from speedo import messages
from speedo.errors import ConfigError
from speedo.exchange.vector import Blob, Layout
from speedo.messages import (
    Kind,
    Merge,
    Part,
    Train,
)
from speedo.run.config.run_config import make_config
from speedo.run.exports import check_exports
from speedo.run_dir.checkpoint_file import Counters
from speedo.storage.memory_store import MemoryStore
from speedo.watch.export.background import Background
from speedo.watch.export.base import Told
from speedo.watch.export.caffe_log import CaffeLog, by_net, display_of
from speedo.watch.export.tensorboard import PREFIX, TensorBoardFile
from tests.support.commands import how_loaded
from tests.support.disks import fill, small_disk
from tests.support.nets import net_text, write_data, write_solver
from tests.whole_runs.local import train_here

LAYOUT = Layout((Blob("ip/0", (2, 3)),))
COUNTERS = Counters("one", 0, "async", 40, 40, 400, 40, 1.0, 1)


def merge(version: int, loss: float = 0.5, samples: int = 10, staleness: int = 0) -> Merge:
    part = Part(0, 1, version, samples, staleness, loss)
    return Merge(version, version, version * samples, 1.0, (part,), ({"merge": 0.25},))


def train(ticket: int) -> Train:
    return Train(0, 1, ticket, 0, 0, 1, 1, Kind.DELTA)


# ---------------------------------------------------------------- a run of Caffe, with all of it


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of real Caffe in this process, with every export."""
    folder = tmp_path_factory.mktemp("exports")
    write_data(folder)
    text = net_text(train=f"{folder}/train", test=f"{folder}/test")
    solver = write_solver(folder, text, max_iter=60, test_interval=20, display=10)
    result, _, _ = train_here(
        solver, MemoryStore(), folder / "run", workers=2, mode="async", tensorboard_histograms=True,
        caffe_log="auto",
    )  # fmt: skip
    assert result.complete
    return folder / "run"


def tensorboard(folder: Path) -> EventAccumulator:
    """TensorBoard's own reader of a run, with everything that there is."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    read.Reload()
    return read


@pytest.mark.caffe
def test_tensorboard_reads_the_scalars_and_histograms_of_a_run(run: Path) -> None:
    read = tensorboard(run)
    tags = read.Tags()
    train = ["learning_rate", "loss", "images_per_second", "staleness"]
    assert {f"train/{name}" for name in train} <= set(tags["scalars"])
    tests = [name for name in tags["scalars"] if name.startswith("test/")]
    assert "test/accuracy" in tests
    for name in tests:
        assert [one.step for one in read.Scalars(name)] == [0, 20, 40, 60]
    losses = read.Scalars("train/loss")
    assert losses[-1].step == 60
    assert all(math.isfinite(one.value) for one in losses)
    assert abs(losses[-1].wall_time - (run / "metrics.jsonl").stat().st_mtime) < 60
    histograms = read.Histograms(tags["histograms"][0])
    assert {one.step for one in histograms} == {0, 20, 40, 60}
    assert len(tags["histograms"]) >= 2


def caffe_archive() -> Path:
    """The source of Caffe that setup has fetched."""
    cache = Path(os.environ.get("SPEEDO_CACHE") or Path.home() / ".cache" / "speedo")
    found = sorted(cache.glob("source/caffe_*.orig.tar.gz"))
    if not found:
        pytest.skip(
            "there is no source archive of Caffe: `make setup` fetches it, unless you brought a pycaffe"
        )
    return found[0]


def parsed(log: Path, folder: Path) -> dict[str, list[dict[str, float]]]:
    """The tables that Caffe's own tools/extra/parse_log.py makes of a log, run from the archive.

    It is a program for Python 2: the one statement of it that no Python 3 takes is changed.
    """
    with tarfile.open(caffe_archive()) as archive:
        for name in archive.getnames():
            if re.search(r"tools/extra/(parse_log|extract_seconds)\.py$", name):
                member = archive.extractfile(name)
                assert member is not None
                text = member.read().decode()
                text = re.sub(
                    r"^( *)print ('Wrote %s' % output_filename)$", r"\1print(\2)", text, flags=re.M
                )
                (folder / Path(name).name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", folder / "parse_log.py", log, folder],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    tables = {}
    for kind in ("train", "test"):
        with (folder / f"{log.name}.{kind}").open() as file:
            rows = [{key: float(one) for key, one in row.items()} for row in csv.DictReader(file)]
        tables[kind] = rows
    return tables


@pytest.mark.caffe
def test_caffes_parse_log_reads_the_log_of_a_run(run: Path, tmp_path: Path) -> None:
    tables = parsed(run / "caffe.log", tmp_path)
    steps = [row["NumIters"] for row in tables["train"]]
    assert steps == sorted(steps)
    assert steps[-1] == 60
    assert len(steps) >= 6  # one for each `display`, and the first
    assert all(row["loss"] > 0 and row["LearningRate"] > 0 for row in tables["train"])
    assert [row["NumIters"] for row in tables["test"]] == [0, 20, 40, 60]
    board = {one.step: one.value for one in tensorboard(run).Scalars("test/accuracy")}
    for row in tables["test"]:
        assert row["accuracy"] == pytest.approx(board[int(row["NumIters"])], rel=1e-5)
    text = (run / "caffe.log").read_text()
    assert re.search(
        r"^I\d{4} \S+ +\d+ \S+\] Iteration \d+ \(\S+ iter/s, \S+s/\d+ iters\), loss = \S+$",
        text,
        re.M,
    )
    assert "Optimization Done" in text


@pytest.mark.caffe
def test_a_run_without_the_options_writes_none_of_it(tmp_path: Path) -> None:
    write_data(tmp_path)
    text = net_text(train=f"{tmp_path}/train", test=f"{tmp_path}/test")
    solver = write_solver(tmp_path, text, max_iter=4)
    before = threading.active_count()
    train_here(solver, MemoryStore(), tmp_path / "run", workers=2, mode="sync")
    assert not list((tmp_path / "run").glob("*events*"))
    assert not (tmp_path / "run" / "caffe.log").exists()
    assert threading.active_count() <= before


# ---------------------------------------------------------------- TensorBoard


def test_a_resumed_run_continues_its_curves_and_takes_back_what_was_undone(tmp_path: Path) -> None:
    first = TensorBoardFile(tmp_path, lambda iteration: 0.1, LAYOUT)
    first.take(train(1), 0.0)
    for version in range(1, 61):
        first.take(merge(version, loss=1.0), float(version))
    first.close()
    time.sleep(0.01)  # TensorBoard takes files in the order of their names
    second = TensorBoardFile(tmp_path, lambda iteration: 0.1, LAYOUT, resumed=COUNTERS)
    second.take(train(1000), 100.0)
    for version in range(41, 71):
        second.take(merge(version, loss=2.0), 100.0 + version)
    second.take(messages.Tested(70, {"accuracy": 0.5}), 200.0)
    second.close()
    assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 2
    read = tensorboard(tmp_path)
    losses = {one.step: one.value for one in read.Scalars("train/loss")}
    assert losses == {**dict.fromkeys(range(1, 41), 1.0), **dict.fromkeys(range(41, 71), 2.0)}
    assert [(one.step, one.value) for one in read.Scalars("test/accuracy")] == [(70, 0.5)]


def test_a_long_run_has_a_bounded_curve_of_means(tmp_path: Path) -> None:
    file = TensorBoardFile(tmp_path, lambda iteration: 0.1, LAYOUT)
    file.take(train(1), 0.0)
    for version in range(1, 40_001):  # over 2,000 s
        file.take(merge(version, loss=float(version % 2)), version * 0.05)
    file.close()
    losses = tensorboard(tmp_path).Scalars("train/loss")
    assert 1_500 < len(losses) < 4_000
    assert all(0.3 < one.value < 0.7 for one in losses)
    speeds = tensorboard(tmp_path).Scalars("train/images_per_second")
    assert speeds[-1].value == pytest.approx(200, rel=0.01)


@pytest.mark.processes
def test_a_full_disk_neither_ends_the_run_nor_breaks_the_file(tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "disk"
    with small_disk(folder, "1m"):
        taken = fill(folder)
        exports = Background([TensorBoardFile(folder, lambda iteration: 0.1, LAYOUT)], told.append)
        exports.did(train(1), 0.0)
        for version in range(1, 101):
            exports.did(merge(version), float(version))
        deadline = time.monotonic() + 120 * how_loaded()
        while not told:
            assert time.monotonic() < deadline, "nobody was told that the disk is full"
            time.sleep(0.05)
        exports.did(merge(101), 101.0)
        time.sleep(0.6)
        assert len(told) == 1
        assert "make room there" in told[0]
        taken.unlink()
        exports.close()
        steps = [one.step for one in tensorboard(folder).Scalars("train/loss")]
    assert steps == list(range(1, 102))


# ---------------------------------------------------------------- Caffe's log


@pytest.mark.processes
def test_a_resumed_log_continues_and_caffe_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "caffe.log"

    def log(resumed: Counters | None = None) -> CaffeLog:
        return CaffeLog(
            path, "tiny", 20, lambda iteration: 0.01, "fixed", resumed=resumed, wall_s=1e9
        )

    first = log()
    first.take(train(1), 0.0)
    for version in range(1, 51):
        first.take(merge(version), version / 10)
    first.take(messages.Evaluate(30, 30), 5.0)
    first.take(messages.Tested(30, {"accuracy": 0.25}), 5.0)
    first.close()
    second = log(COUNTERS)
    second.take(train(1000), 10.0)
    for version in range(41, 81):
        second.take(merge(version, loss=0.25), version / 2)
    second.take(messages.Tested(80, {"accuracy": 0.75}), 41.0)
    second.close()
    tables = parsed(path, tmp_path)
    assert [row["NumIters"] for row in tables["train"]] == [1, 20, 40, 60, 80]
    assert [row["loss"] for row in tables["train"]] == [0.5, 0.5, 0.5, 0.25, 0.25]
    tests = [(row["NumIters"], row["accuracy"], row["LearningRate"]) for row in tables["test"]]
    assert tests == [(30, 0.25, 0.01), (80, 0.75, 0.01)]
    assert "Iteration 80 (2 iter/s, 10s/20 iters), loss = 0.25" in path.read_text()


def test_the_outputs_of_each_test_net_are_numbered_from_0() -> None:
    metrics = {"accuracy": 0.5, "loss": 1.0, "test1/accuracy": 0.25, "test1/a b": 2.0}
    assert list(by_net(metrics)) == [
        (0, [("accuracy", 0.5), ("loss", 1.0)]),
        (1, [("accuracy", 0.25), ("a_b", 2.0)]),
    ]


@pytest.mark.parametrize(("text", "lines"), [("", 20), ("display: 0", 20), ("display: 100\n", 100)])
def test_lines_come_as_often_as_the_solver_displays(text: str, lines: int) -> None:
    assert display_of(f"base_lr: 1\n{text}") == lines


# ---------------------------------------------------------------- the thread, and the options


class Broken:
    name = "the broken exporter"
    problem = ""

    def take(self, told: Told, now: float) -> None:
        raise RuntimeError("a bug")

    def close(self) -> None:
        raise AssertionError("it was left out")


class Kept:
    name, problem = "the other", ""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.threads: set[int] = set()

    def take(self, told: Told, now: float) -> None:
        self.told.append(told)
        self.threads.add(threading.get_ident())

    def close(self) -> None:
        self.told.append(merge(0))


def test_an_exporter_that_fails_is_told_once_and_the_others_continue() -> None:
    notices: list[str] = []
    kept = Kept()
    exports = Background([Broken(), kept], notices.append)
    for version in range(1, 51):
        exports.did(merge(version), 1.0)
    exports.close()
    assert notices == [
        "warning: the broken exporter has failed and stops writing: RuntimeError('a bug')"
    ]
    assert [one.version for one in kept.told if isinstance(one, Merge)] == [*range(1, 51), 0]
    assert threading.get_ident() not in kept.threads


def test_a_master_that_was_replaced_writes_nothing_more() -> None:
    kept = Kept()
    exports = Background([kept], lambda text: None)
    exports.disown()
    exports.did(merge(1), 1.0)
    exports.close()
    assert [one.version for one in kept.told if isinstance(one, Merge)] == [0]  # it was closed


def test_an_observer_costs_the_driver_no_more_than_a_note() -> None:
    class Slow(Kept):
        def take(self, told: Told, now: float) -> None:
            time.sleep(0.01)
            super().take(told, now)

    exports = Background([Slow()], lambda text: None)
    begun = time.monotonic()
    for version in range(500):  # 5 s for the exporter
        exports.did(merge(version), 1.0)
    assert time.monotonic() - begun < 4
    exports.disown()
    exports.close()


def test_a_port_in_use_is_told_before_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"metrics_port {port} .*address already in use.*give another"
        ):
            check_exports(make_config({"metrics_port": port}), resumed=False)
    check_exports(make_config({"metrics_port": port}), resumed=False)


def test_a_log_that_is_there_is_not_written_over_but_continued(tmp_path: Path) -> None:
    log = tmp_path / "caffe.log"
    log.write_text("of another run\n")
    config = make_config({"caffe_log": str(log)})
    with pytest.raises(ConfigError, match="is there already"):
        check_exports(config, resumed=False)
    assert check_exports(config, resumed=True) == {"caffe_log": str(log)}
    with pytest.raises(ConfigError, match="cannot be written"):
        check_exports(make_config({"caffe_log": str(tmp_path / "none" / "x")}), resumed=False)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"caffe_log": "solver.prototxt"}, "write --caffe-log=FILE"),
        ({"metrics_port": 56126}, "a master listens at"),
        ({"metrics_port": 0}, "metrics_port is 0"),
        ({"tensorboard_histograms": True, "servers": "2"}, "the master has no weights"),
    ],
    ids=repr,
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_config(options)
    assert problem in str(raised.value.problems)


def test_histograms_are_of_the_weights_as_they_were(tmp_path: Path) -> None:
    from speedo.messages import Evaluate
    from speedo.watch.export.background import CenterCopies

    file = TensorBoardFile(tmp_path, lambda iteration: 0.1, LAYOUT)
    weights = np.zeros(6, np.float32)
    exports = Background([file], lambda text: None)
    copies = CenterCopies(lambda: weights, exports)
    copies.did(merge(7), 1.0)
    copies.did(Evaluate(7, 7), 1.0)
    weights += 5
    exports.close()
    (one,) = tensorboard(tmp_path).Histograms("weights/ip/0")
    assert (one.step, one.histogram_value.max, one.histogram_value.num) == (7, 0.0, 6)
