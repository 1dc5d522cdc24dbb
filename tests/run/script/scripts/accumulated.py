"""Steps after every second batch, where worker 1 counts one more than worker 0, and at the end for what is left.

The first process of worker 1 dies in a batch.

accumulated.py RECORDS EPOCHS DIES, which is the number of that batch: worker 0 waits in it for the next process
"""

import os
import signal
import sys
import time
from pathlib import Path

import no_compiler  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import speedo

records, epochs, dies = map(int, sys.argv[1:])
who, is_there = os.environ["SPEEDO_WORKER"], Path("is-there")
torch.set_num_threads(1)
x = torch.randn(records, 2, generator=torch.Generator().manual_seed(1))
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
if who.endswith(".1.2"):
    is_there.touch()


def step():
    optimizer.step()
    optimizer.zero_grad()


with speedo.join(model, optimizer) as run:
    batches = run.rank
    for _ in run.epochs(epochs):
        for (some,) in run.share(DataLoader(TensorDataset(x), batch_size=5)):
            batches += 1
            if batches == dies and who.endswith(".1.1"):
                os.kill(os.getpid(), signal.SIGKILL)
            while batches == dies and run.rank == 0 and not is_there.exists():
                time.sleep(0.05)
            time.sleep(0.03)
            model(some).mean().backward()
            if batches % 2 == 0:
                step()
    if batches % 2:
        step()
