"""A script's run goes on from its checkpoint: what is restored, and what is no such checkpoint or run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from speedo.cli.main import main
from speedo.cli.own_scripts import options_of_own
from speedo.errors import CheckpointError, ClusterError, ConfigError
from speedo.exchange.lease import LeaseRequest
from speedo.exchange.transfer import take_history
from speedo.exchange.vector import Blob
from speedo.master.lease_book import LeaseBook
from speedo.run.config.former_run import former_script
from speedo.run.config.run_config import make_config
from speedo.run.prepare_script import prepare_script
from speedo.run.script_job import FirstModel, ScriptJob
from speedo.run.script_resume import read_former_run, state_of
from speedo.run_dir.checkpoint_file import Checkpoint, Counters, WorkerState, write_checkpoint
from tests.whole_runs.test_script_runs import ScriptRun

MODEL = FirstModel((Blob("w", (2, 3)), Blob("mean", (4,), True, True)), 8)


def checkpoint(**changes: Any) -> Checkpoint:
    """Of a run of three workers, of which worker 0 had no state; 24 of 40 records of epoch 1 are trained."""
    book = LeaseBook(5)
    book.joined(0, 1)
    for ticket, place in enumerate(range(0, 64, 8)):
        found = book.lease(0, 1, LeaseRequest(40, True, 8, place // 40, 9))
        book.trained(0, 1, ticket, [found])  # type: ignore[list-item]
        book.merged(ticket)
    counters = Counters("run", 0, "async", 8, 8, 64, 8, 1.5, MODEL.layout.digest)
    made = Checkpoint(
        counters,
        np.arange(10, dtype=np.float32),
        workers={slot: WorkerState(slot, 3, 1, 4) for slot in (1, 2)},
        histories={1: b"one", 2: b"two"},
        script=state_of(MODEL, book.state)(),
    )
    return replace(made, **changes)


def run_dir(folder: Path, made: Checkpoint, **options: Any) -> Path:
    """A run's directory with this checkpoint and these options."""
    (folder / "run" / "checkpoints").mkdir(parents=True)
    write_checkpoint(folder / "run" / "checkpoints", made)
    script = folder / "train.py"
    script.touch()
    values = {"mode": "async", "script": str(script), "arguments": ["--depth", "3"],
              "script_folder": str(folder), "seed": 5}  # fmt: skip
    values = {name: one for name, one in {**values, **options}.items() if one is not None}
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump(values))
    return folder / "run"


def test_a_checkpoint_has_the_model_and_the_records_that_are_left(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, checkpoint())
    former = read_former_run(path)
    assert (former.model, former.epoch) == (MODEL, 1)
    assert (former.book.settled(0), former.book.settled(1)) == (40, 24)
    former.check(replace(MODEL, batch=3))
    with pytest.raises(ClusterError) as told:
        former.check(FirstModel((Blob("w", (3, 2)), Blob("mean", (4,)), Blob("b", (1,))), 8))
    assert str(told.value) == (
        "the checkpoint is of another model: the script has w of shape (3, 2) instead of w of shape (2, 3); "
        "mean of shape (4,) instead of mean of shape (4,) (a statistic); b of shape (1,) instead of no parameter: "
        "resume with the script and arguments that the run was begun with"
    )


def test_workers_without_a_state_begin_with_that_of_the_first_who_has_one(tmp_path: Path) -> None:
    former = read_former_run(write_checkpoint(tmp_path, checkpoint()))
    assert former.for_workers(2).histories == {0: b"one", 1: b"one"}
    four = former.for_workers(4)
    assert four.histories == {0: b"one", 1: b"one", 2: b"two", 3: b"one"}
    assert set(four.workers) == {0, 1, 2, 3}
    none = read_former_run(write_checkpoint(tmp_path, checkpoint(histories={}, workers={})))
    assert none.for_workers(4).histories == {}


def test_the_center_and_the_states_are_given_back_and_another_model_is_refused(
    tmp_path: Path,
) -> None:
    former = read_former_run(write_checkpoint(tmp_path, checkpoint()))
    run = ScriptRun(tmp_path / "run", former=former, mode="async")
    places = [run.parts.roster.assign() for _ in range(4)]
    assert [place.history for place in places] == [8, 8, 8, None]
    states = [take_history(run.parts.store, "here:0", place, 8) for place in range(3)]
    assert states == [b"one", b"one", b"two"]
    other = FirstModel((Blob("w", (3, 2)),), 8)
    with pytest.raises(ClusterError, match=r"another model: the script has w of shape \(3, 2\)"):
        run.start.take(0, other, print)
    training = run.start.take(0, replace(MODEL, batch=5), print)
    assert training is not None
    assert training.center.vector.tolist() == former.checkpoint.center.tolist()
    coordinator = training.driver.coordinator
    assert (coordinator.version, coordinator.iteration, coordinator.samples) == (8, 8, 64)


@pytest.mark.parametrize(
    "script",
    [
        b"[]",
        b"{",
        b"[" * 100_000,
        json.dumps({"model": asdict(MODEL)}).encode(),
        state_of(MODEL, lambda: {"seed": 1})(),
        state_of(MODEL, lambda: {**LeaseBook(5).state(), "free": [[0, 5, 9]]})(),
        state_of(FirstModel((Blob("w", (2, 3)),), 8), LeaseBook(5).state)(),
        state_of(replace(MODEL, batch=0), LeaseBook(5).state)(),
        json.dumps({"model": {"blobs": [["w"]], "batch": 8}, "leases": {}}).encode(),
    ],
)
def test_a_damaged_section_is_told(tmp_path: Path, script: bytes) -> None:
    path = write_checkpoint(tmp_path, checkpoint(script=script))
    with pytest.raises(CheckpointError, match="is damaged"):
        read_former_run(path)


