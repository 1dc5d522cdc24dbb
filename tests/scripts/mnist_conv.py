"""A convolutional net for small images of ten classes: Adadelta, and StepLR once an epoch."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.randn(10, 1, 14, 14)


def images(count):
    y = torch.randint(10, (count,))
    return shapes[y] + 2 * torch.randn(count, 1, 14, 14), y


loader = DataLoader(TensorDataset(*images(16 * STEPS // 5)), batch_size=BATCH)
test_x, test_y = images(1000)
model = nn.Sequential(
    *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(400, 32), nn.ReLU(), nn.Linear(32, 10)),
)
optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
with speedo.join(model, optimizer, scheduler=scheduler) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        scheduler.step()
with torch.no_grad():
    right = model(test_x).argmax(1) == test_y
print(f"accuracy {right.float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
