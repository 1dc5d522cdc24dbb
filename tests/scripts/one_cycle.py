"""A recurrent net that foretells a series, with OneCycleLR over the steps of all epochs."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)


def series(count):
    """Windows of a sum of two waves, and the value that follows each."""
    start, period = 100 * torch.rand(count, 1), 6 + 4 * torch.rand(count, 1)
    time = start + torch.arange(25)
    wave = torch.sin(time / period * 6.28) + 0.5 * torch.sin(time) + 0.05 * torch.randn(count, 25)
    return wave[:, :24, None], wave[:, 24:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.gru(x)[1][0])


loader = DataLoader(TensorDataset(*series(16 * STEPS // 5)), batch_size=BATCH)
test_x, test_y = series(1000)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
with speedo.join(model, optimizer) as run:  # speedo
    count = len(run.share(loader))  # speedo: count = len(loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.01, epochs=5, steps_per_epoch=count
    )
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()
with torch.no_grad():
    print(f"loss {F.mse_loss(model(test_x), test_y):.4f}")
if FILE:
    torch.save(model.state_dict(), FILE)
