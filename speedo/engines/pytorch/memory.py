"""How a lack of memory in PyTorch is recognised, and what is held unused given back."""

from __future__ import annotations

from typing import Final

import torch

from speedo.system.kept_memory import give_back_freed_memory

# On a CPU PyTorch has no class for it (c10/core/impl/alloc_cpu.cpp); what C++ itself throws; and oneDNN, whose kernels
# are made when they are first used, and which says no more. On a GPU the class is that of PyTorch's own allocator;
# the driver, cuBLAS and cuDNN have words.
_WORDS: Final = (
    "DefaultCPUAllocator: ", "std::bad_alloc", "could not create a primitive",
    "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
)  # fmt: skip


def is_lack_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch found too little memory, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(part in str(error) for part in _WORDS)


def free_unused_memory(device: torch.device) -> None:
    """Give back what the allocator of this device holds without use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        give_back_freed_memory()
