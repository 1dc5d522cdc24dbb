"""How a lack of memory in PyTorch is recognised."""

from __future__ import annotations

from typing import Final

import torch

# On a CPU PyTorch has no class for it (c10/core/impl/alloc_cpu.cpp); and what C++ itself throws.
_ON_A_CPU: Final = ("DefaultCPUAllocator: ", "std::bad_alloc")


def is_lack_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch found too little memory, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(part in str(error) for part in _ON_A_CPU)
