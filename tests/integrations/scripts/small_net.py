"""What the scripts beside this one train: `BATCH FILE` are their arguments, RANK in FILE is the worker's number.

With a third argument the rate becomes smaller, each record takes that many seconds, and the first process of worker 1
dies in the first epoch.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

RECORDS, EPOCHS, RATE = 40, 3, 0.05
SLOW_S = float(sys.argv[3]) if sys.argv[0].endswith("_script.py") and sys.argv[3:] else 0.0


class Records(Dataset[Any]):
    """Says which record is read; `named` as transformers wants them."""

    def __init__(self, *, named: bool = False) -> None:
        self.x = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(4))
        self.y, self._named, self.read = self.x.sum(1, keepdim=True), named, 0

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> Any:
        print("record", number, flush=True)
        if SLOW_S:
            time.sleep(SLOW_S)
            self.read += 1
            if self.read > RECORDS // 4 and os.environ["SPEEDO_WORKER"].endswith(".1.1"):
                os.kill(os.getpid(), signal.SIGKILL)
        x, y = self.x[number], self.y[number]
        return {"x": x, "labels": y} if self._named else (x, y)


def net() -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch_size() -> int:
    return int(sys.argv[1])


class SGD(torch.optim.SGD):
    """Says the rate of each step."""

    def __init__(self, params: Any, lr: float = RATE) -> None:
        super().__init__(params, lr)
        self.register_step_post_hook(
            lambda one, *_: print("rate", one.param_groups[0]["lr"], flush=True)
        )


def rate_of_step(step: int) -> float:
    """What the rate is multiplied by."""
    return 0.9**step if SLOW_S else 1.0


def save(model: nn.Module) -> None:
    from speedo.integrations import RANK

    torch.save(model.state_dict(), sys.argv[2].replace("RANK", str(RANK)))
