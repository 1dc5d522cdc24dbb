"""A small student learns what a large teacher answers, beside the classes."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.randn(10, 40)


def records(count):
    y = torch.randint(10, (count,))
    return shapes[y] + 2 * torch.randn(count, 40), y


def net(width):
    return nn.Sequential(nn.Linear(40, width), nn.ReLU(), nn.Linear(width, 10))


teacher = net(128)
optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
for _ in range(100):
    x, y = records(32)
    optimizer.zero_grad()
    F.cross_entropy(teacher(x), y).backward()
    optimizer.step()

loader = DataLoader(TensorDataset(*records(16 * STEPS // 5)), batch_size=BATCH)
test_x, test_y = records(1000)
model = net(12)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            with torch.no_grad():
                soft = F.softmax(teacher(x) / 2, 1)
            out = model(x)
            like = F.kl_div(F.log_softmax(out / 2, 1), soft, reduction="batchmean")
            loss = 0.5 * F.cross_entropy(out, y) + 2 * like
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
with torch.no_grad():
    right = model(test_x).argmax(1) == test_y
print(f"accuracy {right.float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
