"""Fits a small net, and tests it once an epoch: TESTED is "one" where a worker makes the test, "all" where all do."""

import sys

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


def loss_of(batches):
    total = seen = 0
    for some, right in batches:
        total += nn.functional.mse_loss(model(some), right, reduction="sum").item()
        seen += len(some)
    print("tested", run.rank, seen, flush=True)
    return {"loss": total / seen}


steps = 0
with speedo.join(model, optimizer) as run:
    for _ in run.epochs(2):
        for some, right in run.share(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(some), right)
            loss.backward()
            run.report(loss.item())
            optimizer.step()
            steps += 1
        if sys.argv[1] == "all":
            run.test(loss_of, tests)
        else:
            run.test(lambda: loss_of(tests))
print("stepped", run.rank, steps, flush=True)
