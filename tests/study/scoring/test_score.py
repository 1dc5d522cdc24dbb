"""A model scored by several processes has the figures of plain pycaffe, and mistakes are told in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner, Result

from speedo.cli.main import main
from speedo.engines.caffe_import import load_caffe
from speedo.engines.make import EngineChoice
from speedo.engines.solver.scored_nets import check_tests, read_tests
from speedo.errors import ConfigError, SolverError
from speedo.run_dir.directory import MODEL
from speedo.storage.memory_store import MemoryStore
from speedo.study.scoring.models import ScoredModel, models_of
from speedo.study.scoring.score import score_models
from tests.support.nets import net_text, write_data, write_solver
from tests.whole_runs.local import train_here

pytestmark = [pytest.mark.caffe, pytest.mark.usefixtures("forked_python")]
BATCHES = 7  # no two or three workers have equally many
SECOND = 2
RECORDS = 36  # 7 batches of 5 neither end with the data, nor do they begin anew


class Counted:
    """A progress that counts."""

    def __init__(self) -> None:
        self.begun: list[tuple[ScoredModel, int]] = []
        self.batches = 0

    def begin(self, model: ScoredModel, batches: int) -> None:
        self.begun.append((model, batches))

    def passed(self) -> None:
        self.batches += 1


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A solver with two test nets, and a run of it with three snapshots; a solver in HDF5 and its run."""
    folder = tmp_path_factory.mktemp("scored")
    write_data(folder, test=RECORDS)
    text = net_text(train=f"{folder}/train", test=f"{folder}/test", test_batch=5)
    for name, fields in {"run": {}, "hdf5": {"snapshot_format": "HDF5"}}.items():
        solver = write_solver(
            folder,
            text,
            max_iter=6,
            snapshot=2,
            snapshot_prefix='"tiny"',
            test_iter=[BATCHES, SECOND],
            **fields,
        )
        train_here(solver, MemoryStore(), folder / name, workers=1, mode="sync", checkpointed=True)
    return folder


