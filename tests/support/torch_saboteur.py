"""`saboteur.py` for PyTorch, whose engine has no Python layers: the net's sigmoid obeys the same orders.

Every Python imports it at its start, as `sitecustomize` of a folder on PYTHONPATH. `torch.sigmoid` is replaced when a
process imports torch; only workers have a number, and only they obey or rest.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

ORDERS = Path(__file__).with_name("sabotage")
REST_S = 0.01
TOO_MANY = 1 << 45  # floats: more than the address space of a process


class Torch:
    """Finds torch as the other finders do, and sabotages it once it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (one.find_spec(name, path, target) for one in others)), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: sabotage(module, load)
        return spec


def sabotage(torch, load):
    load(torch)
    sigmoid = torch.sigmoid

    class Obedient(torch.autograd.Function):
        @staticmethod
        def forward(context, bottom):
            order, number = order_now()
            if order == "sleep":
                time.sleep(number)
            elif order == "segfault":
                ctypes.string_at(0)
            elif order == "abort":
                os.abort()
            elif order == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif order == "raise":
                bottom.reshape(-1, bottom.numel() + 1)
            elif order == "starve":
                bottom.new_empty(TOO_MANY)
            return bottom.view_as(bottom)

        @staticmethod
        def backward(context, gradient):
            order, number = order_now()
            return gradient * number if order == "scale" else gradient

    torch.sigmoid = lambda bottom: sigmoid(Obedient.apply(bottom))


def order_now():
    log = Path("/proc/self/fd/2").resolve().name  # a worker's standard error has its number
    own = log.removeprefix("worker-").removesuffix(".log")
    if not own.isdigit():
        return "sleep", 0.0
    try:
        lines = ORDERS.read_text().splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        worker, order, *number = line.split()
        if worker == own:
            return order, float(*number)
    return "sleep", REST_S


if "torch" in sys.modules:  # in a fork
    sabotage(sys.modules["torch"], lambda module: None)
else:
    sys.meta_path.insert(0, Torch())
