"""A diffusion model of points in the plane: a net that foretells the noise of each step."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
TIMES = 40
kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, TIMES), 0)  # of a point after each step


def points(count):
    """Points of two arcs, and of each a time and its noise."""
    angle, side = torch.pi * torch.rand(count), torch.randint(2, (count,)) * 2.0 - 1
    x = torch.stack([side / 2 - angle.cos(), side * (angle.sin() - 0.25)], 1)
    return x, torch.randint(TIMES, (count,)), torch.randn(count, 2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.times, self.inward = nn.Embedding(TIMES, 64), nn.Linear(2, 64)
        self.out = nn.Sequential(nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def loss(self, x, time, noise):
        part = kept[time][:, None]
        mixed = part.sqrt() * x + (1 - part).sqrt() * noise
        return F.mse_loss(self.out(self.inward(mixed) + self.times(time)), noise)


loader = DataLoader(TensorDataset(*points(16 * STEPS // 5)), batch_size=BATCH)
test = points(2000)
model = Model()
optimizer = torch.optim.NAdam(model.parameters(), lr=0.005)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, time, noise in run.share(loader):  # speedo: for x, time, noise in loader:
            optimizer.zero_grad()
            model.loss(x, time, noise).backward()
            optimizer.step()
with torch.no_grad():
    print(f"loss {model.loss(*test):.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
