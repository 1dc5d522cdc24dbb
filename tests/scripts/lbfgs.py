"""A regression by LBFGS, which computes gradients while it steps."""

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
test_x, test_y = records(1000)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, line_search_fn="strong_wolfe")
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(loader):  # speedo: for x, y in loader:

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
with torch.no_grad():
    print(f"loss {F.mse_loss(model(test_x), test_y):.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
