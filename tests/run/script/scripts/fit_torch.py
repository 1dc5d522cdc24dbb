"""Fits a small net to 960 points in 50 steps of 48 records or less, or of as many workers' batches.

fit_torch.py BATCH [OPTIMIZER] [EXCHANGE] [PAUSE] [FILE]
"""

import sys
import time

import no_compiler  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import speedo

batch, name, exchange, pause, file = (
    *sys.argv[1:],
    *("8", "sgd", "", "0", "")[len(sys.argv) - 1 :],
)
torch.manual_seed(4)
torch.set_num_threads(1)
x = torch.randn(1190, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=int(batch))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = (
    torch.optim.Adam(model.parameters(), lr=0.01)
    if name == "adam"
    else torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
steps = 0
with speedo.join(model, optimizer, scheduler=scheduler, exchange=exchange or None) as run:
    for _ in run.epochs(2):
        for some, right in run.share(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(some), right)
            loss.backward()
            run.report(loss)
            time.sleep(float(pause))
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            rate = optimizer.param_groups[0]["lr"]
            scheduler.step()
            steps += 1
    if steps:
        print("rate", rate)
print("steps", steps, flush=True)
if file:
    run.save(file)
