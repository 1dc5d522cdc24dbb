"""LeNet in PyTorch on Fashion-MNIST as an engine of the simulated cluster: all workers in one process, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from speedo.data.idx import read_idx
from speedo.data.mnist import FASHION_MNIST_SOURCE
from speedo.engines.pytorch.module_weights import ModuleWeights
from speedo.exchange.vector import Vector

RECORDS: Final = 60_000
TEST_BATCH: Final = 1000


@cache
def fashion_mnist(part: str, folder: Path = FASHION_MNIST_SOURCE) -> tuple[Tensor, Tensor]:
    """`part` is `train` or `t10k`: images of float32 in [0, 1], in channels-last order, and their labels."""
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz", 3).astype(np.float32) / 255
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", 1).astype(np.int64)
    images = torch.from_numpy(pixels).unsqueeze(1)
    return images.contiguous(memory_format=torch.channels_last), torch.from_numpy(labels)


@dataclass(frozen=True, slots=True)
class Training:
    """What all workers of a run have in common; `batch` is that of each."""

    seed: int
    workers: int
    batch: int
    lr: float
    momentum: float


class LeNetEngine(ModuleWeights):
    """What a `Worker` asks of an engine: rank `rank` reads every n-th batch of the epoch's order, which all share."""

    def __init__(self, training: Training, rank: int) -> None:
        torch.manual_seed(training.seed)
        self._model = nn.Sequential(
            *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
        ).to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=training.lr, momentum=training.momentum
        )
        super().__init__(self._model, [self._optimizer])
        self._training, self._batch = training, rank
        self.samples_per_step = training.batch

    def set_iteration(self, iteration: int) -> None:
        """The learning rate is fixed."""

    def step(self, n: int, delta: Vector | None = None) -> float:
        """See `Engine.step`."""
        if delta is not None:
            self.read_weights(delta)
        total = 0.0
        for _ in range(n):
            loss = nn.functional.cross_entropy(*self._answers())
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            total += loss.item()
        if delta is not None:
            after = np.empty_like(delta)
            self.read_weights(after)
            np.subtract(after, delta, out=delta)
        return total / n

    def test(self) -> tuple[float, float]:
        """Accuracy and mean loss over the test images."""
        images, labels = fashion_mnist("t10k")
        right, loss = 0, 0.0
        with torch.no_grad():
            for x, y in zip(images.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True):
                answers = self._model(x)
                right += int((answers.argmax(1) == y).sum())
                loss += float(nn.functional.cross_entropy(answers, y, reduction="sum"))
        return right / len(labels), loss / len(labels)

    def _answers(self) -> tuple[Tensor, Tensor]:
        """The model's answers for the next batch, and the labels."""
        images, labels = fashion_mnist("train")
        size, in_epoch = self._training.batch, RECORDS // self._training.batch
        epoch, place = divmod(self._batch, in_epoch)
        records = _order(self._training.seed, epoch)[place * size : (place + 1) * size]
        self._batch += self._training.workers
        return self._model(images[records]), labels[records]


@cache
def _order(seed: int, epoch: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(RECORDS))
