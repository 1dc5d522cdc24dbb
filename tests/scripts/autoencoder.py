"""An autoencoder that learns codes of four numbers: RMSprop, gradients clipped by value."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
mixed = torch.randn(4, 64)


def signals(count):
    return torch.tanh(torch.randn(count, 4) @ mixed)


loader = DataLoader(signals(16 * STEPS // 5), batch_size=BATCH)
test = signals(1000)
encoder = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
decoder = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 64))
model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.003)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x in run.share(loader):  # speedo: for x in loader:
            loss = F.mse_loss(decoder(encoder(x)), x)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
with torch.no_grad():
    print(f"loss {F.mse_loss(decoder(encoder(test)), test):.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
