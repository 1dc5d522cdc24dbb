"""Q-learning with a replay memory and a target net; each worker has its own environments."""

import copy
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
PLACES, LENGTH = 9, 12  # of a corridor whose goal is its last place; steps until it begins again


def move(place, goes):
    place = (place + torch.where(goes, 1, -1)).clamp(0, PLACES - 1)
    return place, (place == PLACES - 1).float()


def mean_reward():
    place, total = torch.arange(PLACES), torch.zeros(PLACES)
    for _ in range(LENGTH):
        place, reward = move(place, model(place).argmax(1) == 1)
        total += reward
    return total.mean() / LENGTH


model = nn.Sequential(nn.Embedding(PLACES, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
with speedo.join(model, optimizer) as run:  # speedo
    numbers = range(run.rank * BATCH, (run.rank + 1) * BATCH)  # speedo: numbers = range(BATCH)
    randoms, memory, rows = [np.random.default_rng(n) for n in numbers], [], torch.arange(BATCH)
    for step in range(STEPS):
        draws = torch.tensor(np.stack([random.random(3) for random in randoms]))
        if step % LENGTH == 0:
            place = (draws[:, 2] * PLACES).long()
        with torch.no_grad():
            best = model(place).argmax(1) == 1
            goes = torch.where(draws[:, 0] < 0.3, draws[:, 1] < 0.5, best)
        there, reward = move(place, goes)
        memory.append(torch.stack([place, goes.long(), there, reward.long()], 1))
        place = there
        picked = [int(random.integers(len(memory))) for random in randoms]
        before, did, after, got = torch.stack(memory)[picked, rows].unbind(1)
        with torch.no_grad():
            aim = got + 0.9 * target(after).max(1).values
        loss = F.smooth_l1_loss(model(before).gather(1, did[:, None])[:, 0], aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            target.load_state_dict(model.state_dict())
print(f"reward {mean_reward():.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
