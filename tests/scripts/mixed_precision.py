"""Mixed precision: autocast in bfloat16, GradScaler, gradients unscaled and clipped."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
PARTS = int(sys.argv[4]) if len(sys.argv) > 4 else 1  # whose gradients are added up
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.randn(10, 64)


def records(count):
    y = torch.randint(10, (count,))
    return shapes[y] + 3 * torch.randn(count, 64), y


loader = DataLoader(TensorDataset(*records(16 * STEPS // 5)), batch_size=BATCH)
test_x, test_y = records(1000)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
with speedo.join(model, optimizer, scheduler=scaler) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        batches = enumerate(run.share(loader), 1)  # speedo: batches = enumerate(loader, 1)
        for number, (x, y) in batches:
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y) / PARTS
            scaler.scale(loss).backward()
            if number % PARTS == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
with torch.no_grad():
    right = model(test_x).argmax(1) == test_y
print(f"accuracy {right.float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
