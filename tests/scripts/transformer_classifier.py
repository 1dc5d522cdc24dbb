"""A transformer that classifies sequences: Adam, and a rate that warms up step by step."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)


def sequences(count):
    """Of symbols; the class is the one of the first two that is there more often."""
    x = torch.randint(8, (count, 15))
    return x, ((x == 1).sum(1) > (x == 0).sum(1)).long()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(8, 32), nn.Parameter(torch.zeros(15, 32))
        block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, bias=False)
        self.blocks, self.out = nn.TransformerEncoder(block, 2), nn.Linear(32, 2)

    def forward(self, x):
        return self.out(self.blocks(self.symbols(x) + self.places).mean(1))


loader = DataLoader(TensorDataset(*sequences(16 * STEPS // 5)), batch_size=BATCH)
test_x, test_y = sequences(1000)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
with speedo.join(model, optimizer, scheduler=scheduler) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()
with torch.no_grad():
    right = model(test_x).argmax(1) == test_y
print(f"accuracy {right.float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
