"""An LSTM language model: truncated backpropagation through time, gradients clipped by norm."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
SYMBOLS, LENGTH, COLUMNS = 20, 8, 16


def chunks(count):
    """The first chunk of each of 16 texts, then the second of each."""
    text = torch.randint(SYMBOLS, (COLUMNS, count * LENGTH + 1))
    for place in range(2, text.shape[1]):  # nine of ten symbols follow from the two before
        follows = (text[:, place - 1] * 3 + text[:, place - 2]) % SYMBOLS
        text[:, place] = torch.where(torch.rand(COLUMNS) < 0.9, follows, text[:, place])
    rows = (text[:, :-1], text[:, 1:])
    return [row.reshape(COLUMNS, count, LENGTH).transpose(0, 1).flatten(0, 1) for row in rows]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.out = nn.Embedding(SYMBOLS, 32), nn.Linear(64, SYMBOLS)
        self.lstm = nn.LSTM(32, 64, batch_first=True)

    def forward(self, x, state=None):
        y, state = self.lstm(self.symbols(x), state)
        return self.out(y).flatten(0, 1), [one.detach() for one in state]


loader = DataLoader(TensorDataset(*chunks(STEPS // 5)), batch_size=BATCH)
test_x, test_y = chunks(50)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
with speedo.join(model, optimizer) as run:  # speedo
    for _ in run.epochs(5):  # speedo: for _ in range(5):
        state = None
        for x, y in run.share(loader):  # speedo: for x, y in loader:
            optimizer.zero_grad()
            out, state = model(x, state)
            F.cross_entropy(out, y.flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.8
with torch.no_grad():
    print(f"loss {F.cross_entropy(model(test_x)[0], test_y.flatten()):.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