def test_the_run_goes_on_as_it_was_begun(tmp_path: Path) -> None:
    where, said = run_dir(tmp_path, checkpoint(), max_iter=99), list[str]()
    words, folder = former_script(where)
    options = {"resume": where, "script": words, "script_folder": folder, "workers": 2}
    prepared = prepare_script(make_config(options), said.append)
    job = prepared.settings.spec
    assert (job.command[1:], job.folder) == ([str(tmp_path / "train.py"), "--depth", "3"], folder)
    assert (job.batch, job.first_epoch, job.max_iter) == (8, 1, 99)  # type: ignore[union-attr]
    assert (prepared.settings.seed, prepared.run, prepared.run_dir) == (5, "run", where.resolve())
    assert said[1] == (
        "resumed at iteration 8 (version 8), in epoch 1: weights, counters, and which records are trained, optimizer "
        "and run.keep of 1 of 2 workers; the others begin with those of worker 1"
    )


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        (checkpoint(script=b""), {}, "of a run that trains a solver's net: resume it with speedo train"),
        (checkpoint(), {"seed": 6}, "seed is 6, and the run was begun with 5"),
        (checkpoint(), {"max_iter": 8}, "has reached iteration 8 of 8, the end; give a larger --max-iter"),
        (checkpoint(), {"max_seconds": 1}, "give a larger --max-seconds"),
        (checkpoint(), {"weights": Path(__file__)}, "weights and resume are both given"),
        (checkpoint(), {"resume": Path("nowhere")}, "nowhere, which is not a run directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_resumed_is_refused(
    tmp_path: Path, made: Checkpoint, options: dict[str, Any], said: str
) -> None:
    where = run_dir(tmp_path, made)
    script = str(tmp_path / "train.py")
    config = make_config({"resume": where, "script": (script,), **options})
    with pytest.raises(ConfigError, match=said):
        prepare_script(config, print)


@pytest.mark.parametrize("end", [{"max_iter": 8}, {"max_seconds": 1}])
def test_a_run_that_its_command_has_lost_at_its_end_is_begun_again(
    tmp_path: Path, end: dict[str, Any]
) -> None:
    """Its master died between the last checkpoint and the exit: the command refused the run as over."""
    where = run_dir(tmp_path, checkpoint())
    config = make_config({"resume": where, "script": (str(tmp_path / "train.py"),), **end})
    assert prepare_script(config, print, None, True).resumed is not None


def stranger(where: Path) -> None:
    (where / "config.yaml").chmod(0o666)


def folder_gone(where: Path) -> None:
    file = where / "config.yaml"
    values = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**values, "script_folder": f"{where}/gone"}))


def nothing(where: Path) -> None:
    """All is well with the run."""


@pytest.mark.parametrize(
    ("words", "options", "change", "said"),
    [
        (["run"], {}, nothing, "no script is given; give the path of a Python script"),
        (["run", "--resume", "s3://bucket/run"], {}, nothing, "give SCRIPT and its arguments again"),
        (["run", "--resume", "nowhere"], {}, nothing, "which holds no run: it has no config.yaml"),
        (["run", "--resume", "RUN"], {}, stranger, "give SCRIPT and its arguments again, or begin a"),
        (["run", "--resume", "RUN"], {}, folder_gone, "gone, which is not there: name the script"),
        (["run", "--resume", "RUN"], {"arguments": ["s3://a:***@b"]}, nothing, "keeps no secrets"),
        (["run", "--resume", "RUN"], {"arguments": [1]}, nothing, "names no script with a folder"),
        (["run", "--resume", "RUN"], {"script": None, "arguments": None, "script_folder": None,
          "solver": "x.prototxt"}, nothing, "trains a solver's net: resume it with speedo train"),
        (["train", "--resume", "RUN"], {}, nothing, "trains a script: resume it with speedo run"),
        (["train", "--config", "RUN/config.yaml"], {}, nothing, "trains a script: use speedo run"),
    ],
)  # fmt: skip
def test_the_command_says_what_it_cannot_resume(
    tmp_path: Path,
    words: list[str],
    options: dict[str, Any],
    change: Callable[[Path], None],
    said: str,
) -> None:
    where = run_dir(tmp_path, checkpoint(), **options)
    change(where)
    done = CliRunner().invoke(main, [one.replace("RUN", str(where)) for one in words])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_run_of_the_scripts_of_hosts_is_resumed_without_a_script(tmp_path: Path) -> None:
    where, own = tmp_path / "run", options_of_own({"own": True, "workers": 3})
    run = ScriptRun(where, own=True)
    run.first_weights()
    run.join()
    write_checkpoint(where / "checkpoints", checkpoint())
    job = prepare_script(make_config({**own, "resume": where, "seed": 5}), print).settings.spec
    assert isinstance(job, ScriptJob)
    assert (job.words, job.batch, job.first_epoch) == ((), 8, 1)
    with pytest.raises(
        ConfigError, match="each host's own script: resume it with speedo master --own --resume"
    ):
        make_config({"resume": where})
    with pytest.raises(ConfigError, match="names no script with a folder: name the script again"):
        former_script(where)


def test_a_strangers_run_is_resumed_with_a_script_of_ones_own(tmp_path: Path) -> None:
    where = run_dir(tmp_path, checkpoint(), max_iter=77)
    stranger(where)
    own = (str(tmp_path / "train.py"), "--mine")
    config = make_config({"resume": where, "script": own})
    assert (config.script, config.script_folder, config.max_iter) == (own, "", 77)
    job = prepare_script(config, print).settings.spec
    assert job.folder == os.getcwd()
