"""Random nets on pycaffe and on PyTorch: both refuse one, or both make the same first steps of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from google.protobuf import text_format

from caffenets.host_program import caffe_schema
from speedo.engines.make import EngineChoice, make_engine
from speedo.errors import EngineError
from tests.support.caffe_steps import Constant, caffe_steps, first_steps
from tests.support.random_nets import RandomNet, random_net

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

SEEDS: Final = range(40)
TOLERANCE: Final = 1e-4


def solver_text(net: RandomNet, folder: Path) -> str:
    """The solver with its net inline, and the paths of its records."""
    path = net.write(folder)
    solver: Any = caffe_schema().SolverParameter()
    text_format.Parse(path.read_text(), solver)
    solver.ClearField("net")
    text_format.Parse(net.net, solver.train_net_param)
    for layer in solver.train_net_param.layer:
        for param in (layer.data_param, layer.hdf5_data_param):
            if param.source:
                param.source = str(folder / param.source)
    return text_format.MessageToString(solver)


def torch_steps(text: str, weights: Any) -> Mapping[str, Any] | str:
    """`first_steps` of PyTorch, from these weights if they fit; or why it refuses the net."""
    try:
        engine = make_engine(
            EngineChoice("torch", device="cpu"), text, lr_policy=Constant(), threads=None
        )
    except EngineError as error:
        return str(error)
    try:
        if weights is not None and weights.size == engine.layout.size:
            engine.load_weights(weights)
        return first_steps(engine)
    except EngineError as error:
        return str(error)
    finally:
        engine.close()


def difference(ours: Mapping[str, Any] | str, theirs: Mapping[str, Any] | str) -> str:
    """In what the two differ; "" if in nothing."""
    if isinstance(ours, str) or isinstance(theirs, str):
        same = isinstance(ours, str) and isinstance(theirs, str)
        return "" if same else f"PyTorch: {_brief(ours)}\nCaffe: {_brief(theirs)}"
    if list(ours["names"]) != list(theirs["names"]):
        return f"PyTorch has the blobs {ours['names']}, Caffe {list(theirs['names'])}"
    for key in ("weights", "loss", "gradient", "later", "delta"):
        mine, other = np.asarray(ours[key], np.float64), np.asarray(theirs[key], np.float64)
        if not np.array_equal(np.isfinite(mine), np.isfinite(other)):
            return f"{key}: not finite in one: {mine} {other}"
        scale = max(float(np.linalg.norm(other[np.isfinite(other)])), 1e-6)
        error = float(np.linalg.norm((mine - other)[np.isfinite(other)])) / scale
        if error > TOLERANCE:
            return f"{key} differs by {error:.2g} of {scale:.3g}"
    return ""


def _brief(found: Mapping[str, Any] | str) -> str:
    return found if isinstance(found, str) else f"trains, with the loss {found['loss']}"


def compare(seeds: range, folder: Path) -> dict[int, str]:
    """What differs, by seed."""
    nets = [random_net(seed) for seed in seeds]
    texts = [solver_text(net, folder / f"net{net.seed}") for net in nets]
    found = {}
    for net, text, theirs in zip(nets, texts, caffe_steps(texts, folder), strict=True):
        weights = None if isinstance(theirs, str) else theirs["weights"]
        if differs := difference(torch_steps(text, weights), theirs):
            found[net.seed] = f"{net.mistake}: {differs}"
    return found


def test_random_nets_are_refused_as_by_caffe_or_make_its_first_steps(tmp_path: Path) -> None:
    assert compare(SEEDS, tmp_path) == {}
