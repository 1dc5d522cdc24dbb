"""A regression whose result is the exponential moving average of its weights."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
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

model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
with speedo.join(model, optimizer, scheduler=average) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            average.update_parameters(model)
with torch.no_grad():
    print(f"loss {F.mse_loss(average(test_x), test_y):.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save({"model": model.state_dict(), "average": average.state_dict()}, FILE)
