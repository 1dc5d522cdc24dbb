"""LeNet in PyTorch as a user's own script has it, alone or as one of several DistributedDataParallel processes.

    torch_lenet.py SECONDS BATCH [RANK PROCESSES RENDEZVOUS]

Nothing of SpeeDO is in it, so that it runs in an environment of PyTorch alone. It speaks as `plain_caffe.py`: says
`ready` after three steps, waits for a line, trains, and prints as JSON when each step ended and its share of a core.
RENDEZVOUS is a file that does not exist yet. One thread; the images, made up, lie in memory as float32.
"""

from __future__ import annotations

import json
import math
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RECORDS, CLASSES = 5000, 10
RATE, MOMENTUM, DECAY = 1e-4, 0.9, 0.0005  # as bench/support/nets.py and prototxt/lenet have them
PROBED = 20  # steps whose length says how many there are in SECONDS


def lenet() -> nn.Module:
    """The net of `prototxt/lenet`: 431,080 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, CLASSES),
    )


def main(seconds: float, batch: int, rank: int = 0, processes: int = 1, meeting: str = "") -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.manual_seed(rank)
    labels = torch.arange(RECORDS) % CLASSES
    images = (torch.rand(CLASSES, 1, 28, 28)[labels] + torch.rand(RECORDS, 1, 28, 28)) / 2
    net = lenet()
    if processes > 1:
        dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=processes)
        net = DistributedDataParallel(net)
    solver = torch.optim.SGD(net.parameters(), RATE, MOMENTUM, weight_decay=DECAY)
    loss_of = nn.CrossEntropyLoss()
    place = 0

    def step() -> float:
        nonlocal place
        place = 0 if place + batch > RECORDS else place
        chosen = slice(place, place + batch)
        place += batch
        solver.zero_grad()
        loss_of(net(images[chosen]), labels[chosen]).backward()
        solver.step()
        return time.monotonic()

    for _ in range(3):
        step()
    began = time.monotonic()
    length = max(step() for _ in range(PROBED)) - began
    if processes > 1:  # all must take as many steps: each waits for the others
        longest = torch.tensor(length)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        length = float(longest)
    steps = max(10, math.ceil(seconds * PROBED / length))
    print("ready", flush=True)
    if not sys.stdin.readline():
        return  # whoever started us is gone
    began, worked = time.monotonic(), time.process_time()
    ends = [step() for _ in range(steps)]
    core = (time.process_time() - worked) / (ends[-1] - began)
    print(json.dumps({"ends": ends, "core": core}), flush=True)
    if processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(float(given[0]), int(given[1]), *map(int, given[2:4]), *given[4:])
