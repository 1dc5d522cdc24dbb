"""Tiny nets, databases and solvers, and plain sequential Caffe to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from caffenets.host_program import caffe_schema
from speedo.engines.caffe_import import load_caffe
from speedo.engines.parameters import Parameters
from speedo.exchange.vector import Vector

DATA = """
layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: TRAIN }}
  transform_param {{ scale: 0.00390625 }}
  data_param {{ source: "{train}" backend: LMDB batch_size: {batch} }} }}
layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: TEST }}
  transform_param {{ scale: 0.00390625 }}
  data_param {{ source: "{test}" backend: LMDB batch_size: {test_batch} }} }}
"""
LOSS = """
layer { name: "ip" type: "InnerProduct" bottom: "top" top: "ip"
  param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
  include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
# Without kinks: no ReLU and no maximum, so rounding stays rounding.
SMOOTH = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 }
  param { lr_mult: 2 }
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "sig" type: "Sigmoid" bottom: "pool" top: "top" }
"""
LENET = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 1 }
  param { lr_mult: 2 }
  convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool1" top: "ip1"
  inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "top" }
"""
BATCH_NORM = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 bias_term: false
  weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "top" scale_param { bias_term: true } }
"""
# Caffe normalizes by running sums that are 0 until the first step: each layer multiplies by 316, and floats overflow.
DEEP_NORM = (
    "".join(
        f"""
layer {{ name: "conv{at}" type: "Convolution" bottom: "{f"norm{at - 1}" if at else "data"}" top: "conv{at}"
  convolution_param {{ num_output: 4 kernel_size: 3 pad: 1 bias_term: false weight_filler {{ type: "msra" }} }} }}
layer {{ name: "norm{at}" type: "BatchNorm" bottom: "conv{at}" top: "norm{at}" }}
"""
        for at in range(18)
    )
    + 'layer { name: "sig" type: "Sigmoid" bottom: "norm17" top: "top" }'
)
SHARED = """
layer { name: "first" type: "InnerProduct" bottom: "data" top: "first"
  param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 64 weight_filler { type: "xavier" } } }
layer { name: "second" type: "InnerProduct" bottom: "first" top: "second"
  param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 64 weight_filler { type: "xavier" } } }
layer { name: "sig" type: "Sigmoid" bottom: "second" top: "top" }
"""


def records(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """`count` images of 1x8x8 in four classes that a small net can tell apart."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, count)
    images = random.integers(0, 120, (count, 1, 8, 8))
    for index, label in enumerate(labels):
        row, column = divmod(int(label), 2)
        images[index, 0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 100
    return images.astype(np.uint8), labels


def write_lmdb(folder: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    proto = caffe_schema()
    environment = lmdb.open(str(folder), map_size=1 << 24)
    with environment, environment.begin(write=True) as transaction:
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            channels, height, width = image.shape
            datum = proto.Datum(channels=channels, height=height, width=width, label=int(label))
            datum.data = image.tobytes()
            transaction.put(f"{index:08}".encode(), datum.SerializeToString())
    return folder


def write_data(folder: Path, train: int = 64, test: int = 40) -> None:
    """Databases `train` and `test` under `folder`."""
    write_lmdb(folder / "train", *records(train, 1))
    write_lmdb(folder / "test", *records(test, 2))


def net_text(
    body: str = SMOOTH,
    *,
    batch: int = 8,
    test_batch: int = 20,
    train: str = "train",
    test: str = "test",
) -> str:
    data = DATA.format(batch=batch, test_batch=test_batch, train=train, test=test)
    return f'name: "tiny"\n{data}{body}{LOSS}'


def write_solver(folder: Path, net: str, /, **fields: Any) -> Path:
    """`net.prototxt` and `solver.prototxt` in `folder`; None takes a default field away."""
    (folder / "net.prototxt").write_text(net)
    chosen: dict[str, Any] = {
        "net": '"net.prototxt"', "base_lr": 0.05, "lr_policy": '"fixed"', "momentum": 0.9,
        "weight_decay": 0.001, "max_iter": 100, "random_seed": 7, "solver_mode": "CPU",
        "test_iter": 2, "test_interval": 10,
    }  # fmt: skip
    chosen.update(fields)
    lines = []
    for name, value in chosen.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                lines.append(f"{name}: {one}")
    path = folder / "solver.prototxt"
    path.write_text("\n".join(lines) + "\n")
    return path


class Sequential:
    """Plain Caffe in this process: `get_solver`, `step`, nothing of ours but the flat copy."""

    def __init__(self, solver_text: str, folder: Path) -> None:
        caffe = load_caffe()
        caffe.set_mode_cpu()
        caffe.set_solver_count(1)
        caffe.set_solver_rank(0)
        file = folder / "sequential.prototxt"
        file.write_text(solver_text)
        self.solver = caffe.get_solver(str(file))
        self._parameters = Parameters(self.solver.net)

    def weights(self) -> Vector:
        vector = self._parameters.layout.zeros()
        self._parameters.read(vector)
        return vector

    def load(self, vector: Vector) -> None:
        self._parameters.write(vector)

    def step(self, iterations: int) -> None:
        caffe = load_caffe()
        caffe.set_solver_count(1)
        caffe.set_solver_rank(0)
        self.solver.step(iterations)


def relative_difference(found: Vector, expected: Vector, start: Vector) -> float:
    """Norm of the difference over the norm of the change that was expected."""
    change = np.linalg.norm(expected.astype(np.float64) - start)
    return float(np.linalg.norm(found.astype(np.float64) - expected) / change)
