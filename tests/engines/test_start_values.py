"""Weights that no training can begin with are told with file, layer and blob, before the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from speedo.engines.caffe_import import load_caffe
from speedo.engines.net_trial import CaffeFacts, check_in_subprocess
from speedo.engines.solver import Draws, SolverSpec, read_solver, solver_for_worker
from speedo.engines.weights_check import check_weights
from speedo.errors import ConfigError, SolverError
from speedo.run.caffe_snapshot import read_snapshot
from speedo.run.config.option_checks import weights_in
from speedo.run.trained_model import first_weights
from tests.support.nets import net_text, write_solver
from tests.support.solvers import worker

pytestmark = pytest.mark.caffe


def build(spec: SolverSpec, weights: Path | None = None) -> CaffeFacts:
    text = solver_for_worker(spec, rank=0, count=1, batch_size=4, draws=Draws.DOUBTFUL)
    return check_in_subprocess(text, weights=[weights] if weights else [], origin="net.prototxt")


def saved(home: Path, value: float | None = None, *, hdf5: bool = False) -> Path:
    """Weights of the net in `home`; the second blob of `ip` begins with `value`."""
    caffe = load_caffe()
    caffe.set_mode_cpu()
    with_net = caffe.Net(str(home / "plain.prototxt"), caffe.TEST)
    if value is not None:
        with_net.params["ip"][1].data[:2] = value
    file = home / ("weights.caffemodel.h5" if hdf5 else "weights.caffemodel")
    (with_net.save_hdf5 if hdf5 else with_net.save)(str(file))
    return file


@pytest.fixture
def spec(home: Path) -> SolverSpec:
    plain = net_text(train=f"{home}/train", test=f"{home}/test")
    (home / "plain.prototxt").write_text(plain)
    return read_solver(write_solver(home, plain))


@pytest.mark.parametrize(("hdf5", "value"), [(False, float("nan")), (True, float("-inf"))])
def test_weights_with_nan_or_infinity_name_layer_and_blob(
    home: Path, spec: SolverSpec, hdf5: bool, value: float
) -> None:
    file = saved(home, value, hdf5=hdf5)
    with pytest.raises(SolverError) as caught:
        build(spec, file)
    assert str(caught.value) == (
        f"weights {file} cannot be trained from: 2 of 4 values of blob 1 of layer 'ip' are NaN or infinite; "
        "give others, such as an earlier snapshot"
    )


def test_whole_weights_in_hdf5_are_taken(home: Path, spec: SolverSpec) -> None:
    assert build(spec, saved(home, hdf5=True)).parameters == 280


def test_of_several_files_each_brings_its_layers_and_the_last_counts(
    home: Path, spec: SolverSpec
) -> None:
    """As `caffe train --weights a,b` copies them, one after another."""
    caffe = load_caffe()
    first, last = home / "first.caffemodel", home / "last.caffemodel"
    for file, text in (
        (first, (home / "plain.prototxt").read_text()),
        (last, (home / "plain.prototxt").read_text().replace('name: "ip"', 'name: "fc"')),
    ):
        (home / "saved.prototxt").write_text(text)
        net = caffe.Net(str(home / "saved.prototxt"), caffe.TEST)
        for blobs in net.params.values():
            blobs[1].data[...] = len(file.stem)
        net.save(str(file))
    names = weights_in(Path(f"{first},{last}"))
    check_in_subprocess(
        solver_for_worker(spec, rank=0, count=1, batch_size=4), weights=names, origin="net.prototxt"
    )
    engine = worker(spec)
    center = first_weights(engine, names)
    biases = {
        blob.name: set(center[place])
        for blob, place in engine.layout.slices()
        if blob.name.endswith("/1")
    }
    assert biases == {"conv/1": {4.0}, "ip/1": {5.0}}


def test_a_file_whose_name_has_a_comma_is_one(tmp_path: Path) -> None:
    (tmp_path / "a,b").touch()
    assert weights_in(tmp_path / "a,b") == (tmp_path / "a,b",)
    assert weights_in(Path("s3:/x/a, b")) == (Path("s3:/x/a"), Path("b"))
    assert weights_in(None) == ()


def test_weights_in_hdf5_that_are_cut_short_are_refused(home: Path, spec: SolverSpec) -> None:
    file = saved(home, hdf5=True)
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(
        SolverError, match=f"weights {file} is not a .caffemodel.h5, or a truncated one"
    ):
        build(spec, file)


@pytest.mark.parametrize("field", ["value: nan", 'type: "gaussian" std: 1 mean: inf'])
def test_a_filler_that_makes_no_numbers_is_named(home: Path, spec: SolverSpec, field: str) -> None:
    text = (home / "plain.prototxt").read_text()
    text = text.replace(
        "num_output: 4 weight_filler", f"num_output: 4 bias_filler {{ {field} }} weight_filler"
    )
    with pytest.raises(
        SolverError, match=r"4 of 4 values of blob 1 of layer 'ip'.*correct its filler"
    ):
        build(read_solver(write_solver(home, text)))


def test_weights_that_are_cut_short_are_refused(home: Path, spec: SolverSpec) -> None:
    file = saved(home)
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(SolverError, match=r"is not a .caffemodel, or a truncated one"):
        check_weights(file, spec.layer_names())


def solverstate(home: Path, **fields: Any) -> Path:
    message = load_caffe().proto.caffe_pb2.SolverState(iter=3, **fields)
    blob = message.history.add(data=[0.5, float("nan")])
    blob.shape.dim.append(2)
    file = home / "some.solverstate"
    file.write_bytes(message.SerializeToString())
    return file


def test_a_solverstate_with_nan_is_refused_before_the_run(home: Path, spec: SolverSpec) -> None:
    file = solverstate(home, learned_net=str(saved(home)))
    with pytest.raises(
        ConfigError,
        match=r"history in .*some.solverstate holds NaN or infinity \(blob 0\).*give an",
    ):
        read_snapshot(file)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.solverstate")
    with pytest.raises(ConfigError, match=r"pipe.solverstate, which is not a file; give"):
        read_snapshot(tmp_path / "pipe.solverstate")


@pytest.mark.parametrize("hdf5", [False, True])
def test_weights_that_the_solver_names_are_the_first_ones(
    home: Path, spec: SolverSpec, hdf5: bool
) -> None:
    file = saved(home, 3.0, hdf5=hdf5)
    solver = write_solver(home, (home / "plain.prototxt").read_text(), weights=f'"{file}"')
    engine = worker(read_solver(solver))
    center = engine.layout.zeros()
    engine.read_weights(center)
    bias = next(place for blob, place in engine.layout.slices() if blob.name == "ip/1")
    assert center[bias].tolist() == [3.0, 3.0, 0.0, 0.0]
