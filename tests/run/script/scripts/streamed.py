"""Trains on a shuffled stream in two loops: an epoch, and another. streamed.py [PAUSE]"""

import sys
import time

import no_compiler  # noqa: F401
import torch
from torch.utils.data import DataLoader, IterableDataset

import speedo

ITEMS = 62


class Stream(IterableDataset):
    def __iter__(self):
        return (one[None].float() for one in torch.randperm(ITEMS))


pause = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
torch.set_num_threads(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
with speedo.join(model, optimizer) as run:
    for start in (0, 7):
        for epoch in run.epochs(1, start=start):
            for some in run.share(DataLoader(Stream(), batch_size=4)):
                optimizer.zero_grad()
                model(some).square().mean().backward()
                optimizer.step()
                print("batch", epoch, some.int().flatten().tolist(), flush=True)
                time.sleep(pause)
