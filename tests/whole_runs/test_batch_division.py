"""`sync` with the batch divided makes the step of plain Caffe, or does not divide it and says so.

Twelve nets: of six the parts of a batch give its gradient as a mean, of two as a sum, of four not at all. Everything is
real but Ray: the trial of the nets in its child, coordinator, merging, a team of workers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import h5py
import numpy as np
import pytest

from speedo.engines.batch_division import try_division
from speedo.engines.caffe_import import load_caffe
from speedo.engines.make import make_engine
from speedo.engines.parameters import Parameters
from speedo.engines.solver import Draws, SolverOverrides, read_solver, solver_for_worker
from speedo.engines.solver.data_layers import count_records
from speedo.errors import EngineError, SolverError
from speedo.exchange.vector import Vector
from speedo.run.config.run_config import make_config
from speedo.run.prepare import PreparedRun, check_nets, run_settings, with_division
from speedo.storage.memory_store import MemoryStore
from speedo.system.bounds import EngineName
from tests.support.nets import relative_difference, write_solver
from tests.support.random_nets_in_parts import random_net
from tests.whole_runs.local import train_as

pytestmark = pytest.mark.caffe

BATCH, RECORDS, STEPS = 12, 240, 10
BOUND = 1e-5  # of the move


def layer(name: str, kind: str, bottoms: str, top: str, more: str = "") -> str:
    read = "".join(f' bottom: "{one}"' for one in bottoms.split())
    return f'layer {{ name: "{name}" type: "{kind}"{read} top: "{top}" {more} }}\n'


def data(*tops: str) -> str:
    made = "".join(f' top: "{top}"' for top in tops)
    source = f'hdf5_data_param {{ source: "list.txt" batch_size: {BATCH} }}'
    return f'layer {{ name: "data" type: "HDF5Data"{made} {source} }}\n'


def product(name: str, bottom: str, outputs: int, more: str = "") -> str:
    filler = 'weight_filler { type: "xavier" }'
    return layer(
        name,
        "InnerProduct",
        bottom,
        name,
        f"inner_product_param {{ num_output: {outputs} {filler} {more} }}",
    )


def convolution(outputs: int) -> str:
    own = f'num_output: {outputs} kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }}'
    return layer("conv", "Convolution", "data", "conv", f"convolution_param {{ {own} }}")


SCORES = product("ip", "data", 4)
SOFTMAX = layer("loss", "SoftmaxWithLoss", "ip label", "loss")
IGNORE = "loss_param { ignore_label: 255 %s }"
BY_POSITIVES = """
import caffe
class ByPositives(caffe.Layer):
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(1)
    def forward(self, bottom, top):
        self.n = 1 + (bottom[1].data > 1).sum()
        top[0].data[0] = (bottom[0].data ** 2).sum() / self.n
    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 2 * bottom[0].data / self.n * top[0].diff[0]