def plain(net: Path, weights: Path, batches: int) -> dict[str, float]:
    """The mean of each output by plain pycaffe alone."""
    caffe = load_caffe()
    caffe.set_mode_cpu()
    built = caffe.Net(str(net), str(weights), caffe.TEST)
    found = [
        {name: float(values) for name, values in built.forward().items()} for _ in range(batches)
    ]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def score(solver: Path, weights: Path, workers: int = 1, **options: Any) -> dict[str, float]:
    spec = read_tests(solver, **options)
    check_tests(spec)
    (found,) = score_models(spec, [ScoredModel(weights)], workers, Counted())
    return dict(found.metrics)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_test_nets_have_the_figures_of_plain_pycaffe(home: Path, workers: int) -> None:
    """Both of 7 batches and of 2, of which one of three workers has none."""
    model, net = home / "run" / MODEL, home / "net.prototxt"
    first, second = plain(net, model, BATCHES), plain(net, model, SECOND)
    expected = first | {f"test1/{name}": value for name, value in second.items()}
    found = score(home / "solver.prototxt", model, workers)
    assert found == pytest.approx(expected, rel=1e-6)
    assert list(found) == ["accuracy", "loss", "test1/accuracy", "test1/loss"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_net_alone_is_scored_in_its_test_phase(home: Path, workers: int) -> None:
    net, model = home / "net.prototxt", home / "hdf5" / "tiny_iter_4.caffemodel.h5"
    assert score(net, model, workers, iterations=4) == pytest.approx(plain(net, model, 4), rel=1e-6)
    assert read_tests(net).test_iter == (50,)


@pytest.mark.torch
@pytest.mark.parametrize("form", ["run", "hdf5"])
def test_pytorch_gives_a_model_of_caffe_the_same_figures(home: Path, form: str) -> None:
    """Shared by three processes, and with progress by batches."""
    solver, progress = home / "solver.prototxt", Counted()
    weights = ScoredModel(next(iter(sorted((home / form).glob("*_iter_6.caffemodel*")))))
    spec = read_tests(solver, engine="torch")
    check_tests(spec)
    (found,) = score_models(spec, [weights], 3, progress, EngineChoice("torch", "cpu"))
    assert dict(found.metrics) == pytest.approx(score(solver, weights.path), rel=1e-5)
    assert (progress.batches, found.samples) == (BATCHES + SECOND, 5 * (BATCHES + SECOND))


@pytest.mark.torch
def test_pytorch_scores_no_filler_and_no_nan(home: Path, tmp_path: Path) -> None:
    caffe = load_caffe()
    net = caffe.proto.caffe_pb2.NetParameter.FromString((home / "run" / MODEL).read_bytes())
    for layer in net.layer:
        if layer.name == "ip":
            layer.name = "other"
    (tmp_path / "lacks.caffemodel").write_bytes(net.SerializeToString())
    net = caffe.proto.caffe_pb2.NetParameter.FromString((home / "run" / MODEL).read_bytes())
    (ip,) = (layer for layer in net.layer if layer.name == "ip")
    ip.blobs[1].data[2] = float("nan")
    (tmp_path / "nan.caffemodel").write_bytes(net.SerializeToString())
    spec = read_tests(home / "solver.prototxt", engine="torch")
    for name, words in (
        ("lacks", "has no values for blob 0 of layer 'ip'"),
        ("nan", "1 of 4 values of blob 1 of layer 'ip' are NaN or infinite"),
    ):
        model = ScoredModel(tmp_path / f"{name}.caffemodel")
        with pytest.raises(SolverError, match=words):
            list(score_models(spec, [model], 1, Counted(), EngineChoice("torch", "cpu")))


def test_every_model_is_scored_by_the_same_processes_and_every_batch_told(home: Path) -> None:
    spec, progress = read_tests(home / "solver.prototxt"), Counted()
    models = models_of(home / "run", snapshots=True)
    assert [(one.iteration, one.path.name) for one in models] == [
        (number, f"tiny_iter_{number}.caffemodel") for number in (2, 4, 6)
    ]
    scores = list(score_models(spec, models, 2, progress))
    assert progress.begun == [(model, BATCHES + SECOND) for model in models]
    assert progress.batches == 3 * (BATCHES + SECOND)
    for one in scores:
        assert one.samples == 5 * (BATCHES + SECOND)
        expected = plain(home / "net.prototxt", one.model.path, BATCHES)
        assert one.metrics["loss"] == pytest.approx(expected["loss"], rel=1e-6)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["test", *map(str, arguments)])


