"""`micro_batch`: parts of a batch give the step of the whole, and a lack of memory costs smaller parts and no more."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caffenets.caffe_schema import caffe_pb2
from speedo.errors import ConfigError, EngineError
from speedo.run.config.run_config import make_config

pytestmark = pytest.mark.torch

DATA = """layer {{ name: "data" type: "HDF5Data" top: "data" top: "label" top: "target"
  hdf5_data_param {{ source: "{}" batch_size: 10 }} }}"""
CONV = """layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 6
  kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "act" type: "Sigmoid" bottom: "pool" top: "act" }
layer { name: "ip" type: "InnerProduct" bottom: "act" top: "ip" inner_product_param { num_output: 4
  weight_filler { type: "xavier" } } }"""
SOFTMAX = """layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
  loss_param {{ {} }} }}"""
LOSSES = {
    "FULL": SOFTMAX.format("normalization: FULL"),
    "VALID with ignore_label": SOFTMAX.format("normalization: VALID ignore_label: 3"),
    "BATCH_SIZE": SOFTMAX.format("normalization: BATCH_SIZE"),
    "NONE": SOFTMAX.format("normalization: NONE"),
    "two of them": SOFTMAX.format("normalization: VALID ignore_label: 0")
    + 'layer { name: "more" type: "EuclideanLoss" bottom: "ip" bottom: "target" top: "more" loss_weight: 0.3 }',
    "Reduction, sum": """layer { name: "d" type: "Eltwise" bottom: "ip" bottom: "target" top: "d"
      eltwise_param { coeff: 1 coeff: -1 } }
      layer { name: "r" type: "Reduction" bottom: "d" top: "r" loss_weight: 0.1
      reduction_param { operation: SUMSQ } }""",
    "Reduction, mean": """layer { name: "r" type: "Reduction" bottom: "ip" top: "r" loss_weight: 1
      reduction_param { operation: MEAN } }""",
    "Reduction of each record": """layer { name: "r" type: "Reduction" bottom: "ip" top: "r" loss_weight: 0.1
      reduction_param { operation: SUMSQ axis: 1 } }""",
    "Sigmoid": """layer { name: "s" type: "SigmoidCrossEntropyLoss" bottom: "ip" bottom: "target" top: "s"
      loss_param { ignore_label: 0 normalization: VALID } }""",
}


def write_data(folder: Path) -> str:
    import h5py

    chance = np.random.default_rng(0)
    with h5py.File(folder / "data.h5", "w") as file:
        file["data"] = chance.normal(size=(50, 2, 8, 8)).astype(np.float32)
        file["label"] = chance.integers(0, 4, 50).astype(np.float32)
        file["target"] = chance.random((50, 4)).astype(np.float32)
    (folder / "data.txt").write_text(f"{folder / 'data.h5'}\n")
    return str(folder / "data.txt")


class Rate:
    def rate(self, iteration: int) -> float:
        return 0.05

    def from_base(self, lr: float) -> Rate:
        return self


def engine_of(net: str, micro_batch: str, solver: str = "", sharing: int = 1) -> Any:
    from google.protobuf import text_format

    from speedo.engines.pytorch.engine import PytorchEngine

    parameter = caffe_pb2.SolverParameter(random_seed=3, momentum=0.9)
    text_format.Merge(solver, parameter)
    text_format.Parse(net, parameter.train_net_param)
    return PytorchEngine(
        text_format.MessageToString(parameter),
        lr_policy=Rate(),
        micro_batch=micro_batch,
        sharing=sharing,
    )


def weights_after(engine: Any, steps: int) -> tuple[Any, list[float]]:
    losses = [engine.step(1) for _ in range(steps)]
    weights = engine.layout.zeros()
    engine.read_weights(weights)
    engine.close()
    return weights, losses


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("part", ["3", "1"])
def test_twenty_steps_in_parts_are_those_of_the_whole_batch(
    tmp_path: Path, name: str, part: str
) -> None:
    net = DATA.format(write_data(tmp_path)) + CONV + LOSSES[name]
    if "target" not in LOSSES[name]:
        net += 'layer { name: "silent" type: "Silence" bottom: "target" }'
    if '"label"' not in LOSSES[name]:
        net += 'layer { name: "silent2" type: "Silence" bottom: "label" }'
    solver = "iter_size: 2"
    whole, losses = weights_after(engine_of(net, "", solver), 20)
    parts, others = weights_after(engine_of(net, part, solver), 20)
    assert np.abs(parts - whole).max() <= 1e-6 * np.abs(whole).max()
    np.testing.assert_allclose(others, losses, rtol=1e-5, atol=1e-7)


def test_the_gradient_that_leaves_in_parts_is_that_of_the_whole_batch(tmp_path: Path) -> None:
    net = DATA.format(write_data(tmp_path)) + CONV + LOSSES["two of them"]
    found = []
    for part in ("", "4"):
        engine = engine_of(net, part)
        gradient, places = engine.layout.zeros(), []
        engine.gradient(
            2, gradient, lambda start, stop, places=places: places.append((start, stop))
        )
        found.append((gradient, sorted(places)))
        engine.close()
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-6)
    assert found[1][1] == found[0][1]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ("""layer { name: "r" type: "Reshape" bottom: "ip" top: "r" reshape_param { shape { dim: 2 dim: -1 } } }
          layer { name: "l" type: "Reduction" bottom: "r" top: "l" loss_weight: 1 reduction_param { axis: 1 } }""",
         "layer 'r' (Reshape) makes (2, 20) of a batch of 10"),
        (LOSSES["FULL"] + 'layer { name: "p" type: "Power" bottom: "loss" top: "p" loss_weight: 1 }',
         "layer 'p' (Power) reads a loss"),
        ("""layer { name: "f" type: "Filter" bottom: "ip" bottom: "label" top: "f" }
          layer { name: "l" type: "Reduction" bottom: "f" top: "l" loss_weight: 1 }""",
         "layer 'f' (Filter) mixes the records of a batch"),
    ],
)  # fmt: skip
def test_what_does_not_follow_from_parts_is_named(tmp_path: Path, layers: str, words: str) -> None:
    with pytest.raises(EngineError) as refused:
        engine_of(DATA.format(write_data(tmp_path)) + CONV + layers, "5")
    assert words in str(refused.value)
    assert "leave micro_batch out" in str(refused.value)


LARGE = """layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 64 dim: 3 dim: 32 dim: 32 } shape { dim: 64 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "a" type: "Convolution" bottom: "data" top: "a" convolution_param { num_output: 32 kernel_size: 3 pad: 1
  weight_filler { type: "xavier" } } }
