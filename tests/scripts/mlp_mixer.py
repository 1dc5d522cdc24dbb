"""A mixer of patches and channels without attention: AdamW, label smoothing."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.randn(10, 16, 16)


def images(count):
    """Sixteen patches of sixteen pixels, and the class."""
    y = torch.randint(10, (count,))
    return shapes[y] + 2 * torch.randn(count, 16, 16), y


def wide(size):
    return nn.Sequential(
        nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size, bias=False)
    )


class Mixer(nn.Module):
    def __init__(self, patches, channels):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.across, self.within = wide(patches), wide(channels)

    def forward(self, x):
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norms[1](x))


loader = DataLoader(TensorDataset(*images(16 * STEPS // 5)), batch_size=BATCH)
test_x, test_y = images(1000)
model = nn.Sequential(
    *(nn.Linear(16, 32), Mixer(16, 32), Mixer(16, 32), nn.LayerNorm(32)),
    *(nn.Flatten(), nn.Linear(512, 10)),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.05)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
            optimizer.step()
with torch.no_grad():
    right = model(test_x).argmax(1) == test_y
print(f"accuracy {right.float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
