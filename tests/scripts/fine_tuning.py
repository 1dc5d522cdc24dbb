"""A trained net for another task: its first layer frozen, two groups of rates, a new head."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.randn(12, 1, 10, 10)


def images(count, classes):
    y = torch.randint(classes, (count,))
    return shapes[y] + 1.5 * torch.randn(count, 1, 10, 10), y


body = nn.Sequential(
    *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
)
model = nn.Sequential(body, nn.Linear(144, 6))
first = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for _ in range(40):  # the task before
    x, y = images(32, 6)
    first.zero_grad()
    F.cross_entropy(model(x), y).backward()
    first.step()

for parameter in body[0].parameters():
    parameter.requires_grad = False
model[1] = nn.Linear(144, 12)
loader = DataLoader(TensorDataset(*images(16 * STEPS // 5, 12)), batch_size=BATCH)
test_x, test_y = images(1000, 12)
groups = [{"params": body[2].parameters(), "lr": 0.002}, {"params": model[1].parameters()}]
optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
with torch.no_grad():
    right = model(test_x).argmax(1) == test_y
print(f"accuracy {right.float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
