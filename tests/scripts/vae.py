"""A variational autoencoder; the noise of each record is a part of the data."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.rand(6, 64)


def images(count):
    """Of 64 pixels, and the noise of their codes."""
    return torch.bernoulli(shapes[torch.randint(6, (count,))]), torch.randn(count, 3)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(48, 3), nn.Linear(48, 3)
        self.decoder = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 64))

    def loss(self, x, noise):
        """The negative evidence lower bound, a mean over the batch."""
        mean, log_variance = self.mean(self.hidden(x)), self.log_variance(self.hidden(x))
        decoded = self.decoder(mean + noise * torch.exp(log_variance / 2))
        wrong = F.binary_cross_entropy_with_logits(decoded, x, reduction="sum")
        apart = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return (wrong + apart) / len(x)


loader = DataLoader(TensorDataset(*images(16 * STEPS // 5)), batch_size=BATCH)
test = images(1000)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, noise in run.share(loader):  # speedo: for x, noise in loader:
            optimizer.zero_grad()
            model.loss(x, noise).backward()
            optimizer.step()
with torch.no_grad():
    print(f"loss {model.loss(*test):.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
