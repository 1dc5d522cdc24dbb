"""What a step takes: worked out by hand for a small net, measured for one of some hundred MB, and in parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from speedo.engines.make import EngineChoice, make_engine
from speedo.engines.solver.lr_policies import LrPolicy
from speedo.engines.step_memory import LayerMemory, StepMemory

ROOT = Path(__file__).resolve().parents[2]
FILLED = 'weight_filler { type: "xavier" }'
SMALL = f"""
layer {{ name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {{
  shape {{ dim: 10 dim: 2 dim: 8 dim: 8 }} shape {{ dim: 10 }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 6 kernel_size: 3 {FILLED} }} }}
layer {{ name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param {{ pool: AVE kernel_size: 2 stride: 2 }} }}
layer {{ name: "act" type: "Sigmoid" bottom: "pool" top: "act" }}
layer {{ name: "ip" type: "InnerProduct" bottom: "act" top: "ip" inner_product_param {{ num_output: 4 {FILLED} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}"""
# Each kind of layer that holds more than its tops; a branch; some 250 MB of values and 40 MB of weights.
LARGE = f"""
layer {{ name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {{
  shape {{ dim: 128 dim: 3 dim: 48 dim: 48 }} shape {{ dim: 128 }}
  data_filler {{ type: "gaussian" }} data_filler {{ type: "constant" value: 1 }} }} }}
layer {{ name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param {{ num_output: 32 kernel_size: 3 pad: 1 {FILLED} }} }}
layer {{ name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }}
layer {{ name: "norm1" type: "LRN" bottom: "conv1" top: "norm1" }}
layer {{ name: "pool1" type: "Pooling" bottom: "norm1" top: "pool1"
  pooling_param {{ pool: MAX kernel_size: 2 stride: 2 }} }}
layer {{ name: "wide" type: "Convolution" bottom: "pool1" top: "wide"
  convolution_param {{ num_output: 48 kernel_size: 3 pad: 1 {FILLED} }} }}
layer {{ name: "bn" type: "BatchNorm" bottom: "wide" top: "bn" }}
layer {{ name: "narrow" type: "Convolution" bottom: "pool1" top: "narrow"
  convolution_param {{ num_output: 16 kernel_size: 1 {FILLED} }} }}
layer {{ name: "both" type: "Concat" bottom: "bn" bottom: "narrow" top: "both" }}
layer {{ name: "relu2" type: "ReLU" bottom: "both" top: "both" }}
layer {{ name: "drop" type: "Dropout" bottom: "both" top: "both" }}
layer {{ name: "ip1" type: "InnerProduct" bottom: "both" top: "ip1"
  inner_product_param {{ num_output: 256 {FILLED} }} }}
layer {{ name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" inner_product_param {{ num_output: 10 {FILLED} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }}"""
CHILD = """
import json, sys, psutil
from pathlib import Path
from speedo.engines.make import EngineChoice, make_engine, prepare_process
from speedo.engines.solver.lr_policies import LrPolicy
choice = EngineChoice(sys.argv[1], "cpu")
prepare_process(choice)
one = make_engine(choice, sys.stdin.read(), lr_policy=LrPolicy("fixed", 1e-4))
estimate = one.memory().total - one.layout.nbytes  # the weights have their memory already
before = psutil.Process().memory_info().rss
one.step(3)
# Of this program alone: `ru_maxrss` begins with that of the process that has started it.
(most,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print("answer", json.dumps([int(most.split()[1]) * 1024 - before, estimate]))
"""


def solver_of(net: str, kind: str = "SGD") -> str:
    return (
        f'type: "{kind}" momentum: 0.9 random_seed: 1 solver_mode: CPU train_net_param {{ {net} }}'
    )


def memory_of(engine: str, net: str, device: str = "cpu") -> StepMemory:
    choice = EngineChoice(engine, device)  # type: ignore[arg-type]
    one = make_engine(choice, solver_of(net), lr_policy=LrPolicy("fixed", 0.1))
    try:
        return one.memory()
    finally:
        one.close()


def table(memory: StepMemory) -> dict[str, tuple[int, int, int]]:
    return {one.name: (one.parameters, one.values, one.workspace) for one in memory.layers}


DATA = 4 * (10 * 2 * 8 * 8 + 10)
CONV, POOL, IP = 4 * 10 * 6 * 6 * 6, 4 * 10 * 6 * 3 * 3, 4 * 10 * 4
WEIGHTS = {"conv": 4 * (6 * 2 * 9 + 6), "ip": 4 * (4 * 54 + 4)}  # each with gradient and history


@pytest.mark.caffe
def test_caffe_keeps_values_and_gradients_and_the_columns_of_an_image() -> None:
    memory = memory_of("caffe", SMALL)
    assert table(memory) == {
        "data": (0, 0, DATA),
        "conv": (3 * WEIGHTS["conv"], 2 * CONV, 4 * 2 * 9 * 36),
        "pool": (0, 2 * POOL, 0),
        "act": (0, 2 * POOL, 0),
        "ip": (3 * WEIGHTS["ip"], 2 * IP, 0),
        "loss": (0, 2 * 4 + IP, 0),  # and the probabilities
    }
    assert (memory.passing, memory.batch) == (0, 10)


@pytest.mark.torch
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_pytorch_keeps_what_the_backward_pass_reads(device: str) -> None:
    memory = memory_of("torch", SMALL, device)
    assert table(memory) == {
        "data": (0, 0, DATA),
        "conv": (3 * WEIGHTS["conv"], CONV, 0),  # which the pooling reads
        "pool": (0, 0, 0),
        "act": (0, POOL, 0),
        "ip": (3 * WEIGHTS["ip"], 0, 0),
        "loss": (0, IP + 8 * 10 + 4, 0),  # probabilities, labels as whole numbers, the loss
    }
    # In the backward pass of the pooling: its top's gradient and its bottom's, when only its bottom is still kept.
    assert memory.passing == (CONV + POOL + CONV) - memory.values
    assert memory.batch == 10


@pytest.mark.torch
def test_a_trace_leaves_the_engine_as_it_was() -> None:
    from tests.engines.pytorch.test_micro_batch import engine_of

    one, other = engine_of(SMALL, ""), engine_of(SMALL, "")
    first = [one.step(1)]
    one.memory()
    assert [*first, one.step(1)] == [other.step(1), other.step(1)]
    assert one.memory() == other.memory()


@pytest.mark.torch
def test_a_layer_that_needs_values_counts_with_its_bottoms_and_tops() -> None:
    head, loss = SMALL.split('layer { name: "loss"')
    chosen = 'layer { name: "f" type: "Filter" bottom: "ip" bottom: "label" top: "f" }'
    net = f"""{head}{chosen} layer {{ name: "loss"{loss.replace('"ip"', '"f"')}"""
    found = table(memory_of("torch", net))
    assert found["f"][1] == IP
    assert found["ip"][1] == IP


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "solver"),
    [
        pytest.param("caffe", "SGD", marks=pytest.mark.caffe),
        pytest.param("caffe", "Adam", marks=pytest.mark.caffe),
        pytest.param("torch", "SGD", marks=pytest.mark.torch),
    ],
)
def test_a_real_step_takes_what_was_estimated(engine: str, solver: str) -> None:
    """Within a fifth, of the growth of the process from the built net to its largest.

    With glibc's own threshold, which returns what is freed: `keep_freed_memory` holds it, in pieces of other sizes.
    """
    child = subprocess.run(
        [sys.executable, "-c", CHILD, engine], cwd=ROOT, input=solver_of(LARGE, solver), capture_output=True, text=True,
        timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "131072"},
    )  # fmt: skip
    assert "answer" in child.stdout, child.stderr[-2000:]
    grown, estimate = json.loads(child.stdout.partition("answer ")[2])
    assert estimate > 200e6
    assert estimate == pytest.approx(grown, rel=0.2)


sizes = st.integers(0, 1 << 40)
memories = st.builds(
    StepMemory,
    st.lists(st.builds(LayerMemory, st.text(), st.text(), sizes, sizes, sizes), max_size=5).map(tuple),
    sizes,
    st.integers(1, 100_000),
)  # fmt: skip


@given(memory=memories, room=st.integers(0, 1 << 43))
def test_the_largest_part_fits_and_the_next_larger_one_does_not(
    memory: StepMemory, room: int
) -> None:
    assert memory.of_parts(memory.batch) == memory.of_parts(memory.batch + 1) == memory.total
    assert TypeAdapter(StepMemory).validate_json(json.dumps(asdict(memory))) == memory
    part = memory.largest_part(room)
    halves = [memory.batch]
    while halves[-1] > 1:
        halves.append(-(-halves[-1] // 2))
    fitting = [one for one in halves if memory.of_parts(one) <= room]
    assert part == max(fitting, default=0)
    sums = [memory.of_parts(one) for one in halves]
    assert sums == sorted(sums, reverse=True)