def test_the_command_takes_the_solver_and_the_model_of_a_run(home: Path) -> None:
    """Its output as JSON, for a run's own last test has the same figures."""
    done = invoke(home / "solver.prototxt", "--weights", home / "run", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    result = json.loads((home / "run" / "result.json").read_text())
    assert found["metrics"] == pytest.approx(result["metrics"], rel=1e-6)
    assert (found["iteration"], found["workers"], found["batches"], found["samples"]) == (
        6, 2, [BATCHES, SECOND], 45,
    )  # fmt: skip
    assert found["model"] == str(home / "run" / MODEL)
    assert found["images_per_s"] == pytest.approx(45 / found["seconds"])


def test_the_command_shows_all_snapshots_of_a_run_as_a_table(home: Path) -> None:
    """Without SOLVER it is the one of the run."""
    done = invoke(home / "hdf5", "--snapshots", "--workers", "1")
    assert done.exit_code == 0, done.output
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["iteration", "accuracy", "loss", "test1/accuracy", "test1/loss", "model"]
    assert [(row[0], row[-1]) for row in rows] == [
        ("2", "tiny_iter_2.caffemodel.h5"),
        ("4", "tiny_iter_4.caffemodel.h5"),
        ("6", "tiny_iter_6.caffemodel.h5"),
        ("6", "model.caffemodel"),
    ]
    assert rows[2][1:-1] == rows[3][1:-1]
    assert rows[0][2] != rows[1][2]


def test_a_run_without_a_model_is_scored_by_its_newest_snapshot(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which is no run directory"):
        models_of(tmp_path, snapshots=False)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="has no model yet"):
        models_of(tmp_path, snapshots=False)
    for name in (
        "a_iter_9.caffemodel",
        "a_iter_10.caffemodel",
        "a_iter_10.solverstate",
        "b.caffemodel",
    ):
        (tmp_path / name).touch()
    assert models_of(tmp_path, snapshots=False) == [
        ScoredModel(tmp_path / "a_iter_10.caffemodel", 10)
    ]


def test_mistakes_are_told_before_a_process_is_started(home: Path, tmp_path: Path) -> None:
    solver = home / "solver.prototxt"
    cut = tmp_path / "cut.caffemodel"
    cut.write_bytes((home / "run" / MODEL).read_bytes()[:-20])
    alone = write_solver(tmp_path, net_text(), test_iter=None, test_interval=None)
    for arguments, words in {
        (): "name a run, or give --weights",
        (solver,): "name a run, or give --weights",
        (solver, "--weights", tmp_path / "none"): "which does not exist or is no file",
        (solver, "--weights", home / "run" / MODEL, "--snapshots"): "--snapshots needs a run",
        (solver, "--weights", cut): "is not a .caffemodel, or a truncated one",
        (alone, "--weights", cut): "has no test net: add test_iter",
        (solver, "--weights", cut, "--iterations", 0): "0 is not in the range",
    }.items():
        done = invoke(*arguments)
        assert done.exit_code == 2, done.output
        assert words in done.stderr
        assert "Traceback" not in done.output


@pytest.mark.parametrize("engine", ["caffe", pytest.param("torch", marks=pytest.mark.torch)])
def test_what_only_training_uses_may_be_0_or_left_out(
    home: Path, tmp_path: Path, engine: str
) -> None:
    text = net_text(train=f"{home}/train", test=f"{home}/test", test_batch=5)
    model = home / "run" / MODEL
    fields = dict.fromkeys(("base_lr", "lr_policy", "momentum", "max_iter", "test_interval"))
    bare = write_solver(tmp_path, text, **fields, test_iter=0)
    done = invoke(bare, "--weights", model, "--engine", engine)
    assert done.exit_code == 2
    assert "test_iter is 0: use 1 or more, or give --iterations" in done.stderr
    done = invoke(bare, "--weights", model, "--engine", engine, "--iterations", BATCHES, "--json")
    assert done.exit_code == 0, done.output
    expected = plain(tmp_path / "net.prototxt", model, BATCHES)
    assert json.loads(done.stdout)["metrics"] == pytest.approx(expected, rel=1e-4)


def changed(home: Path, place: Path, layer: str, values: Any) -> Path:
    """The run's model with other values in the first blob of a layer; None for no such layer."""
    net = load_caffe().proto.caffe_pb2.NetParameter.FromString((home / "run" / MODEL).read_bytes())
    for one in list(net.layer):
        if one.name == layer and values is None:
            net.layer.remove(one)
        elif one.name == layer:
            one.blobs[0].data[:] = values
            one.blobs[0].shape.dim[:] = [len(values)]
    place.write_bytes(net.SerializeToString())
    return place


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        (
            None,
            SolverError,
            "weights .* has no values for blob 0 of layer 'ip': give those of this net",
        ),
        ([1.0, 2.0], SolverError, "^weights .*blob 0 of layer .ip"),
    ],
    ids=["a layer is missing", "another shape"],
)
def test_weights_of_another_net_are_refused_and_no_process_is_left(
    home: Path, tmp_path: Path, values: Any, error: type[Exception], words: str
) -> None:
    before = {one.pid for one in psutil.Process().children()}
    weights = changed(home, tmp_path / "other.caffemodel", "ip", values)
    with pytest.raises(error, match=words):
        score(home / "solver.prototxt", weights, 2)
    assert {one.pid for one in psutil.Process().children()} == before


def test_weights_with_nan_are_refused(home: Path, tmp_path: Path) -> None:
    """Caffe's Accuracy layer would answer 1.0."""
    net = load_caffe().proto.caffe_pb2.NetParameter.FromString((home / "run" / MODEL).read_bytes())
    for one in net.layer:
        if one.name == "ip":
            one.blobs[0].data[0] = float("nan")
    weights = tmp_path / "nan.caffemodel"
    weights.write_bytes(net.SerializeToString())
    with pytest.raises(
        SolverError, match=r"cannot be scored: 1 of .* values of blob 0 of layer 'ip' are NaN"
    ):
        score(home / "solver.prototxt", weights)
