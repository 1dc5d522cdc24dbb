"""The order of accesses to memory that processes share.

A process writes data, then a number that says that the data is there; another one sees the number, then reads the data.
This needs: an aligned int64 is written and read whole, by NumPy and `memoryview` alike; the processor keeps writes in
order, and reads. x86-64 does. Others, as ARM64, do not: there the writer calls membarrier(2) between the two, which
orders the accesses of all processes that registered for it, the readers' too.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from functools import cache
from typing import Final

from speedo.errors import ConfigError

MEMBARRIER: Final = 283  # number of the system call, on ARM64 and RISC-V
GLOBAL_EXPEDITED: Final = 1 << 1
REGISTER_GLOBAL_EXPEDITED: Final = 1 << 2


@cache
def memory_fence() -> Callable[[], None]:
    """What a writer calls between data and number; readers must have called `memory_fence` before they look.

    Raises `ConfigError` where the processor needs membarrier and the kernel has none.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        return _nothing
    call, number = ctypes.CDLL(None, use_errno=True).syscall, MEMBARRIER
    if call(number, REGISTER_GLOBAL_EXPEDITED, 0) != 0:
        raise ConfigError(
            "this kernel, or the container, has no membarrier, which processes that share memory need on "
            f"{platform.machine()}: {os.strerror(ctypes.get_errno())}; allow membarrier(2), Linux 4.16 or later"
        )

    def fence() -> None:
        call(number, GLOBAL_EXPEDITED, 0)

    return fence


def _nothing() -> None:
    """This processor needs no fence."""
