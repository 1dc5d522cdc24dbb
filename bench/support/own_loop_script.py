"""LeNet on made-up images, or a small GPT on made-up text, in PyTorch; says its samples/s.

By DistributedDataParallel or as a worker of `speedo run`. The GPT has the size that nanoGPT's README gives for a
processor: 4 blocks of 4 heads, 128 wide, 64 characters, 12 texts in a batch; 0.8 million parameters.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WARM_UP, RECORDS, TESTS = 20, 6400, 2000
NOISE = 2.0  # over ten patterns of 0 to 1
BATCHES = {"lenet": 64, "gpt": 12}
SYMBOLS, LENGTH, WIDTH = 65, 64, 128


class Gpt(nn.Module):
    """Scores of the next character, for each place of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Batch x symbols x places, as the loss takes them."""
        return self.out(self.blocks(self.symbols(text) + self.places.weight, self.mask)).mT


def lenet() -> nn.Module:
    """Caffe's, as examples/mnist has it."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def images(count: int, seed: int) -> TensorDataset:
    """Ten patterns under noise, so that there is something to learn."""
    coarse = torch.rand(10, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    patterns = coarse.repeat_interleave(7, 2).repeat_interleave(7, 3)
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=chance)
    return TensorDataset(
        patterns[labels] + NOISE * torch.randn(count, 1, 28, 28, generator=chance), labels
    )


def accuracy(file: Path) -> float:
    """Of a LeNet's `model.npz`, over images that no worker has seen."""
    model, arrays = lenet(), np.load(file)
    model.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files})
    with torch.no_grad():
        tests, labels = images(TESTS, 2).tensors
        return float((model(tests).argmax(1) == labels).float().mean())


def main() -> None:
    """Train for some seconds after the first batches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--step-ms", type=float, default=0.0, help="a step takes so long at least")
    parser.add_argument("--model", choices=BATCHES, default="lenet")
    parser.add_argument("--batch", type=int, help="of this process; else that of the model")
    parser.add_argument("--ddp", nargs=3, metavar=("RANK", "SIZE", "FILE"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    batch, model = asked.batch or BATCHES[asked.model], lenet()
    data = images(RECORDS, 1)
    if asked.model == "gpt":
        text = torch.randint(SYMBOLS, (RECORDS, LENGTH + 1))
        model, data = Gpt(), TensorDataset(text[:, :-1], text[:, 1:])
    if asked.ddp:
        rank, size, file = int(asked.ddp[0]), int(asked.ddp[1]), asked.ddp[2]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{file}", rank=rank, world_size=size
        )
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(data, size, rank)
        loader = DataLoader(data, batch, sampler=sampler)
        _train(
            model, _optimizer(model), itertools.chain.from_iterable(itertools.repeat(loader)), asked
        )
        return
    import speedo

    loader = DataLoader(data, batch, shuffle=True)
    optimizer = _optimizer(model)
    with speedo.join(model, optimizer) as run:

        def batches() -> Iterator[Any]:
            for _ in run.epochs(1_000_000):
                yield from run.share(loader)

        _train(model, optimizer, batches(), asked)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, asked: argparse.Namespace
) -> None:
    samples, began, due = 0, 0.0, 0.0
    for count, (x, y) in enumerate(batches):
        if count == 1:
            print("begun", flush=True)
        if count == WARM_UP:
            samples, began = 0, time.monotonic()
        if count > WARM_UP and time.monotonic() - began > asked.seconds:
            break
        time.sleep(max(0.0, due - time.monotonic()))
        due = time.monotonic() + asked.step_ms / 1000
        try:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        except RuntimeError:
            if not asked.ddp or count <= WARM_UP:
                raise
            break  # the time of the other process was over first
        samples += len(x)
    print(f"samples/s {samples / (time.monotonic() - began):.1f}", flush=True)
    os._exit(0) if asked.ddp else None  # the other processes may still wait for this one


if __name__ == "__main__":
    main()
