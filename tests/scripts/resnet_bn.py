"""A residual net with BatchNorm for small images: Nesterov's momentum, cosine annealing."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.randn(10, 3, 12, 12)


def images(count):
    y = torch.randint(10, (count,))
    return shapes[y] + 3 * torch.randn(count, 3, 12, 12), y


class Block(nn.Module):
    def __init__(self, before, channels, stride):
        super().__init__()
        self.first = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(before, channels, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.norms[2](self.short(x)))


loader = DataLoader(TensorDataset(*images(16 * STEPS // 5)), batch_size=BATCH)
test_x, test_y = images(1000)
model = nn.Sequential(
    *(Block(3, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 10))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
with speedo.join(model, optimizer, scheduler=scheduler) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        scheduler.step()
model.eval()
with torch.no_grad():
    right = model(test_x).argmax(1) == test_y
print(f"accuracy {right.float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
