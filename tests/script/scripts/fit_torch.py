"""Fits a small net to 320 points in 20 steps of 16 records, or of as many workers' batches."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import speedo

torch.manual_seed(4)
torch.set_num_threads(1)
x = torch.randn(320, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=int(sys.argv[1]))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
with speedo.join(model, optimizer) as run:
    for _ in run.epochs(2):
        for some, right in run.share(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(some), right).backward()
            optimizer.step()
if len(sys.argv) > 2:
    run.save(sys.argv[2])
