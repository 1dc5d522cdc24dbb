"""A graph net that classifies nodes; a record is the number of a node."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
NODES, CLASSES = 16 * STEPS // 5 + 400, 4
y = torch.randint(CLASSES, (NODES,))
x = F.one_hot(y, CLASSES) + 1.5 * torch.randn(NODES, CLASSES)
likely = torch.where(y[:, None] == y, 8.0, 1.0) / NODES
links = (torch.rand(NODES, NODES) < likely).float()
links = torch.maximum(torch.maximum(links, links.T), torch.eye(NODES))
passes = links / (links.sum(1)[:, None] * links.sum(1)).sqrt()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(CLASSES, 32), nn.Linear(32, CLASSES)

    def forward(self, x):
        return self.second(passes @ F.relu(self.first(passes @ x)))


loader = DataLoader(torch.arange(NODES - 400), batch_size=BATCH)
test = slice(NODES - 400, NODES)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for nodes in run.share(loader):  # speedo: for nodes in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x)[nodes], y[nodes]).backward()
            optimizer.step()
with torch.no_grad():
    right = model(x)[test].argmax(1) == y[test]
print(f"accuracy {right.float().mean():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
