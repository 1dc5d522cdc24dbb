"""A regression whose rate falls once the loss of the validation records does not."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)


def records(count):
    x = torch.randn(count, 8)
    return x, torch.sin(x.sum(1, keepdim=True)) + 0.1 * torch.randn(count, 1)


loader = DataLoader(TensorDataset(*records(16 * STEPS // 5)), batch_size=BATCH)
valid_x, valid_y = records(1000)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
with speedo.join(model, optimizer, scheduler=scheduler) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        model.train()
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = F.mse_loss(model(valid_x), valid_y)
        scheduler.step(loss)
with torch.no_grad():
    print(f"loss {F.mse_loss(model(valid_x), valid_y):.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
