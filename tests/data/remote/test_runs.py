"""Real runs that take their weights, their data and a former run from a store, and are copied to it meanwhile."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from speedo.data.remote.fetch import fetch
from speedo.run.config.former_run import options_of_run
from tests.data.remote.test_fetch_and_copy import put_at, read
from tests.support.commands import Commands, free_port, wait_for_line
from tests.support.nets import net_text, write_data, write_solver
from tests.support.sabotaged_net import BODY
from tests.support.stores import S3, Http
from tests.whole_runs.local import model_made_here, weights_in

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240


def run(speedo: Commands, *words: str) -> str:
    process = speedo.start("train", "--mode", "async", *words)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    return errors


def versions(run_dir: Path) -> int:
    return (run_dir / "metrics.jsonl").read_text().count('"decision":"merged"')


def test_a_run_is_copied_while_its_store_is_away_and_goes_on_from_the_copy(
    speedo: Commands, problem: Path, s3: S3, tmp_path: Path
) -> None:
    uri = f"{s3.uri}/run"
    first = speedo.start(
        "train", str(problem), "--mode", "async", "--max-iter", "1000000", "--test-interval", "0",
        "--checkpoint-interval", "1", "--workers", "1", "--run-dir", "run", "--copy-to", uri,
    )  # fmt: skip
    lines = tmp_path / "run" / "metrics.jsonl"
    wait_for_line(lines, '"checkpoint"', WAIT_S)
    s3.stop()
    told = tmp_path / "run" / "train.log"
    wait_for_line(told, "the copy is tried again, training continues", WAIT_S)
    before = versions(tmp_path / "run")
    end = time.monotonic() + WAIT_S
    while versions(tmp_path / "run") < before + 20:
        assert time.monotonic() < end
        time.sleep(0.01)
    s3.start()
    wait_for_line(told, "is back; everything is copied", WAIT_S)
    first.terminate()
    _, errors = first.communicate(timeout=WAIT_S)
    assert first.returncode == 143, errors
    fetch(uri, tmp_path / "copy")
    here, there = read(tmp_path / "run"), read(tmp_path / "copy")
    # What is written after the last copy, as the command ends, are lines of logs.
    own = {name for name in here if name.startswith("logs/")} | {"lock", "train.log"}
    assert {name: there.get(name) for name in set(here) - own} == {
        name: content for name, content in here.items() if name not in own
    }
    done = json.loads(here["result.json"])["iteration"]

    # On another machine, without the first one's files.
    shutil.rmtree(tmp_path / "run")
    more = str(done + 10)
    run(
        speedo, str(problem), "--resume", uri, "--run-dir", "again", "--max-iter", more,
        "--checkpoint-interval", "0", "--copy-to", uri,
    )  # fmt: skip
    result = json.loads((tmp_path / "again" / "result.json").read_text())
    assert (result["complete"], result["iteration"]) == (True, done + 10)
    # From now on the directory is ours.
    assert options_of_run(tmp_path / "again" / "config.yaml")["copy_to"] == uri
    fetch(uri, tmp_path / "second")
    assert json.loads((tmp_path / "second" / "result.json").read_text())["iteration"] == done + 10


def test_weights_and_data_come_from_a_store(
    speedo: Commands, s3: S3, http: Http, tmp_path: Path
) -> None:
    data = tmp_path / "elsewhere"
    data.mkdir()
    write_data(data, train=64, test=16)
    put_at(f"{s3.uri}/data/mine", read(data))
    net = net_text(BODY, batch=8, train="mine/train", test="mine/test")
    (tmp_path / "problem").mkdir()
    shutil.copy(Path(__file__).parents[2] / "support" / "saboteur.py", tmp_path / "problem")
    solver = write_solver(tmp_path / "problem", net, base_lr=0.001)
    root = f"{s3.uri}/data"
    data.rename(tmp_path / "mine")
    model = model_made_here(
        solver, tmp_path / "first", max_iter=10, seed=5, mode="async", workers=2, data_root=tmp_path
    )
    shutil.rmtree(tmp_path / "mine")
    (http.folder / "start.caffemodel").write_bytes(model)
    shown = f"{http.uri}/start.caffemodel?X-Amz-Signature="
    weights = f"{shown}TheSecret"
    # A cluster: both commands have a cache of their own, as on two machines, and fetch for themselves.
    port = str(free_port())
    elsewhere = {"SPEEDO_CACHE": str(tmp_path / "other-cache")}
    master = speedo.start(
        "master", str(solver), "--mode", "async", "--host", "127.0.0.1", "--port", port, "--workers", "1",
        "--test-interval", "0", "--timeout", "300", "--data-root", root, "--weights", weights, "--max-iter", "1",
        "--lr", "1e-30", "--run-dir", "second", "--copy-to", f"{s3.uri}/second",
    )  # fmt: skip
    worker = speedo.start(
        "worker", "--master", f"127.0.0.1:{port}", "--data-root", root, environment=elsewhere
    )
    for process in (master, worker):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
    made = (tmp_path / "second" / "model.caffemodel").read_bytes()
    np.testing.assert_array_equal(weights_in(made), weights_in(model))
    assert [one.name for one in (tmp_path / "other-cache").rglob("train")] == ["train"]
    fetch(f"{s3.uri}/second", tmp_path / "copy")
    assert (tmp_path / "copy" / "model.caffemodel").read_bytes() == made
    options = (tmp_path / "second" / "config.yaml").read_text()
    assert f"weights: {shown}***\n" in options
    assert f"data_root: {root}\n" in options
    logs = [path for path in (tmp_path / "second").rglob("*") if path.is_file()]
    assert [path for path in logs if b"TheSecret" in path.read_bytes()] == []


def test_what_a_store_lacks_ends_the_run_before_it_begins(
    speedo: Commands, problem: Path, s3: S3, tmp_path: Path
) -> None:
    process = speedo.start(
        "train", str(problem), "--weights", f"{s3.uri}/none.caffemodel", "--run-dir", "run"
    )
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert f"speedo: {s3.uri}/none.caffemodel cannot be read: nothing is there" in errors
    assert not (tmp_path / "run").exists()
    s3.stop()
    process = speedo.start("train", str(problem), "--copy-to", f"{s3.uri}/run", "--run-dir", "run")
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "cannot be written" in errors
    assert not (tmp_path / "run").exists()
