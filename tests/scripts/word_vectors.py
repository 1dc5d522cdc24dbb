"""Vectors of words from their neighbours, with negative samples: Adagrad."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
WORDS, TOPICS = 120, 6  # a word is near the others of its topic


def windows(count):
    """A word, one near it, and five drawn from all, of each record."""
    word = torch.randint(WORDS, (count,))
    near = (word % TOPICS + TOPICS * torch.randint(WORDS // TOPICS, (count,))) % WORDS
    return word, near, torch.randint(WORDS, (count, 5))


def loss_of(word, near, others):
    center = model["words"](word)
    is_near = (center * model["contexts"](near)).sum(1)
    are_far = (center[:, None] * model["contexts"](others)).sum(2)
    return -(F.logsigmoid(is_near) + F.logsigmoid(-are_far).sum(1)).mean()


loader = DataLoader(TensorDataset(*windows(16 * STEPS // 5)), batch_size=BATCH)
test = windows(2000)
model = nn.ModuleDict({name: nn.Embedding(WORDS, 16) for name in ("words", "contexts")})
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        for word, near, others in run.share(loader):  # speedo: for word, near, others in loader:
            optimizer.zero_grad()
            loss_of(word, near, others).backward()
            optimizer.step()
with torch.no_grad():
    print(f"loss {loss_of(*test):.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
