"""Random numbers apart from those of the script."""

from __future__ import annotations

import random
import sys

import numpy as np


class OwnRandom:
    """Inside `with` the global generators of Python, NumPy and PyTorch (CPU) have a state that begins at this seed.

    Outside of it they go on as if nobody else had drawn from them. May be entered again, and continues.
    """

    def __init__(self, *seed: int) -> None:
        number = int(np.random.PCG64(seed).random_raw()) >> 32
        self._torch = torch = sys.modules.get("torch")  # a script of NumPy's need not have it
        self._other = (
            random.Random(number).getstate(),
            np.random.RandomState(number).get_state(),
            torch and torch.Generator().manual_seed(number).get_state(),
        )

    def __enter__(self) -> None:
        torch, (python, numpy, pytorch) = self._torch, self._other
        self._other = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
        random.setstate(python)
        np.random.set_state(numpy)
        if torch:
            torch.set_rng_state(pytorch)

    def __exit__(self, *_: object) -> None:
        self.__enter__()
