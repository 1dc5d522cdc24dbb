"""Bundled nets over made-up records: what is timed is the arithmetic, which pixels do not change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speedo.bundled import bundled_solver
from speedo.data.database import raw_record, record_key, write_database
from speedo.data.mean import MeanImage, write_mean

RECORDS = 5000
CLASSES = 10
RATE = 1e-4  # of no use to anybody, and safe in every mode: a run that diverges measures nothing


@dataclass(frozen=True, slots=True)
class Shape:
    """Where a net's sources lie, and what its images are: channels, height, width."""

    folder: str
    image: tuple[int, int, int]


SHAPES = {
    "lenet": Shape("fashion-mnist", (1, 28, 28)),
    "cifar10_full": Shape("cifar10", (3, 32, 32)),
    "cifar10_quick": Shape("cifar10", (3, 32, 32)),
}


@dataclass(frozen=True, slots=True)
class Bench:
    """A bundled net without tests and snapshots, in a folder with its records."""

    name: str
    folder: Path
    batch: int
    _solver: str
    _net: str

    @classmethod
    def make(cls, name: str, folder: Path) -> Bench:
        """Write the records and read the prototxt."""
        shape = SHAPES[name]
        _write_records(folder / shape.folder, shape.image)
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
        return cls(name, folder, int(first[1]), f"{solver}\nbase_lr: {RATE}", net)

    def solver(self, batch: int) -> Path:
        """A solver file whose nets read `batch` records."""
        net = self.folder / f"net_{batch}.prototxt"
        net.write_text(re.sub(r"batch_size: \d+", f"batch_size: {batch}", self._net))
        path = self.folder / f"solver_{batch}.prototxt"
        path.write_text(f'net: "{net}"\n{self._solver}\nsnapshot_prefix: "{self.folder}/bench"\n')
        return path


def _write_records(folder: Path, shape: tuple[int, int, int]) -> None:
    """Ten classes that a net can learn, so that no weight runs away; with their mean image."""
    random = np.random.default_rng(0)
    patterns = random.integers(0, 128, (CLASSES, *shape))
    noise = random.integers(0, 128, (RECORDS, *shape))
    mean = MeanImage()
    records = []
    for index in range(RECORDS):
        image = (patterns[index % CLASSES] + noise[index]).astype(np.uint8)
        mean.add(image)
        records.append(raw_record(record_key(index), image, index % CLASSES))
    write_database(folder / "train_lmdb", records)
    write_mean(folder, "train_lmdb", mean)
