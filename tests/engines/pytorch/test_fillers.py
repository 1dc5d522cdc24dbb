"""Fillers: the same numbers as pycaffe's where they are no chance, the same distribution where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from speedo.engines.caffe_import import load_caffe
from speedo.errors import EngineError

pytestmark = [pytest.mark.torch, pytest.mark.caffe]


def _filler(text: str) -> Any:
    pb2 = load_caffe().proto.caffe_pb2
    return text_format.Parse(text, pb2.FillerParameter())


def _ours(text: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    import torch

    from caffenets.pytorch.fillers import fill

    generator = torch.Generator().manual_seed(seed)
    drawn = fill(_filler(text), shape, generator)
    assert (tuple(drawn.shape), drawn.dtype) == (shape, torch.float32)
    return drawn.numpy()


def _pycaffes(text: str, shape: tuple[int, ...], folder: Path) -> np.ndarray:
    """The weight of a DummyData top, which takes any shape."""
    caffe = load_caffe()
    caffe.set_random_seed(1)
    dims = " ".join(f"dim: {size}" for size in shape)
    path = folder / "net.prototxt"
    path.write_text(
        f'layer {{ name: "d" type: "DummyData" top: "d" dummy_data_param {{ shape {{ {dims} }} '
        f"data_filler {{ {text} }} }} }}"
    )
    net = caffe.Net(str(path), caffe.TRAIN)
    net.forward()
    return net.blobs["d"].data.copy()


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8])
def test_bilinear_weights_are_pycaffes(width: int, tmp_path: Path) -> None:
    shape, text = (2, 3, width, width), 'type: "bilinear"'
    assert np.array_equal(_ours(text, shape), _pycaffes(text, shape, tmp_path))


def test_constants_are_pycaffes(tmp_path: Path) -> None:
    for text in ('type: "constant"', 'type: "constant" value: 0.3', ""):
        assert np.array_equal(_ours(text, (2, 3)), _pycaffes(text, (2, 3), tmp_path))


# 200 * 6 * 5 * 5 = 30,000 draws; inputs, outputs and their mean differ.
SHAPE = (200, 6, 5, 5)


@pytest.mark.parametrize("norm", ["FAN_IN", "FAN_OUT", "AVERAGE"])
@pytest.mark.parametrize("kind", ["xavier", "msra"])
def test_draws_by_inputs_and_outputs_are_distributed_as_pycaffes(
    kind: str, norm: str, tmp_path: Path
) -> None:
    _same_distribution(f'type: "{kind}" variance_norm: {norm}', SHAPE, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        'type: "uniform"',
        'type: "uniform" min: -3 max: -1',
        'type: "gaussian"',
        'type: "gaussian" mean: 2 std: 0.01',
        'type: "gaussian" std: 0.5 sparse: 150',
        'type: "positive_unitball"',
    ],
)
def test_draws_are_distributed_as_pycaffes(text: str, tmp_path: Path) -> None:
    _same_distribution(text, SHAPE, tmp_path)


@pytest.mark.parametrize("kind", ["xavier", "msra"])
def test_a_vector_counts_all_its_elements_as_outputs(kind: str, tmp_path: Path) -> None:
    _same_distribution(f'type: "{kind}" variance_norm: FAN_OUT', (20000,), tmp_path)


def _same_distribution(text: str, shape: tuple[int, ...], folder: Path) -> None:
    """Compares quantiles, mean, spread and zeros; some three to five standard errors of each are allowed."""
    ours, theirs = _ours(text, shape), _pycaffes(text, shape, folder)
    spread = float(theirs.std())
    parts = np.linspace(0.05, 0.95, 19)
    quantiles = [np.quantile(drawn[drawn != 0], parts) for drawn in (ours, theirs)]
    assert np.abs(quantiles[0] - quantiles[1]).max() < 0.06 * spread
    assert abs(float(ours.mean()) - float(theirs.mean())) < 0.03 * spread
    assert float(ours.std()) == pytest.approx(spread, rel=0.03)
    assert float((ours == 0).mean()) == pytest.approx(float((theirs == 0).mean()), abs=0.015)
    assert abs(float(ours.min()) - float(theirs.min())) < spread
    assert abs(float(ours.max()) - float(theirs.max())) < spread


def test_a_unit_ball_has_rows_that_add_to_one() -> None:
    sums = _ours('type: "positive_unitball"', (7, 3, 2)).reshape(7, -1).sum(1)
    np.testing.assert_allclose(sums, 1, rtol=1e-6)


def test_the_seed_decides() -> None:
    text = 'type: "xavier"'
    assert np.array_equal(_ours(text, (3, 4), seed=5), _ours(text, (3, 4), seed=5))
    assert not np.array_equal(_ours(text, (3, 4), seed=5), _ours(text, (3, 4), seed=6))


@pytest.mark.parametrize(
    ("text", "shape", "said"),
    [
        ('type: "normal"', (2,), "'normal' is unknown: use one of bilinear, constant, gaussian"),
        ('type: "xavier" sparse: 3', (2,), "only gaussian takes sparse"),
        ('type: "gaussian" sparse: 3', (2, 5), "sparse 3 of 2 outputs"),
        ('type: "gaussian" std: 0', (2,), "std 0.0: use more than 0"),
        ('type: "uniform" min: 2 max: 1', (2,), "min 2.0 above max 1.0"),
        ('type: "bilinear"', (2, 1, 3, 4), "square kernel"),
        ('type: "xavier"', (), "needs a blob with axes"),
        ('type: "constant"', (2, 0), "nothing to fill"),
    ],
)
def test_fillers_that_caffe_refuses_are_refused(
    text: str, shape: tuple[int, ...], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        _ours(text, shape)
