"""A siamese net: pairs of the same class near each other, others apart (contrastive loss)."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.randn(8, 1, 10, 10)


def pairs(count):
    first, same = torch.randint(8, (count,)), torch.rand(count) < 0.5
    second = torch.where(same, first, (first + torch.randint(1, 8, (count,))) % 8)
    a, b = (shapes[one] + torch.randn(count, 1, 10, 10) for one in (first, second))
    return a, b, same


def distance(a, b):
    return (model(a) - model(b)).pow(2).sum(1).add(1e-6).sqrt()


loader = DataLoader(TensorDataset(*pairs(16 * STEPS // 5)), batch_size=BATCH)
test_a, test_b, test_same = pairs(1000)
model = nn.Sequential(
    *(nn.Conv2d(1, 8, 3), nn.PReLU(), nn.MaxPool2d(2), nn.Flatten()),
    *(nn.Linear(128, 32), nn.PReLU(), nn.Linear(32, 4, bias=False)),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for a, b, same in run.share(loader):  # speedo: for a, b, same in loader:
            apart = distance(a, b)
            loss = torch.where(same, apart.pow(2), F.relu(1 - apart).pow(2)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
with torch.no_grad():
    right = (distance(test_a, test_b) < 0.5) == test_same
print(f"accuracy {right.float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
