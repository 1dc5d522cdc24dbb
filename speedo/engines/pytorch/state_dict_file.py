"""Reads a state dict of PyTorch's, as `torch.save(model.state_dict(), file)` writes it; nothing in it is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from speedo.errors import EngineError

_REMEDY = "save model.state_dict() alone, by torch.save"


def read_state_dict(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of floating point by their names, as float32; tensors that share their memory are one array.

    Raises `EngineError` for a file that is damaged, or holds anything else than tensors by names.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # of any class, for a file that is none of PyTorch's
        raise EngineError(
            f"{path} is no state dict that PyTorch reads without running code, or is damaged "
            f"({type(error).__name__}): {_REMEDY}"
        ) from None
    if not isinstance(found, Mapping):
        raise EngineError(f"{path} holds a {type(found).__name__}, no state dict: {_REMEDY}")
    others = [name for name, one in found.items() if not isinstance(one, Tensor)]
    if others:
        names = ", ".join(f"{one!r:.40}" for one in others[:3])
        raise EngineError(f"{path} holds other things than tensors ({names}): {_REMEDY}")
    arrays: dict[tuple[object, ...], npt.NDArray[np.float32]] = {}
    weights = {}
    for name, tensor in found.items():
        if tensor.is_floating_point() and tensor.layout is torch.strided:
            place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if place not in arrays or not tensor.numel():
                arrays[place] = tensor.detach().float().contiguous().numpy()
            weights[str(name)] = arrays[place]
    return weights
