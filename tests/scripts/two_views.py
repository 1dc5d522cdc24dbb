"""Self-supervised: two views of a record are to have one code, which the other's predicts."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
shapes = torch.randn(8, 48)


def views(count):
    """Two views of each record, and its class, which only the test knows."""
    y = torch.randint(8, (count,))
    return *(shapes[y] + torch.randn(count, 48) for _ in range(2)), y


def same(predicted, code):
    return -F.cosine_similarity(predicted, code.detach()).mean()


loader = DataLoader(TensorDataset(*views(16 * STEPS // 5)), batch_size=BATCH)
a, _, y = views(1000)
encoder = nn.Sequential(nn.Linear(48, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 16))
predictor = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16))
model = nn.ModuleDict({"encoder": encoder, "predictor": predictor})
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for first, second, _ in run.share(loader):  # speedo: for first, second, _ in loader:
            codes = encoder(first), encoder(second)
            loss = same(predictor(codes[0]), codes[1]) + same(predictor(codes[1]), codes[0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
with torch.no_grad():
    code = F.normalize(encoder(a))
    nearest = (code @ code.T).fill_diagonal_(-2).argmax(1)
print(f"accuracy {(y[nearest] == y).float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
