"""The state of a script's optimizers as bytes, without pickle."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from speedo.engines.pytorch.packed_tensors import TENSORS
from speedo.errors import EngineError
from speedo.exchange.packed import pack, unpack


def state_bytes(optimizers: Sequence[Optimizer]) -> bytes:
    """What `read_state` reads. Raises `ConfigError` for values of a type that cannot be saved."""
    if len(optimizers) > 1:
        return pack({"several": [state_bytes([one]) for one in optimizers]}, "optimizers")
    state = {"of": _kind(optimizers[0]), "state": optimizers[0].state_dict()}
    return pack(state, "optimizer", TENSORS)


def read_state(data: bytes, optimizers: Sequence[Optimizer]) -> None:
    """Load it. Raises `EngineError` if it is damaged, or of other optimizers or models; then nothing is changed."""
    found = []
    try:
        parts = unpack(data)["several"] if len(optimizers) > 1 else [data]
        if len(parts) != len(optimizers):
            raise ValueError(f"it is of {len(parts)} optimizers")
        for part, optimizer in zip(parts, optimizers, strict=True):
            packed = unpack(part, TENSORS)
            if packed["of"] != _kind(optimizer):
                raise ValueError("it is of another optimizer, or of parameters of other shapes")
            found.append(packed["state"])
    except (ValueError, KeyError, TypeError) as error:
        names = ", ".join(dict.fromkeys(type(one).__name__ for one in optimizers))
        raise EngineError(
            f"the state cannot be loaded into this {names} ({error}): "
            "use the same script, model and optimizer"
        ) from error
    for state, optimizer in zip(found, optimizers, strict=True):
        optimizer.load_state_dict(state)


def get_rates(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Learning rate, momentum and the like of its groups, for `set_rates`."""
    return [
        {name: deepcopy(one) for name, one in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def set_rates(optimizer: Optimizer, rates: list[dict[str, Any]]) -> None:
    """Set those of `get_rates`."""
    for group, values in zip(optimizer.param_groups, rates, strict=False):
        for name, one in values.items():
            if isinstance(own := group.get(name), Tensor):
                own.copy_(one)  # a compiled step has it
            else:
                group[name] = deepcopy(one)


def _kind(optimizer: Optimizer) -> list[Any]:
    """What a state depends on: PyTorch takes Adam's into SGD, and any shape, and then a step fails."""
    groups = [[list(one.shape) for one in group["params"]] for group in optimizer.param_groups]
    return [type(optimizer).__name__, groups]
