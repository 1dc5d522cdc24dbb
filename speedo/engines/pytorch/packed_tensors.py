"""PyTorch's tensors for `speedo.exchange.packed`: of any type and device; they come back in the host's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from caffenets.files import written_whole
from speedo.exchange.packed import ArrayKind


def _describe(tensor: Tensor) -> tuple[list[Any], bytes]:
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        raise TypeError(f"a tensor of {tensor.layout} on {tensor.device} is not dense")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
    name = str(tensor.dtype).removeprefix("torch.")
    return [name, list(tensor.shape)], flat.contiguous().view(torch.uint8).numpy().tobytes()


def _make(description: list[Any], data: bytearray) -> Tensor:
    name, shape = description
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"type {name}")
    if not data:
        return torch.empty(shape, dtype=dtype).reshape(shape)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


TENSORS: Final = {"tensor": ArrayKind(Tensor, _describe, _make)}


def save_object(path: Path, thing: Any) -> None:
    """Write a file of `torch.save`, whole or not at all. Raises `OSError`, and what `torch.save` raises."""
    with written_whole(path) as file:
        torch.save(thing, file)
