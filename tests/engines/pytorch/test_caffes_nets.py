"""The nets of Caffe's own examples and models, from the archive that `make setup` keeps, on PyTorch and on pycaffe.

Records are random numbers, batches small, wide fully connected layers narrow and dropout off: what is compared is how
the layers are put together, forward and backward. docs/layers.md has the list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from caffenets.prototxt.state import filter_net
from speedo.engines.caffe_import import load_caffe
from speedo.errors import EngineError
from tests.support.archived_nets import CACHE, SIZES, VECTOR, archived_nets, nets, parsed

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "layers.md"
BEGIN = "<!-- nets: written by `pytest tests/engines/pytorch/test_caffes_nets.py --rewrite-tables` -->\n"
END = "<!-- end of nets -->\n"
READERS = ("Data", "HDF5Data", "ImageData")
WIDEST = 64
TOLERANCE = 1e-4
# Inputs that differ by 2e-7 change pycaffe's own gradients of this net by 2e-4: a ReLU or a maximum of a window turns.
DEEP, TOLERANCE_OF_DEEP = "models/bvlc_googlenet/", 2e-3


def made_small(net: Any, name: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Exchange what reads records for Input layers, shrink the net in place, and return values for its inputs."""
    values = {}
    family = name.split("/")[1]
    classes = 2 if family == "hdf5_classification" else 10
    for layer in net.layer:
        if layer.type in READERS:
            crop = layer.transform_param.crop_size
            size = (3, crop, crop) if crop else SIZES.get(family, VECTOR)
            batch = 1 if crop > 100 else 3
            shapes = [(batch, *size), (batch,)][: len(layer.top)]
            layer.type = "Input"
            for shape in shapes:
                layer.input_param.shape.add().dim.extend(shape)
        elif layer.type == "Input":
            for shape in layer.input_param.shape:
                shape.dim[0] = 1
        elif layer.type == "Dropout":
            layer.dropout_param.dropout_ratio = 0
        elif layer.type == "InnerProduct" and layer.inner_product_param.num_output > 1000:
            layer.inner_product_param.num_output = WIDEST
        elif layer.type == "Convolution" and layer.convolution_param.num_output > 1000:
            layer.convolution_param.num_output = WIDEST
        if layer.type == "Input":
            given = [tuple(shape.dim) for shape in layer.input_param.shape]
            for top, shape in zip(layer.top, given * len(layer.top), strict=False):
                labels = len(shape) == 1 and len(layer.top) > 1
                values[top] = (
                    rng.integers(0, 2 if family == "siamese" else classes, shape)
                    if labels
                    # Positive, for the losses that take probabilities.
                    else rng.uniform(0, 1, shape)
                ).astype(np.float32)
    return values


def on_pycaffe(
    net: Any, phase: str, values: dict[str, np.ndarray], folder: Path
) -> tuple[Any, dict[str, np.ndarray]]:
    """The net, run forward and, for training, backward, and its outputs; its weights keep the signal's size."""
    path = folder / "net.prototxt"
    path.write_text(text_format.MessageToString(net))
    caffe = load_caffe()
    caffe.set_random_seed(1)
    built = caffe.Net(str(path), getattr(caffe, phase))
    rng = np.random.default_rng(2)
    for kind, blobs in zip(
        built._layer_names, (built.params.get(n) for n in built._layer_names), strict=True
    ):
        layer = next((layer for layer in net.layer if layer.name == kind), None)
        if blobs is None or layer is None or layer.type == "BatchNorm":
            continue
        for blob in blobs:
            scale = np.sqrt(2 / max(1, blob.data[0].size)) if blob.data.ndim > 1 else 0.1
            blob.data[...] = rng.normal(0, scale, blob.data.shape)
    for name, value in values.items():
        built.blobs[name].data[...] = value
    outputs = {name: value.copy() for name, value in built.forward().items()}
    if phase == "TRAIN":
        built.clear_param_diffs()
        built.backward()
    return built, outputs


