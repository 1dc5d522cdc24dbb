"""REINFORCE with a learned baseline in a corridor of its own; each worker plays its episodes."""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import speedo  # speedo

BATCH, STEPS, FILE = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv, "")[3]
torch.manual_seed(1)
torch.set_num_threads(1)
PLACES, LENGTH = 9, 10  # of the corridor, whose goal is its last place; steps of an episode


def play(numbers):
    """Loss and mean reward of the episodes with these numbers, each with its own random numbers."""
    draws = torch.tensor(np.stack([np.random.default_rng(n).random(LENGTH + 1) for n in numbers]))
    place, logs, values, rewards = (draws[:, LENGTH] * PLACES).long(), [], [], []
    for time in range(LENGTH):
        x = F.one_hot(place, PLACES).float()
        right = torch.sigmoid(actor(x)[:, 0])
        goes = draws[:, time] < right.detach()
        place = (place + torch.where(goes, 1, -1)).clamp(0, PLACES - 1)
        logs.append(torch.where(goes, right, 1 - right).log())
        values.append(critic(x)[:, 0])
        rewards.append((place == PLACES - 1).float())
    loss, to_come = 0.0, torch.zeros(len(numbers))
    for log, value, reward in zip(logs[::-1], values[::-1], rewards[::-1], strict=True):
        to_come = reward + 0.9 * to_come
        loss = loss - log * (to_come - value.detach()) + 0.5 * (to_come - value).pow(2)
    return loss.mean(), torch.stack(rewards).mean()


actor = nn.Sequential(nn.Linear(PLACES, 16), nn.Tanh(), nn.Linear(16, 1))
critic = nn.Sequential(nn.Linear(PLACES, 16), nn.Tanh(), nn.Linear(16, 1))
model = nn.ModuleDict({"actor": actor, "critic": critic})
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with speedo.join(model, optimizer) as run:  # speedo
    for step in range(STEPS):
        first = (step * run.size + run.rank) * BATCH  # speedo: first = step * BATCH
        loss, _ = play(range(first, first + BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    print(f"reward {play(range(10**6, 10**6 + 1000))[1]:.4f}")
if FILE and run.is_first:  # speedo: if FILE:
    torch.save(model.state_dict(), FILE)
