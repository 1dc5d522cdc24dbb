"""The module that a user's script trains, as `speedo.worker.weights.Weights`, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from speedo.engines.pytorch.module_gradients import ModuleGradients
from speedo.engines.pytorch.optimizer_state import read_state, state_bytes
from speedo.engines.pytorch.packed_tensors import TENSORS
from speedo.errors import ConfigError, ScriptMistake
from speedo.exchange.packed import pack, unpack
from speedo.exchange.vector import Blob, Layout, Vector

TYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class ModuleWeights:
    """A module's parameters, shared ones once, and then those buffers that its `state_dict` has.

    Raises `ConfigError` for what cannot be averaged. Buffers of floating point, as BatchNorm's `running_mean`, are
    moving averages (`Blob.average`). Those of integers, as `num_batches_tracked`, do not travel: a counter is exact in
    float32 only up to 2^24. Each worker keeps its own, and what worker 0 saves has worker 0's.

    Values travel as float32, from any device. Where a tensor is finer, a value that is the same in float32 stays.
    """

    def __init__(self, module: Module, optimizer: Optimizer | None = None) -> None:
        optimizer = _innermost(optimizer)
        parameters = dict(module.named_parameters())
        saved = module.state_dict(keep_vars=True).keys()
        buffers = {
            name: buffer
            for name, buffer in module.named_buffers()
            if name in saved and (buffer.is_floating_point() or buffer.is_complex())
        }
        _check(parameters, buffers)
        if optimizer is not None:
            _check_optimizer(optimizer, parameters)
        self._module, self._optimizer = module, optimizer
        own = [] if optimizer is None else [p for g in optimizer.param_groups for p in g["params"]]
        known = {id(one) for one in own}
        # Who else changes them is told by PyTorch's count of changes in place.
        self._others = {name: one for name, one in parameters.items() if id(one) not in known}
        self._changes: dict[str, int] = {}
        self.layout = Layout(
            (
                *(Blob(name, tuple(one.shape)) for name, one in parameters.items()),
                *(Blob(name, tuple(one.shape), True, True) for name, one in buffers.items()),
            )
        )

    def read_weights(self, out: Vector) -> None:
        for tensor, _, place in self._tensors():
            torch.from_numpy(out[place]).view(tensor.shape).copy_(tensor)

    def load_weights(self, vector: Vector) -> None:
        for tensor, _, place in self._tensors():
            _write(tensor, vector[place])
        self._note_changes()

    def check_changes(self) -> None:
        """Raise `ScriptMistake` for a parameter that another optimizer than the one joined has changed."""
        for name, one in self._others.items():
            if self._changes.setdefault(name, one._version) != one._version:
                raise ScriptMistake(
                    f"parameter {name} of the model was changed, and the optimizer given to speedo.join does not have "
                    "it, so its changes reach no other worker: give the optimizer all parameters that are trained, or "
                    "join a model without those"
                )

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        """See `Weights.change_weights`; what is not float32 in the host's memory is a copy that is written back."""
        for tensor, blob, place in self._tensors():
            on_host = tensor.device.type == "cpu" and tensor.dtype is torch.float32
            if on_host and tensor.is_contiguous():
                change(blob, place, cast(Vector, tensor.view(-1).numpy()))
            else:
                copy = np.empty(blob.size, np.float32)
                torch.from_numpy(copy).view(tensor.shape).copy_(tensor)
                change(blob, place, copy)
                _write(tensor, copy)
        self._note_changes()

    def _note_changes(self) -> None:
        self._changes = {name: one._version for name, one in self._others.items()}

    def on_step(self, callback: Callable[[], None]) -> RemovableHandle:
        """Call it after each step of the optimizer, until `remove()` of what is returned.

        A step that PyTorch's `GradScaler` skips is none.
        """
        return self._given().register_step_post_hook(lambda *_: callback())

    def before_step(self, callback: Callable[[bool], None]) -> RemovableHandle:
        """Call it before each step of the optimizer; with whether the step was given a closure. As `on_step`."""

        def hook(optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            callback(any(callable(one) for one in (*args[1:], kwargs.get("closure"))))

        return self._given().register_step_pre_hook(hook)

    def gradients(self) -> ModuleGradients:
        """The gradients that the optimizer steps with."""
        return ModuleGradients(self._module, self._given(), self.layout)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The module is in its `eval` mode and no gradient is kept; afterwards each part is in its own mode again."""
        modes = [(part, part.training) for part in self._module.modules()]
        self._module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part, training in modes:
                part.training = training

    def state(self) -> bytes:
        """The optimizer's state, for `load_state` of an equal optimizer."""
        return state_bytes(self._given())

    def load_state(self, state: bytes) -> None:
        """Take over `state()`; raises `EngineError` if it is damaged or not of such an optimizer."""
        read_state(state, self._given())

    def rates(self) -> list[dict[str, Any]]:
        """Learning rate, momentum and the like of the optimizer's groups, for `set_rates`."""
        groups = self._given().param_groups
        return [
            {name: deepcopy(one) for name, one in group.items() if name != "params"}
            for group in groups
        ]

    def set_rates(self, rates: list[dict[str, Any]]) -> None:
        """Set those of `rates()`."""
        for group, values in zip(self._given().param_groups, rates, strict=False):
            group.update(deepcopy(values))

    def counters(self) -> bytes:
        """The buffers that do not travel, for `load_counters`."""
        return pack(dict(self._own_buffers()), "buffers", TENSORS)

    def load_counters(self, state: bytes) -> None:
        """Take over those of `counters()` that the module has; raises `ValueError` if they are damaged."""
        values = unpack(state, TENSORS)
        for name, buffer in self._own_buffers():
            if name in values and values[name].shape == buffer.shape:
                buffer.copy_(values[name])

    def _own_buffers(self) -> Iterator[tuple[str, Tensor]]:
        saved = self._module.state_dict(keep_vars=True).keys()
        for name, buffer in self._module.named_buffers():
            if name in saved and not buffer.is_floating_point():
                yield name, buffer.detach()

    def _given(self) -> Optimizer:
        if self._optimizer is None:
            raise ConfigError("there is no optimizer: give it beside the model")
        return self._optimizer

    def _tensors(self) -> Iterator[tuple[Tensor, Blob, slice]]:
        """By name, as `module.to()` and some modules put new tensors in the place of buffers."""
        for blob, place in self.layout.slices():
            owner = self._module.get_buffer if blob.average else self._module.get_parameter
            yield owner(blob.name).detach(), blob, place


def _write(tensor: Tensor, values: Vector) -> None:
    # PyTorch does not know memory that must not be written to, and warns of it.
    own = values if values.flags.writeable else values.copy()
    new = torch.from_numpy(own).view(tensor.shape)
    if tensor.dtype is not torch.float32:
        new = new.to(tensor.device)
        new = torch.where(tensor.float() == new, tensor, new.to(tensor.dtype))
    tensor.copy_(new)


def _check(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    if not parameters:
        raise ConfigError("the model has no parameters: there is nothing to train")
    problems = []
    for what, tensors in (("parameter", parameters), ("buffer", buffers)):
        for name, tensor in tensors.items():
            fault = _fault(tensor)
            if not fault and what == "buffer" and not bool(torch.isfinite(tensor).all()):
                fault = (
                    "holds values that are not finite, so it is no moving average: register it with persistent=False, "
                    "then each worker keeps its own"
                )
            if fault:
                problems.append(f"{what} {name} of the model {fault}")
    if problems:
        raise ConfigError(problems)


def _fault(tensor: Tensor) -> str:
    """Why its values cannot be averaged, as the end of a sentence; empty if they can."""
    if is_lazy(tensor):
        return "has no shape yet: run one batch through the model first"
    if tensor.is_meta:
        return "is on the meta device, without values: use the model's to_empty(device=...) and set its weights first"
    if tensor.layout is not torch.strided:
        return f"is stored as {tensor.layout}: only dense tensors are averaged, use to_dense()"
    if tensor.dtype not in TYPES:
        return (
            f"has the type {tensor.dtype}: only float32, float64, bfloat16 and float16 are averaged"
        )
    return ""


def _innermost(optimizer: Optimizer | None) -> Optimizer | None:
    """The one inside of a wrapper such as Accelerate's, whose steps are those of what it holds."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _check_optimizer(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> None:
    known = {id(one) for one in parameters.values()}
    for group in optimizer.param_groups:
        for one in group["params"]:
            if id(one) not in known:
                raise ConfigError(
                    f"the optimizer has a parameter of shape {tuple(one.shape)} that the model does not have: "
                    "make the optimizer of model.parameters(), after the model is complete"
                )
