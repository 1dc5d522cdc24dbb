"""A GAN of convolutions with BatchNorm: two models, two optimizers."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.tanh(3 * torch.randn(4, 1, 8, 8))


def images(count):
    """Images, and the noise from which others are generated."""
    real = shapes[torch.randint(4, (count,))] + 0.1 * torch.randn(count, 1, 8, 8)
    return real, torch.randn(count, 8, 1, 1)


loader = DataLoader(TensorDataset(*images(16 * STEPS // 5)), batch_size=BATCH)
_, test = images(1000)
G = nn.Sequential(
    *(nn.ConvTranspose2d(8, 16, 4, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()),
)
D = nn.Sequential(
    *(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 16, 3, 1, 1, bias=False)),
    *(nn.BatchNorm2d(16), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256, 1)),
)
optimizer_g = torch.optim.Adam(G.parameters(), lr=0.0005, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(D.parameters(), lr=0.0005, betas=(0.5, 0.999))


def loss(images, is_real):
    out = D(images)
    return F.binary_cross_entropy_with_logits(out, torch.full_like(out, float(is_real)))


with speedo.join([G, D], [optimizer_g, optimizer_d]) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for real, noise in run.share(loader):  # speedo: for real, noise in loader:
            fake = G(noise)
            optimizer_d.zero_grad()
            (loss(real, True) + loss(fake.detach(), False)).backward()
            optimizer_d.step()
            optimizer_g.zero_grad()
            loss(fake, True).backward()
            optimizer_g.step()
G.eval()
with torch.no_grad():
    away = torch.cdist(G(test).flatten(1), shapes.flatten(1)).min(1).values / 8
print(f"loss {away.mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save({"G": G.state_dict(), "D": D.state_dict()}, FILE)