def assert_close(
    what: str, ours: Any, theirs: Any, tolerance: float = TOLERANCE, least: float = 0.0
) -> None:
    """`least` is what rounding leaves where the true value is 0."""
    assert ours.shape == theirs.shape, f"{what}: {ours.shape} and {theirs.shape}"
    size = float(np.linalg.norm(theirs))
    error = float(np.linalg.norm(ours.astype(np.float64) - theirs))
    assert np.isfinite(size), what
    assert error <= tolerance * size + least, (
        f"{what} differs by {error / size if size else error:.2g}"
    )


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("name", list(nets()))
def test_a_net_of_caffe_computes_as_on_pycaffe(name: str, phase: str, tmp_path: Path) -> None:
    import torch

    from caffenets.layers.inputs import Input
    from speedo.engines.pytorch.net import Net

    pb2 = load_caffe().proto.caffe_pb2
    # The stage is that of the autoencoder's solver; other nets ask for none.
    state = pb2.NetState(stage=["test-on-test"])
    net = filter_net(parsed(archived_nets()[name]), getattr(pb2, phase), state, name)
    refused = refusals(net)
    if refused:
        with pytest.raises(EngineError) as raised:
            Net(net, phase, folder=tmp_path)
        assert str(raised.value).endswith(refused[0])
        return
    values = made_small(net, name, np.random.default_rng(1))
    theirs, expected = on_pycaffe(net, phase, values, tmp_path)
    ours = Net(net, phase)
    for layer in ours.layers:
        if isinstance(layer, Input):
            layer.values = [torch.from_numpy(values[top]) for top in layer.param.top]
    with torch.no_grad():
        for layer_name, blobs in ours.blobs_of_layers():
            for mine, other in zip(blobs, theirs.params.get(layer_name, ()), strict=True):
                mine.copy_(torch.from_numpy(other.data.copy()))
    loss, outputs = ours.forward()
    assert sorted(outputs) == sorted(expected)
    for output, value in expected.items():
        assert_close(output, outputs[output].numpy(), value)
    if phase == "TEST" or not loss.requires_grad:
        return
    loss.backward()
    gradients = dict(
        zip((b.name for b in ours.layout.blobs), ours.parameters.gradients(), strict=True)
    )
    assert gradients
    # The bias below siamese's loss has a gradient of 3e-8, which is rounding alone.
    least = 1e-7 * max(
        float(np.linalg.norm(blob.diff)) for blobs in theirs.params.values() for blob in blobs
    )
    for blob_name, gradient in gradients.items():
        layer_name, _, index = blob_name.rpartition("/")
        diff = theirs.params[layer_name][int(index)].diff
        mine = np.zeros_like(diff) if gradient is None else gradient.numpy().reshape(diff.shape)
        tolerance = TOLERANCE_OF_DEEP if name.startswith(DEEP) else TOLERANCE
        assert_close(f"gradient of {blob_name}", mine, diff, tolerance, least)


def refusals(net: Any) -> list[str]:
    """Why the net is refused: the first layer's reason; empty where it is not."""
    from caffenets import known_types

    return [
        known_types.refusals()[layer.type]
        for layer in net.layer
        if layer.type in known_types.refusals()
    ]


def table() -> str:
    lines = ["| net of Caffe's source | PyTorch engine |", "|---|---|"]
    for name, text in archived_nets().items():
        refused = next((layer.type for layer in parsed(text).layer if refusals_of(layer)), None)
        lines.append(f"| {name} | {'yes' if refused is None else f'refused: {refused}'} |")
    return "\n".join(lines)


def refusals_of(layer: Any) -> bool:
    from caffenets import known_types

    return layer.type in known_types.refusals()


def test_the_page_lists_each_net(request: pytest.FixtureRequest) -> None:
    if not archived_nets():
        pytest.skip(f"no archive of Caffe's source in {CACHE}")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    now = f"{before}{BEGIN}\n{table()}\n\n{END}{after}"
    if request.config.getoption("--rewrite-tables"):
        PAGE.write_text(now, encoding="utf-8")
    else:
        assert text == now, (
            "write it anew: pytest tests/engines/pytorch/test_caffes_nets.py --rewrite-tables"
        )
