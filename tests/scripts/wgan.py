"""A Wasserstein GAN in the plane: three steps of the critic for one, its weights clipped."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)


def points(count):
    """Points near eight places of a circle, and the noise from which others are generated."""
    angle = torch.randint(8, (count,)) * torch.pi / 4
    real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)
    return real, torch.randn(count, 4)


loader = DataLoader(TensorDataset(*points(48 * STEPS // 5)), batch_size=BATCH)
_, test = points(1000)
G = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
D = nn.Sequential(
    nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1, bias=False)
)
optimizer_g = torch.optim.RMSprop(G.parameters(), lr=0.001)
optimizer_d = torch.optim.RMSprop(D.parameters(), lr=0.001)
with speedo.join([G, D], [optimizer_g, optimizer_d]) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        batches = enumerate(run.share(loader), 1)  # speedo: batches = enumerate(loader, 1)
        for number, (real, noise) in batches:
            fake = G(noise)
            optimizer_d.zero_grad()
            (D(fake.detach()).mean() - D(real).mean()).backward()
            optimizer_d.step()
            for p in D.parameters():
                p.data.clamp_(-0.1, 0.1)
            if number % 3 == 0:
                optimizer_g.zero_grad()
                (-D(fake).mean()).backward()
                optimizer_g.step()
with torch.no_grad():
    print(f"loss {(G(test).norm(dim=1) - 1).abs().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save({"G": G.state_dict(), "D": D.state_dict()}, FILE)
