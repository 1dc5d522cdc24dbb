"""The state of an optimizer of PyTorch's as bytes, without pickle: a line of JSON, then the bytes of its tensors."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from speedo.errors import EngineError

FORMAT: Final = "speedo-optimizer-1"


def state_bytes(optimizer: Optimizer) -> bytes:
    """What `read_state` reads. Raises `EngineError` for values of a type that it does not know."""
    tensors: list[bytes] = []
    state = _pack(optimizer.state_dict(), tensors)
    head = json.dumps({"format": FORMAT, "of": _kind(optimizer), "state": state})
    return b"\n".join((head.encode(), b"".join(tensors)))


def read_state(data: bytes, optimizer: Optimizer) -> None:
    """Load it. Raises `EngineError` if it is damaged, or of another optimizer or model; then nothing is changed."""
    head, _, body = data.partition(b"\n")
    try:
        packed = json.loads(head)
        if packed["format"] != FORMAT:
            raise ValueError(f"format {packed['format']!r}")
        if packed["of"] != _kind(optimizer):
            raise ValueError("it is of another optimizer, or of parameters of other shapes")
        tensors = bytearray(body)  # PyTorch warns of memory that is read-only
        state, end = _unpack(packed["state"], tensors, 0)
        if end != len(tensors):
            raise ValueError(f"{len(tensors) - end} bytes too many")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise EngineError(
            f"the state cannot be loaded into this {type(optimizer).__name__} ({error}): "
            "use the same script, model and optimizer"
        ) from error
    optimizer.load_state_dict(state)


def _kind(optimizer: Optimizer) -> list[Any]:
    """What a state depends on: PyTorch takes Adam's into SGD, and any shape, and then a step fails."""
    groups = [[list(one.shape) for one in group["params"]] for group in optimizer.param_groups]
    return [type(optimizer).__name__, groups]


def _pack(value: Any, tensors: list[bytes]) -> Any:
    """The value for JSON; the bytes of its tensors are appended in the same order."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        flat = value.detach().cpu().reshape(-1)
        tensors.append(flat.contiguous().view(torch.uint8).numpy().tobytes())
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_pack(one, tensors) for one in value]}
    if isinstance(value, dict):
        return {"dict": [[_pack(k, tensors), _pack(v, tensors)] for k, v in value.items()]}
    raise EngineError(
        f"the optimizer's state has a value of type {type(value).__name__}, which cannot be saved: "
        "only numbers, text, tensors, lists and dicts can"
    )


def _unpack(packed: Any, data: bytearray, start: int) -> tuple[Any, int]:
    """What `_pack` packed, and where its tensors end in `data`."""
    if not isinstance(packed, dict):
        return packed, start
    ((kind, content),) = packed.items()
    if kind == "tensor":
        name, shape = content
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"type {name}")
        tensor = torch.empty(shape, dtype=dtype)
        end = start + tensor.nbytes
        if end > len(data):
            raise ValueError(f"{end - len(data)} bytes are missing")
        if tensor.nbytes:
            tensor = torch.frombuffer(data[start:end], dtype=dtype).reshape(shape)
        return tensor, end
    found = []
    for one in content:
        if kind == "dict":
            key, start = _unpack(one[0], data, start)
            value, start = _unpack(one[1], data, start)
            found.append((key, value))
        else:
            value, start = _unpack(one, data, start)
            found.append(value)
    return {"list": list, "tuple": tuple, "dict": dict}[kind](found), start
