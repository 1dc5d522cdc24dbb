"""Fits a small net and tests it after each epoch: one worker, or all in every second one; with "one" never all.

The last epoch has no test: workers 0 and 1 leave in it, after some of its batches.
"""

import sys
import time
from pathlib import Path

import no_compiler  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import speedo

torch.manual_seed(4)
torch.set_num_threads(1)
x = torch.randn(600, 4)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=6)
tests = DataLoader(TensorDataset(x[:201], y[:201]), batch_size=10)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(batches, how):
    total = seen = 0
    if how == "together":  # however busy the machine is, one worker does not make the test alone
        Path(f"tests-{epoch}-{run.rank}").touch()
        while len(list(Path().glob(f"tests-{epoch}-*"))) < 2:
            time.sleep(0.01)
    for some, right in batches:
        total += nn.functional.mse_loss(model(some), right, reduction="sum").item()
        seen += len(some)
    print("tested", how, run.rank, seen, flush=True)
    return {"loss": total / seen}


steps, alone = 0, sys.argv[1:] == ["one"]
LAST, LEAVES_AFTER = 4, {0: 3, 1: 9}
with speedo.join(model, optimizer) as run:
    for epoch in run.epochs(2 if alone else LAST + 1):
        for number, (some, right) in enumerate(run.share(loader)):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(some), right)
            loss.backward()
            run.report(loss.item())
            optimizer.step()
            steps += 1
            if epoch == LAST and number == LEAVES_AFTER.get(run.rank):
                break
        if alone or epoch in (0, 2):
            run.test(lambda: loss_of(tests, "alone"))
        elif epoch != LAST:
            run.test(lambda batches: loss_of(batches, "together"), tests)
print("stepped", run.rank, steps, flush=True)