layer { name: "s" type: "Sigmoid" bottom: "a" top: "s" }
layer { name: "b" type: "Convolution" bottom: "s" top: "b" convolution_param { num_output: 32 kernel_size: 3 pad: 1
  weight_filler { type: "xavier" } } }
layer { name: "t" type: "Sigmoid" bottom: "b" top: "t" }
layer { name: "p" type: "Pooling" bottom: "t" top: "p" pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "p" top: "ip" inner_product_param { num_output: 4
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_parts_are_halved_until_a_step_fits_a_limit_that_the_whole_batch_exceeds(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here PyTorch finds no memory where it keeps, or needs again, a value of more than 2.5 MB.

    Those between the layers take 131 kB of a record. A limit of the process would not do: how near to it one comes
    depends on the allocator and what it keeps.
    """
    import torch

    refused = 0

    def limited(value: Any) -> Any:
        nonlocal refused
        if value.nbytes > 2_500_000:
            refused += 1
            torch.empty(1 << 60, dtype=torch.uint8)  # PyTorch's own error
        return value

    def free(value: Any) -> Any:
        return value

    hooks = (limited, free) if where == "forward" else (free, limited)
    monkeypatch.setattr("speedo.engines.pytorch.micro_batch.free_memory", lambda: 1 << 40)
    expected, losses = weights_after(engine_of(LARGE, ""), 2)
    whole, parts = engine_of(LARGE, ""), engine_of(LARGE, "auto")
    assert parts._micro.size == 64
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        with pytest.raises(
            EngineError, match=r"too little memory.*: use --engine torch,micro_batch=auto"
        ):
            whole.step(1)
        assert refused == 1
        found, others = weights_after(parts, 2)
    whole.close()
    assert (parts._micro.size, refused) == (16, 3)  # 64 and 32 records were too many
    np.testing.assert_allclose(others, losses, rtol=1e-5)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(("part", "sharing"), [(64, 1), (16, 1), (1, 1), (16, 4)])
def test_auto_begins_with_what_a_share_of_half_of_the_free_memory_takes(
    part: int, sharing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = engine_of(LARGE, "")
    memory = whole.memory()
    whole.close()
    free = 2 * sharing * (memory.of_parts(part) - memory.parameters)
    monkeypatch.setattr("speedo.engines.pytorch.micro_batch.free_memory", lambda: free)
    parts = engine_of(LARGE, "auto", sharing=sharing)
    assert parts._micro.size == part
    parts.close()


@pytest.mark.parametrize(("sharing", "part"), [(1, 64), (2, 32)])
def test_on_a_gpu_parts_are_halved_once_if_a_step_fills_this_workers_share_of_it(
    sharing: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr("speedo.engines.pytorch.micro_batch.free_memory", lambda: 1 << 40)
    engine = engine_of(LARGE, "auto", sharing=sharing)
    micro = engine._micro
    monkeypatch.setattr(micro, "_net", SimpleNamespace(device=torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40, 100))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 60)
    for _ in range(2):
        micro._keep_room()
    assert micro.size == part
    engine.close()


def test_the_option_is_for_this_engine_and_a_number() -> None:
    assert make_config({"engine": "torch", "micro_batch": "auto"}).micro_batch == "auto"
    for options, words in (
        ({"engine": "caffe", "micro_batch": "8"}, "micro_batch is for the engine torch"),
        ({"engine": "torch", "micro_batch": "0"}, "micro_batch is '0': use 1 to"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_config(options)
