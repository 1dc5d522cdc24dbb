"""The module that a user's script trains, as `speedo.worker.weights.Weights`, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module, ModuleList, SyncBatchNorm
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from speedo.engines.pytorch.module_gradients import ModuleGradients
from speedo.engines.pytorch.optimizer_state import get_rates, read_state, set_rates, state_bytes
from speedo.engines.pytorch.packed_tensors import TENSORS
from speedo.engines.pytorch.sync_batch_norm import AddUp, Synchronised
from speedo.errors import ConfigError, ScriptMistake
from speedo.exchange.packed import pack, unpack
from speedo.exchange.vector import Blob, Layout, Vector

TYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class ModuleWeights:
    """A module's parameters, shared ones once, and then those buffers that its `state_dict` has.

    Raises `ConfigError` for what cannot be averaged. Buffers of floating point, as BatchNorm's `running_mean`, are
    moving averages (`Blob.average`). Those of integers, as `num_batches_tracked`, do not travel: a counter is exact in
    float32 only up to 2^24. Nor do those that hold infinity, as attention's masks. Each worker keeps its own, and what
    worker 0 saves has worker 0's.

    Values travel as float32, from any device. Where a tensor is finer, a value that is the same in float32 stays.
    """

    def __init__(
        self, module: Module, optimizers: Sequence[Optimizer] = (), schedulers: Sequence[Any] = ()
    ) -> None:
        """Of several models `module` is a ModuleList; `schedulers` as in `ModuleGradients`."""
        parameters = dict(module.named_parameters())
        saved = module.state_dict(keep_vars=True).keys()
        buffers = {
            name: buffer
            for name, buffer in module.named_buffers()
            if name in saved and (buffer.is_floating_point() or buffer.is_complex())
            if _fault(buffer) or not _is_mask(buffer)
        }
        _check(parameters, buffers)
        self._module, self.schedulers = module, list(schedulers)
        self._optimizers = tuple(_innermost(one) for one in optimizers)
        self._parameters, self._own = parameters, 0  # the optimizers have so many
        # Who else changes the others is told by PyTorch's count of changes in place.
        self._others: dict[str, Tensor] = {}
        self._changes: dict[str, int] = {}
        self._look_at_optimizers()
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
        """What is the same already is not written: a graph may need it that has had no backward pass yet."""
        for tensor, _, place in self._tensors():
            if not _is_same(tensor, vector[place]):
                _write(tensor, vector[place])
        self._note_changes()

    def check_changes(self) -> None:
        """Raise `ScriptMistake` for a parameter that another optimizer than those joined has changed."""
        if self._own != self._count():
            self._look_at_optimizers()
        for name, one in self._others.items():
            if self._changes.setdefault(name, one._version) != one._version:
                raise ScriptMistake(
                    f"parameter {name} of the model was changed, and no optimizer given to speedo.join has it, so its "
                    "changes reach no other worker: give all optimizers, speedo.join([G, D], [optG, optD]), or join a "
                    "model without those parameters"
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

    def on_step(self, callback: Callable[[int], None]) -> Hooks:
        """Call it with the optimizer's number after each step, until `remove()` of what is returned.

        A step that PyTorch's `GradScaler` skips is none.
        """

        def hook(number: int, *_: Any) -> None:
            callback(number)

        given = enumerate(self._given())
        return Hooks([one.register_step_post_hook(partial(hook, number)) for number, one in given])

    def before_step(self, callback: Callable[[bool, int], None]) -> Hooks:
        """Call it before each step, with whether it was given a closure, and the optimizer's number. As `on_step`."""

        def hook(number: int, _: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            callback(any(callable(one) for one in (*args[1:], kwargs.get("closure"))), number)

        given = enumerate(self._given())
        return Hooks([one.register_step_pre_hook(partial(hook, number)) for number, one in given])

    def gradients(self) -> ModuleGradients:
        """The gradients that the optimizers step with."""
        return ModuleGradients(self._module, self._given(), self.layout, self.schedulers)

    @property
    def is_synchronised(self) -> bool:
        """Whether it has SyncBatchNorm layers."""
        return any(isinstance(one, SyncBatchNorm) for one in self._module.modules())

    def synchronised(self, add_up: AddUp) -> Synchronised:
        """Its SyncBatchNorm layers have the statistics of all workers, until `remove()` of what is returned."""
        return Synchronised(self._module, add_up)

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
        """The optimizers' state, for `load_state` of equal optimizers."""
        return state_bytes(self._given())

    def load_state(self, state: bytes) -> None:
        """Take over `state()`; raises `EngineError` if it is damaged or not of such optimizers."""
        read_state(state, self._given())

    def rates(self) -> list[list[dict[str, Any]]]:
        """Learning rate, momentum and the like of the optimizers' groups, for `set_rates`."""
        return [get_rates(one) for one in self._given()]

    def set_rates(self, rates: list[list[dict[str, Any]]]) -> None:
        """Set those of `rates()`."""
        for optimizer, groups in zip(self._given(), rates, strict=True):
            set_rates(optimizer, groups)

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

    def _given(self) -> tuple[Optimizer, ...]:
        if not self._optimizers:
            raise ConfigError("there is no optimizer: give it beside the model")
        return self._optimizers

    def _count(self) -> int:
        return sum(len(group["params"]) for one in self._optimizers for group in one.param_groups)

    def _look_at_optimizers(self) -> None:
        """See which parameters they have. Raises `ConfigError` for one that the model does not have."""
        for optimizer in self._optimizers:
            _check_optimizer(optimizer, self._parameters)
        groups = [group for one in self._optimizers for group in one.param_groups]
        known = {id(one) for group in groups for one in group["params"]}
        self._own = self._count()
        self._others = {name: one for name, one in self._parameters.items() if id(one) not in known}

    def _tensors(self) -> Iterator[tuple[Tensor, Blob, slice]]:
        """By name, as `module.to()` and some modules put new tensors in the place of buffers."""
        for blob, place in self.layout.slices():
            owner = self._module.get_buffer if blob.average else self._module.get_parameter
            yield owner(blob.name).detach(), blob, place


class Hooks:
    """Several hooks of PyTorch's."""

    def __init__(self, hooks: Sequence[RemovableHandle]) -> None:
        self._hooks = hooks

    def remove(self) -> None:
        for one in self._hooks:
            one.remove()


def _is_same(tensor: Tensor, values: Vector) -> bool:
    new = _as_tensor(values, tensor)
    return bool(torch.equal(tensor.float(), new.to(tensor.device)))


def _as_tensor(values: Vector, like: Tensor) -> Tensor:
    # PyTorch does not know memory that must not be written to, and warns of it.
    own = values if values.flags.writeable else values.copy()
    return torch.from_numpy(own).view(like.shape)


def _write(tensor: Tensor, values: Vector) -> None:
    new = _as_tensor(values, tensor)
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
                fault = "holds NaN, so it is no moving average: set it, or register it with persistent=False"
            if fault:
                problems.append(f"{what} {name} of the model {fault}")
    if problems:
        raise ConfigError(problems)


def _is_mask(tensor: Tensor) -> bool:
    return bool(tensor.isinf().any()) and not bool(tensor.isnan().any())


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


def together(models: Sequence[Module]) -> Module:
    """One module of all; the names of its parameters begin with the model's number if there are several."""
    return models[0] if len(models) == 1 else ModuleList(models)


def _innermost(optimizer: Optimizer) -> Optimizer:
    """The one inside of a wrapper such as Accelerate's, whose steps are those of what it holds."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _check_optimizer(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> None:
    known = {id(one) for one in parameters.values()}
    for group in optimizer.param_groups:
        for one in group["params"]:
            if id(one) not in known:
                raise ScriptMistake(
                    f"the optimizer has a parameter of shape {tuple(one.shape)} that the model given to speedo.join "
                    "did not have: make the optimizer of model.parameters(), and join, after the model is complete"
                )
