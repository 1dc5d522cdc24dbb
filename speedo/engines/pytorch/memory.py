"""Keeps freed memory in the process, for a step allocates the same large tensors again and again; and its lack."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

import torch

# glibc, malloc.h.
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_MAX: Final = -4
_MOST: Final = 2**31 - 1
_PAD_BYTES: Final = 1 << 26
# On a CPU PyTorch has no class for it (c10/core/impl/alloc_cpu.cpp); and what C++ itself throws.
_ON_A_CPU: Final = ("DefaultCPUAllocator: ", "std::bad_alloc")


def is_lack_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch found too little memory, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(part in str(error) for part in _ON_A_CPU)


def keep_freed_memory() -> None:
    """Have glibc's malloc hold what is freed, up to 2 GiB; elsewhere nothing is changed.

    By default it gives each large block back to the system at once, and the next one is zeroed page by page. Without
    that a step of LeNet, CIFAR-10 full or AlexNet was found 10 to 20 % shorter on one core, GoogLeNet's 4 %; the memory
    at most in use was the same within 5 %, with AlexNet up to 20 % more. In a thread that is not the process's first
    only blocks below 64 MB are held.
    """
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _MOST)
        mallopt(_TOP_PAD, _PAD_BYTES)
