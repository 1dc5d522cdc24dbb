"""Keeps freed memory in the process, because each training step allocates the same large tensors again."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Final

# glibc, malloc.h.
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_MAX: Final = -4
_MOST: Final = 2**31 - 1
_PAD_BYTES: Final = 1 << 26
# By these the user sets the same: mallopt(3).
_USERS: Final = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
)
_TUNABLES: Final = "glibc.malloc."  # in GLIBC_TUNABLES


def keep_freed_memory() -> None:
    """Have glibc's malloc hold what is freed, up to 2 GiB; with another C library nothing is changed.

    Nor is anything changed if the environment sets it, by `MALLOC_TRIM_THRESHOLD_` and the like.

    By default glibc returns large blocks to the system at once, and the kernel zeroes the next ones page by page.
    Without that a step of LeNet, CIFAR-10 full or AlexNet was found 10 to 20 % shorter on one core, GoogLeNet's 4 %;
    the memory at most in use was the same within 5 %, with AlexNet up to 20 % more, and 58 % more with a net of LRN and
    branches. In a thread that is not the process's first only blocks below 64 MB are held.
    """
    if any(name in os.environ for name in _USERS) or _TUNABLES in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _MOST)
        mallopt(_TOP_PAD, _PAD_BYTES)


def give_back_freed_memory() -> None:
    """Return what malloc holds to the system, where who maps memory without malloc finds it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
