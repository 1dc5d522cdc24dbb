"""Bundled nets over made-up records: what is timed is the arithmetic, which pixels do not change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speedo.data.database import raw_record, record_key, write_database
from speedo.data.mean import MeanImage, write_mean
from speedo.engines.solver.bundled import bundled_solver

RECORDS = 5000
LARGE_RECORDS = 64  # of ImageNet's size: 10 MB, and a step of AlexNet takes a second
CLASSES = 10
RATE = 1e-4  # of no use to anybody, and safe in every mode: a run that diverges measures nothing


@dataclass(frozen=True, slots=True)
class Shape:
    """Where a net's sources lie, and what its images are: channels, height, width.

    `batch` goes before the bundled one, which may be too large to measure many steps.
    """

    folder: str
    image: tuple[int, int, int]
    records: int = RECORDS
    batch: int | None = None


SHAPES = {
    "lenet": Shape("fashion-mnist", (1, 28, 28)),
    "cifar10_full": Shape("cifar10", (3, 32, 32)),
    "cifar10_quick": Shape("cifar10", (3, 32, 32)),
    "alexnet": Shape("imagenet", (3, 227, 227), LARGE_RECORDS, batch=16),
    "googlenet": Shape("imagenet", (3, 224, 224), LARGE_RECORDS, batch=8),
}

ONE_LAYER = """name: "one_layer"
layer {{
  name: "data" type: "Data" top: "data" top: "label"
  include {{ phase: TRAIN }}
  transform_param {{ scale: 0.00390625 }}
  data_param {{ source: "{source}" backend: LMDB batch_size: 1 }}
}}
layer {{
  name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param {{ num_output: {outputs} bias_term: false weight_filler {{ type: "xavier" }} }}
}}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""
ONE_LAYER_SOLVER = 'lr_policy: "fixed"\nmax_iter: 1000000\nsolver_mode: CPU'


@dataclass(frozen=True, slots=True)
class Bench:
    """A net without tests and snapshots, in a folder with its records."""

    name: str
    folder: Path
    batch: int
    _solver: str
    _net: str

    @classmethod
    def make(cls, name: str, folder: Path) -> Bench:
        """A bundled net: write the records and read the prototxt."""
        shape = SHAPES[name]
        _write_records(folder / shape.folder, shape.image, shape.records)
        bundled = bundled_solver(name)
        net = bundled.with_name("train_test.prototxt").read_text(encoding="utf-8")
        net = re.sub(r'\b(source|mean_file): "', rf'\1: "{folder}/', net)
        lines = bundled.read_text(encoding="utf-8").splitlines()
        kept = [
            line for line in lines if not re.match(r"(net|test_\w+|snapshot\w*|display):", line)
        ]
        first = re.search(r"batch_size: (\d+)", net)
        assert first is not None, f"{name} has no batch_size"
        solver = "\n".join(line for line in kept if not line.startswith("base_lr:"))
        batch = shape.batch or int(first[1])
        return cls(name, folder, batch, f"{solver}\nbase_lr: {RATE}", net)

    @classmethod
    def one_layer(cls, name: str, folder: Path, inputs: int, outputs: int) -> Bench:
        """One inner product of `inputs x outputs` weights and batch 1: hardly any arithmetic, many bytes."""
        _write_records(folder / "data", (1, 1, inputs), LARGE_RECORDS)
        net = ONE_LAYER.format(source=folder / "data" / "train_lmdb", outputs=outputs)
        return cls(name, folder, 1, f"{ONE_LAYER_SOLVER}\nbase_lr: {RATE}", net)

    def solver(self, batch: int) -> Path:
        """A solver file whose nets read `batch` records."""
        net = self.folder / f"net_{batch}.prototxt"
        net.write_text(re.sub(r"batch_size: \d+", f"batch_size: {batch}", self._net))
        path = self.folder / f"solver_{batch}.prototxt"
        path.write_text(f'net: "{net}"\n{self._solver}\nsnapshot_prefix: "{self.folder}/bench"\n')
        return path


def _write_records(folder: Path, shape: tuple[int, int, int], count: int) -> None:
    """Ten classes that a net can learn, so that no weight runs away; with their mean image."""
    random = np.random.default_rng(0)
    patterns = random.integers(0, 128, (CLASSES, *shape), np.uint8)
    mean = MeanImage()
    records = []
    for index in range(count):
        image = patterns[index % CLASSES] + random.integers(0, 128, shape, np.uint8)
        mean.add(image)
        records.append(raw_record(record_key(index), image, index % CLASSES))
    write_database(folder / "train_lmdb", records)
    write_mean(folder, "train_lmdb", mean)
