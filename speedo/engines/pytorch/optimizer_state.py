"""The state of an optimizer of PyTorch's as bytes, without pickle."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from speedo.engines.pytorch.packed_tensors import TENSORS
from speedo.errors import EngineError
from speedo.exchange.packed import pack, unpack


def state_bytes(optimizer: Optimizer) -> bytes:
    """What `read_state` reads. Raises `ConfigError` for values of a type that cannot be saved."""
    state = {"of": _kind(optimizer), "state": optimizer.state_dict()}
    return pack(state, "optimizer", TENSORS)


def read_state(data: bytes, optimizer: Optimizer) -> None:
    """Load it. Raises `EngineError` if it is damaged, or of another optimizer or model; then nothing is changed."""
    try:
        packed = unpack(data, TENSORS)
        if packed["of"] != _kind(optimizer):
            raise ValueError("it is of another optimizer, or of parameters of other shapes")
        state = packed["state"]
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"the state cannot be loaded into this {type(optimizer).__name__} ({error}): "
            "use the same script, model and optimizer"
        ) from error
    optimizer.load_state_dict(state)


def _kind(optimizer: Optimizer) -> list[Any]:
    """What a state depends on: PyTorch takes Adam's into SGD, and any shape, and then a step fails."""
    groups = [[list(one.shape) for one in group["params"]] for group in optimizer.param_groups]
    return [type(optimizer).__name__, groups]