"""

MEAN = {
    "softmax": data("data", "label") + SCORES + SOFTMAX,
    "euclid": data("data", "target")
    + product("hidden", "data", 5)
    + layer("sig", "Sigmoid", "hidden", "sig")
    + product("ip", "sig", 3)
    + layer("loss", "EuclideanLoss", "ip target", "loss"),
    "hinge": data("data", "label")
    + SCORES
    + layer("loss", "HingeLoss", "ip label", "loss", "hinge_loss_param { norm: L2 }"),
    "by-batch": data("data", "seg")
    + convolution(4)
    + layer("loss", "SoftmaxWithLoss", "conv seg", "loss", IGNORE % "normalize: false"),
    "two-losses": data("data", "label", "target")
    + SCORES
    + layer("loss", "SoftmaxWithLoss", "ip label", "loss", "loss_weight: 0.3")
    + product("other", "data", 3)
    + layer("second", "EuclideanLoss", "other target", "second"),
    "dropout-off": data("data", "target")
    + product("ip", "data", 3)
    + layer("prelu", "PReLU", "ip", "prelu")
    + layer("power", "Power", "target", "positive", "power_param { scale: 0.1 shift: 0.5 }")
    + layer("loss", "SigmoidCrossEntropyLoss", "prelu positive", "loss"),
}
SUM = {
    "none": data("data", "label")
    + SCORES
    + layer("loss", "SoftmaxWithLoss", "ip label", "loss", "loss_param { normalization: NONE }"),
    "reduction": data("data", "label")
    + SCORES
    + layer("quiet", "Softmax", "ip", "soft")
    + layer("silence", "Power", "label", "unused")
    + layer(
        "sum", "Reduction", "soft", "loss", "loss_weight: 1 reduction_param { operation: SUMSQ }"
    ),
}
WHOLE = {
    "valid": data("data", "seg")
    + convolution(4)
    + layer("loss", "SoftmaxWithLoss", "conv seg", "loss", IGNORE % ""),
    "mixed": data("data", "label", "target")
    + SCORES
    + layer("loss", "SoftmaxWithLoss", "ip label", "loss", "loss_param { normalization: NONE }")
    + layer("mean", "Softmax", "ip", "soft")
    + product("other", "data", 3)
    + layer("second", "EuclideanLoss", "other target", "second"),
    "reshape": data("data", "label")
    + layer(
        "flat", "Reshape", "data", "flat", f"reshape_param {{ shape {{ dim: {BATCH} dim: 36 }} }}"
    )
    + product("ip", "flat", 4)
    + SOFTMAX,
    "lstm": data("steps", "cont", "aim")
    + layer(
        "lstm",
        "LSTM",
        "steps cont",
        "h",
        'recurrent_param { num_output: 3 weight_filler { type: "uniform" min: -0.1 max: 0.1 } }',
    )
    + product("ip", "h", 1, "axis: 2")
    + layer("flat", "Reshape", "ip", "flat", "reshape_param { shape { dim: 0 dim: 2 } }")
    + layer("loss", "EuclideanLoss", "flat aim", "loss"),
}
NETS = {**MEAN, **SUM, **WHOLE}
LINES = {
    "valid": "layer 'loss' (SoftmaxWithLoss) divides by the labels of its batch that are not ignore_label",
    "mixed": "neither the mean nor the sum of the gradients of its parts is the gradient of the batch",
    "reshape": "layer 'flat' cannot be built with a part of the batch",
    "lstm": "layer 'lstm' (LSTM) reads rows as time steps",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nets")
    chance = np.random.default_rng(5)
    seg = chance.integers(0, 4, (RECORDS, 1, 6, 6)).astype(np.float32)
    seg[::2][chance.random((RECORDS // 2, 1, 6, 6)) < 0.8] = 255  # uneven between the workers
    cont = np.ones((RECORDS, 2), np.float32)
    cont[::8] = 0
    with h5py.File(folder / "records.h5", "w") as file:
        file["data"] = chance.random((RECORDS, 1, 6, 6), np.float32)
        file["label"] = chance.integers(0, 4, RECORDS).astype(np.float32)
        file["target"] = chance.standard_normal((RECORDS, 3), np.float32)
        file["seg"], file["cont"] = seg, cont
        file["steps"] = chance.random((RECORDS, 2, 4), np.float32)
        file["aim"] = chance.random((RECORDS, 2), np.float32)
    (folder / "list.txt").write_text(f"{folder / 'records.h5'}\n")
    return folder


def prepared_run(
    folder: Path,
    net: str,
    workers: int,
    engine: EngineName,
    fields: Mapping[str, object] = MappingProxyType({}),
    **options: object,
) -> PreparedRun:
    """What `prepare` makes of it, in this process: both engines take part here."""
    own = {"test_iter": None, "test_interval": None, "base_lr": 0.01, "max_iter": STEPS}
    solver = write_solver(folder, net, **{**own, **fields})
    chosen = {"workers": workers, "engine": engine, "run_dir": str(folder / "run"), **options}
    config = make_config(chosen)
    spec = read_solver(solver, overrides=SolverOverrides(engine=engine))
    settings = run_settings(config, spec, "here")
    return PreparedRun(config, settings, folder / "run", folder, count_records(spec))


def plain(folder: Path, weights: Path, steps: int = STEPS) -> tuple[Vector, Vector]:
    """Weights before, which are saved in `weights`, and after the steps of plain pycaffe."""
    caffe = load_caffe()
    caffe.set_mode_cpu()
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    with contextlib.chdir(folder):
        solver = caffe.get_solver("solver.prototxt")
        parameters = Parameters(solver.net)
        before, after = parameters.layout.zeros(), parameters.layout.zeros()
        parameters.read(before)
        solver.net.save(str(weights))
        solver.step(steps)
        parameters.read(after)
    return before, after


@pytest.mark.parametrize("name", NETS)
def test_several_workers_make_the_step_of_plain_caffe_or_say_that_they_do_not(
    folder: Path, tmp_path: Path, name: str
) -> None:
    run = prepared_run(folder, NETS[name], 2, "caffe")
    facts = check_nets(run, tmp_path)
    assert facts.division == ("mean" if name in MEAN else "sum" if name in SUM else "none")
    before, expected = plain(folder, tmp_path / "start.caffemodel")
    for engine in ("caffe", "torch"):
        for workers in (1, 2, 3):
            notes: list[str] = []
            run = prepared_run(
                folder, NETS[name], workers, engine, weights=str(tmp_path / "start.caffemodel")
            )
            run = with_division(run, facts, notes.append)
            _, start, after = train_as(
                run.config,
                run.settings,
                MemoryStore(),
                tmp_path / f"{engine}{workers}",
                records=run.records,
            )
            assert np.array_equal(start, before)
            if workers > 1 and name in WHOLE:
                assert LINES[name] in notes[0]
                assert run.settings.batch_sizes == (BATCH,) * workers
                assert (run.config.data_share == "offset") is (name != "valid")
            else:
                assert run.settings.batch_sizes[0] == BATCH // workers
                assert relative_difference(after, expected, before) < BOUND


@pytest.mark.parametrize("name", NETS)
def test_the_trial_on_pytorch_finds_what_that_on_pycaffe_finds(
    folder: Path, tmp_path: Path, name: str
) -> None:
    run = prepared_run(folder, NETS[name], 2, "torch")
    spec, choice = run.spec, run.settings.engine
    text = solver_for_worker(spec, rank=0, count=2, batch_size=BATCH, draws=Draws.NONE)
    engine = make_engine(choice, text, lr_policy=spec.lr_policy)
    batch = engine.next_batch()
    engine.close()
    if name == "reshape":
        with pytest.raises(EngineError, match="flat"):
            try_division(choice, text, batch, spec.lr_policy, tmp_path)
        return
    found = try_division(choice, text, batch, spec.lr_policy, tmp_path)
    expected = "mean" if name in MEAN else "sum" if name in SUM else "none"
    assert found == expected


def test_a_division_that_is_asked_for_is_made_with_a_warning_or_refused(
    folder: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    run = prepared_run(folder, NETS["mixed"], 2, "caffe", split_batch=True)
    divided = with_division(run, check_nets(run, tmp_path), notes.append)
    assert divided.settings.batch_sizes == (BATCH // 2, BATCH // 2)
    assert notes[0].startswith("warning: with --split-batch the steps are not Caffe's: ")
    for engine in ("caffe", "torch"):
        run = prepared_run(folder, NETS["reshape"], 2, engine, split_batch=True)
        with pytest.raises(SolverError, match=r"'flat'.*; use --whole-batch"):
            with_division(run, check_nets(run, tmp_path), notes.append)


def test_a_loss_in_python_that_counts_its_records_is_not_divided(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "by_positives.py").write_text(BY_POSITIVES)
    loss = 'loss_weight: 1 python_param { module: "by_positives" layer: "ByPositives" }'
    net = data("data", "label") + SCORES + layer("loss", "Python", "ip label", "loss", loss)
    facts = check_nets(prepared_run(folder, net, 2, "caffe"), tmp_path)
    assert facts.division == "none"


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"team": "off"}, {}),
        ({"servers": "2"}, {}),
        ({"server_gradient": True}, {}),
        ({"server_gradient": True, "servers": "2"}, {}),
        ({}, {"iter_size": 2}),
        ({"server_gradient": True}, {"clip_gradients": 0.5}),
    ],
    ids=str,
)
def test_a_sum_is_added_up_wherever_it_is_merged(
    folder: Path, tmp_path: Path, options: dict[str, object], fields: dict[str, object]
) -> None:
    run = prepared_run(folder, SUM["none"], 2, "caffe", fields, **options)
    _, expected = plain(folder, tmp_path / "start.caffemodel")
    run = with_division(run, check_nets(run, tmp_path), lambda note: None)
    result, start, after = train_as(run.config, run.settings, MemoryStore(), tmp_path / "run")
    assert result.complete, result.reason
    assert relative_difference(after, expected, start) < BOUND


@pytest.mark.parametrize("name", ["lstm", "reshape", "softmax"])
def test_the_first_weights_are_those_of_plain_caffe(
    folder: Path, tmp_path: Path, name: str
) -> None:
    run = prepared_run(folder, NETS[name], 1, "caffe")
    expected, _ = plain(folder, tmp_path / "start.caffemodel")
    _, start, _ = train_as(run.config, run.settings, MemoryStore(), tmp_path / "run")
    assert np.array_equal(start, expected)


def test_a_random_net_makes_the_step_of_plain_caffe_or_says_that_it_does_not(
    folder: Path, tmp_path: Path
) -> None:
    """SPEEDO_RANDOM_NETS: so many nets instead of a few."""
    compared = 0
    for seed in range(int(os.environ.get("SPEEDO_RANDOM_NETS", "10"))):
        net = random_net(seed, BATCH, data, layer)
        work = tmp_path / str(seed)
        run = prepared_run(folder, net, 2, "caffe")
        try:
            facts = check_nets(run, work)
        except SolverError:
            continue  # plain Caffe cannot build it either
        before, expected = plain(folder, tmp_path / "start.caffemodel", 2)
        notes: list[str] = []
        run = with_division(run, facts, notes.append)
        if run.config.split_batch is False:
            assert notes[0].startswith("each worker trains on whole batches")
            continue
        _, start, after = train_as(
            run.config,
            replace(run.settings, spec=replace(run.spec, max_iter=2)),
            MemoryStore(),
            work,
        )
        assert np.array_equal(start, before), seed
        assert relative_difference(after, expected, before) < 1e-4, seed
        compared += 1
    assert compared > 3
