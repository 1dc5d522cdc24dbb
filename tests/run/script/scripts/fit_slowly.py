"""Fits a net whose steps take some ms for each record, with batches of 32 records, or as many workers' in one process.

fit_slowly.py WORKERS EPOCHS [HOW] [FILE]; HOW is plain, normalized, dropped (the last batch) or accumulated.
"""

import sys

import no_compiler  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import speedo

workers, epochs, how, file = (*sys.argv[1:], *("plain", "")[len(sys.argv) - 3 :])
torch.manual_seed(4)
torch.set_num_threads(1)
x = torch.randn(1290, 16)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=32 * int(workers), shuffle=True, drop_last=how == "dropped")
wide = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.Tanh())]
model = nn.Sequential(nn.Linear(16, 1024), nn.Tanh(), *wide, nn.Linear(1024, 1))
if how == "normalized":
    model.insert(1, nn.BatchNorm1d(1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
with speedo.join(model, optimizer) as run:
    for _ in run.epochs(int(epochs)):
        for some, right in run.share(loader):
            optimizer.zero_grad()
            for part in (some, some) if how == "accumulated" else (some,):
                loss = nn.functional.mse_loss(model(part), right)
                loss.backward()
            optimizer.step()
if file:
    run.save(file)
