"""A small GPT: AdamW with two groups, a cosine by hand, gradients added up and clipped."""

import math
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
PARTS = int(sys.argv[4]) if len(sys.argv) > 4 else 2  # whose gradients are added up
torch.manual_seed(1)
torch.set_num_threads(1)
SYMBOLS, LENGTH, WIDTH = 20, 16, 32


def texts(count):
    text = torch.randint(SYMBOLS, (count, LENGTH + 1))
    for place in range(2, LENGTH + 1):
        text[:, place] = (text[:, place - 1] + 2 * text[:, place - 2] + 1) % SYMBOLS
    return text


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, batch_first=True, bias=False)
        self.blocks = nn.TransformerEncoder(block, 2)
        self.out = nn.Linear(WIDTH, SYMBOLS, bias=False)
        self.out.weight = self.symbols.weight
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def loss(self, text):
        y = self.blocks(self.symbols(text[:, :-1]) + self.places.weight, self.mask)
        return F.cross_entropy(self.out(y).flatten(0, 1), text[:, 1:].flatten())


loader = DataLoader(texts(16 * STEPS * PARTS), batch_size=BATCH)
model = Model()
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])
with speedo.join(model, optimizer) as run:  # speedo
    batches = enumerate(run.share(loader), 1)  # speedo: batches = enumerate(loader, 1)
    for number, text in batches:
        (model.loss(text) / PARTS).backward()
        if number % PARTS == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = 0.005 * (1 + math.cos(math.pi * number / PARTS / STEPS))
            optimizer.step()
            optimizer.zero_grad()
with torch.no_grad():
    print(f"loss {model.loss(texts(500)):.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
