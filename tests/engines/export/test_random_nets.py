"""Random nets of any layers that fit: their exports compute what the engine computes, or a layer is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from caffenets.deploy import batch_axes, deploy_of
from caffenets.export.differences import difference
from caffenets.export.layered import FixedBatchError
from caffenets.prototxt.state import filter_net
from speedo.errors import EngineError, SolverError
from tests.engines.export.in_process import in_onnx_runtime, in_pytorch, on_torch
from tests.support.random_nets import WIDTH, random_net

pytestmark = [pytest.mark.torch]

SEEDS: Final = range(150)
SIZES: Final = {"data": (2, 6, 6), "vector": (WIDTH,), "target": (WIDTH,)}


def shapes_for(batch: int) -> Any:
    def shapes(layer: Any, tops: Sequence[str]) -> dict[str, tuple[int, ...]]:
        if layer.type == "DummyData":
            given = [tuple(one.dim) for one in layer.dummy_data_param.shape]
            return dict(zip(layer.top, given * len(layer.top), strict=False))
        return {top: (batch, *SIZES.get(top, ())) for top in tops}

    return shapes


def test_random_nets_compute_the_same_in_each_form() -> None:
    tried, refused, fixed, named = 0, 0, 0, 0
    found = {}
    for seed in SEEDS:
        drawn = random_net(seed, mistakes=False)
        net: Any = text_format.Parse(drawn.net, caffe_pb2.NetParameter())
        filtered = filter_net(net, caffe_pb2.TEST, None, "net")
        try:
            made = deploy_of(filtered, shapes_for(drawn.batch), "net")
        except SolverError:
            refused += 1  # nothing but the loss computes
            continue
        axes = batch_axes(made.net)
        (own,) = {made.inputs[name][axis] for name, axis in axes.items()}
        for batches in ((2, 6), (own,)):
            try:
                export = on_torch(made.net, batches)
                export.made.as_torch("a net")
                content = export.made.as_onnx()
                break
            except (FixedBatchError, EngineError):
                fixed += 1
            except SolverError as error:
                content = None
                named += "ONNX" in str(error)
                break
        for inputs, outputs in zip(export.inputs, export.outputs, strict=True):
            try:
                difference(in_pytorch(export.made, inputs), outputs, "module", "PyTorch")
                if content is not None:
                    difference(in_onnx_runtime(content, inputs), outputs, "ONNX", "PyTorch")
            except (EngineError, RuntimeError, SyntaxError, TypeError) as error:
                found[seed] = f"{type(error).__name__}: {error}\n{drawn.net}"
        tried += 1
    print(f"{tried} tried, {refused} refused, {fixed} fixed, {named} named")
    assert found == {}
    assert tried > len(SEEDS) / 2
    assert fixed
