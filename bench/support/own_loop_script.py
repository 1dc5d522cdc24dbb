"""LeNet in PyTorch on made-up images, by DistributedDataParallel or as a worker of `speedo run`; says its images/s."""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WARM_UP, RECORDS = 20, 6400


def main() -> None:
    """Train for some seconds after the first batches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--ddp", nargs=3, metavar=("RANK", "SIZE", "FILE"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = TensorDataset(torch.rand(RECORDS, 1, 28, 28), torch.randint(10, (RECORDS,)))
    model: nn.Module = nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )
    if asked.ddp:
        rank, size, file = int(asked.ddp[0]), int(asked.ddp[1]), asked.ddp[2]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{file}", rank=rank, world_size=size
        )
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(data, size, rank)
        loader = DataLoader(data, asked.batch, sampler=sampler)
        _train(
            model, _optimizer(model), itertools.chain.from_iterable(itertools.repeat(loader)), asked
        )
        return
    import speedo

    loader = DataLoader(data, asked.batch, shuffle=True)
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
    images, began = 0, 0.0
    for count, (x, y) in enumerate(batches):
        if count == WARM_UP:
            images, began = 0, time.monotonic()
        if count > WARM_UP and time.monotonic() - began > asked.seconds:
            break
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        images += len(x)
    print(f"images/s {images / (time.monotonic() - began):.1f}", flush=True)
    os._exit(0) if asked.ddp else None  # the other processes may still wait for this one


if __name__ == "__main__":
    main()
