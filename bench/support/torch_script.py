"""A published net in PyTorch as a user's own script has it, alone or as one of several that exchange gradients (DDP).

    torch_script.py NET SECONDS BATCH [--device cpu|cuda] [--bfloat16] [--channels-last]
                    [--rank R --processes N --rendezvous FILE]

Nothing of SpeeDO is in it, so that it runs in an environment of PyTorch alone. It speaks as `plain_caffe.py`: says
`ready` after three steps, waits for a line, trains, and prints as JSON when each step ended and its share of a core.
FILE does not exist yet. One thread; the images, made up, lie in memory as float32.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

MOMENTUM, DECAY = 0.9, 0.0005
RATE = 1e-4  # as tests/support/bundled_nets.py has it
PROBED = 20  # steps, at most, whose length says how many there are in SECONDS
PROBED_S = 10.0


class WithinChannel(nn.Module):
    """Local response normalisation over a square of the own channel."""

    def __init__(self, size: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.size, self.alpha, self.beta = size, alpha, beta

    def forward(self, x: Tensor) -> Tensor:
        mean = F.avg_pool2d(x * x, self.size, 1, self.size // 2)
        return x / (1 + self.alpha * mean) ** self.beta


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
        nn.Linear(500, 10),
    )


def cifar10_full() -> nn.Module:
    """The net of `prototxt/cifar10_full`: 89,578 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.ReLU(),
        WithinChannel(3, 5e-5, 0.75),
        nn.Conv2d(32, 32, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        WithinChannel(3, 5e-5, 0.75),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def alexnet() -> nn.Module:
    """The net of `prototxt/alexnet`: 60,965,224 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4),
        nn.ReLU(),
        nn.LocalResponseNorm(5, 5e-4, 0.75, 2),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, padding=2, groups=2),
        nn.ReLU(),
        nn.LocalResponseNorm(5, 5e-4, 0.75, 2),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 384, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(9216, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 1000),
    )


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps height and width but for its stride, and its ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2), nn.ReLU())


class Inception(nn.Module):
    """Four branches, side by side in the channels."""

    def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        ones, reduce3, threes, reduce5, fives, projection = widths
        self.branches = nn.ModuleList([
            conv(inputs, ones, 1),
            nn.Sequential(conv(inputs, reduce3, 1), conv(reduce3, threes, 3)),
            nn.Sequential(conv(inputs, reduce5, 1), conv(reduce5, fives, 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inputs, projection, 1)),
        ])  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Head(nn.Module):
    """A head in the middle of the tower, which exists in training only."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(5, 3, ceil_mode=True)
        self.rest = nn.Sequential(
            conv(inputs, 128, 1), nn.Flatten(), nn.Linear(2048, 1024), nn.ReLU(), nn.Dropout(0.7),
            nn.Linear(1024, 1000),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.pool(x))


class GoogLeNet(nn.Module):
    """The net of `prototxt/googlenet`: 13,378,280 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv(3, 64, 7, 2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.LocalResponseNorm(5, 1e-4, 0.75),
            conv(64, 64, 1),
            conv(64, 192, 3),
            nn.LocalResponseNorm(5, 1e-4, 0.75),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.threes = nn.Sequential(
            Inception(192, (64, 96, 128, 16, 32, 32)),
            Inception(256, (128, 128, 192, 32, 96, 64)),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            Inception(480, (192, 96, 208, 16, 48, 64)),
        )
        self.fours = nn.Sequential(
            Inception(512, (160, 112, 224, 24, 64, 64)),
            Inception(512, (128, 128, 256, 24, 64, 64)),
            Inception(512, (112, 144, 288, 32, 64, 64)),
        )
        self.fives = nn.Sequential(
            Inception(528, (256, 160, 320, 32, 128, 128)),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            Inception(832, (256, 160, 320, 32, 128, 128)),
            Inception(832, (384, 192, 384, 48, 128, 128)),
            nn.AvgPool2d(7),
            nn.Flatten(),
            nn.Dropout(0.4),
            nn.Linear(1024, 1000),
        )
        self.head1, self.head2 = Head(512), Head(528)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = self.threes(self.stem(x))
        second = self.fours(first)
        return self.fives(second), self.head1(first), self.head2(second)


@dataclass(frozen=True)
class Images:
    """A net's images: their shape, their number, the classes, and what a pixel is at most."""

    shape: tuple[int, int, int]
    records: int
    classes: int
    scale: float


NETS = {
    "lenet": (lenet, Images((1, 28, 28), 5000, 10, 1.0)),
    "cifar10_full": (cifar10_full, Images((3, 32, 32), 5000, 10, 255.0)),
    "alexnet": (alexnet, Images((3, 227, 227), 512, 1000, 255.0)),
    "googlenet": (GoogLeNet, Images((3, 224, 224), 512, 1000, 255.0)),
}


def made_up(images: Images, records: int) -> tuple[Tensor, Tensor]:
    """Ten kinds of images that a net can learn, and their labels."""
    labels = torch.arange(records) % 10
    pixels = (torch.rand(10, *images.shape)[labels] + torch.rand(records, *images.shape)) / 2
    return pixels * images.scale, labels


def asked_for() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("net", choices=list(NETS))
    parser.add_argument("seconds", type=float)
    parser.add_argument("batch", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rendezvous", default="")
    return parser.parse_args()


def main() -> None:
    asked = asked_for()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.manual_seed(asked.rank)
    device, form = torch.device(asked.device), torch.contiguous_format
    if asked.channels_last:
        form = torch.channels_last
    make, images = NETS[asked.net]
    records = max(asked.batch, images.records // asked.batch * asked.batch)
    pixels, labels = made_up(images, records)
    pixels = pixels.to(memory_format=form)
    if device.type == "cuda":
        pixels, labels = pixels.pin_memory(), labels.pin_memory()
    net = make().to(device, memory_format=form)
    if asked.processes > 1:
        dist.init_process_group(
            "gloo", f"file://{asked.rendezvous}", rank=asked.rank, world_size=asked.processes
        )
        net = DistributedDataParallel(net)
    solver = torch.optim.SGD(net.parameters(), RATE, MOMENTUM, weight_decay=DECAY)
    place = 0

    def loss_of(outputs: Tensor | tuple[Tensor, ...], truth: Tensor) -> Tensor:
        if isinstance(outputs, Tensor):
            return F.cross_entropy(outputs.float(), truth)
        whole, *heads = (F.cross_entropy(one.float(), truth) for one in outputs)
        return whole + 0.3 * sum(heads)

    def step() -> None:
        nonlocal place
        place = 0 if place + asked.batch > records else place
        chosen = slice(place, place + asked.batch)
        place += asked.batch
        batch = pixels[chosen].to(device, non_blocking=True)
        truth = labels[chosen].to(device, non_blocking=True)
        solver.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=asked.bfloat16):
            outputs = net(batch)
        loss_of(outputs, truth).backward()
        solver.step()

    def ended() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    for _ in range(3):
        step()
    began, probed = ended(), 0
    while probed < PROBED and (not probed or ended() - began < PROBED_S):
        step()
        probed += 1
    length = ended() - began
    if asked.processes > 1:  # all must take as many steps: each waits for the others
        told = torch.tensor([length / probed])
        dist.all_reduce(told, dist.ReduceOp.MAX)
        length, probed = float(told), 1
    steps = max(10, math.ceil(asked.seconds * probed / length))
    print("ready", flush=True)
    if not sys.stdin.readline():
        return  # whoever started us is gone
    began, worked, ends = ended(), time.process_time(), []
    # A GPU is asked after several steps at once: a script does not wait for each.
    together = 1 if device.type == "cpu" else max(1, steps // 20)
    for number in range(steps):
        step()
        if (number + 1) % together == 0:
            now, before = ended(), ends[-1] if ends else began
            ends += [before + (now - before) * (k + 1) / together for k in range(together)]
    core = (time.process_time() - worked) / (ends[-1] - began)
    print(json.dumps({"ends": ends, "core": core}), flush=True)
    if asked.processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
