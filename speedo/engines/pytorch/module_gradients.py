"""The gradients of the module that a user's script trains, as one flat vector in the order of its weights."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.variable import Variable
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from speedo.engines.pytorch.optimizer_state import get_rates, read_state, set_rates, state_bytes
from speedo.engines.pytorch.packed_tensors import TENSORS
from speedo.errors import EngineError, ScriptMistake
from speedo.exchange.packed import pack, unpack
from speedo.exchange.vector import Layout, Vector

_PLAIN: Final = (int, float, str, bool, type(None))


class ModuleGradients:
    """Of those parameters that the optimizers have, and have a gradient; beside them BatchNorm's moving averages.

    `blobs` counts parameters and buffers. `made` counts the steps that the optimizers have made. `schedulers` are the
    objects whose state is the same in all workers, beside the optimizers' groups.
    """

    def __init__(
        self,
        module: Module,
        optimizers: Sequence[Optimizer],
        layout: Layout,
        schedulers: Sequence[Any] = (),
    ) -> None:
        """More `schedulers` may come later."""
        self._module, self._optimizers, self._layout = module, tuple(optimizers), layout
        self._schedulers = schedulers
        self.blobs, self.made = len(layout.blobs), 0
        self._has_ended: Callable[[], None] | None = None
        self._hooks: dict[int, RemovableHandle] = {}  # by id of the parameter
        self._is_queued = False

    @property
    def on_processor(self) -> bool:
        """Whether all is in the machine's own memory."""
        return all(one.device.type == "cpu" for one in self._parameters())

    # ------------------------------------------------------------ the end of a backward pass

    def on_backward(self, has_ended: Callable[[], None]) -> None:
        """Call it when a backward pass has ended that gave a parameter of an optimizer a gradient.

        What it raises comes out of `backward()`.
        """
        self._has_ended = has_ended
        self.watch_parameters()

    def watch_parameters(self) -> None:
        """Watch those parameters of the optimizers, too, that they have got since the last call."""
        if self._has_ended is None:
            return
        for one in self._parameters():
            if one.requires_grad and one.is_leaf and id(one) not in self._hooks:
                self._hooks[id(one)] = one.register_post_accumulate_grad_hook(self._has_gradient)

    def _has_gradient(self, parameter: Tensor) -> None:
        if not self._is_queued:
            self._is_queued = True
            engine: Any = Variable._execution_engine
            engine.queue_callback(self._ended)

    def _ended(self) -> None:
        self._is_queued = False
        if self._has_ended is not None:
            self._has_ended()

    def remove(self) -> None:
        """Watch no more."""
        self._has_ended = None
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    # ------------------------------------------------------------ gradients

    def take_gradients(self, out: Vector, present: npt.NDArray[np.uint8]) -> None:
        """Copy them into `out`, 0 where there is none; `present` says which parameters have one.

        Raises `ScriptMistake` for a sparse one.
        """
        present[:] = 0
        for number, tensor, place, trained in self._blobs():
            if trained is None:
                torch.from_numpy(out[place]).view(tensor.shape).copy_(tensor.detach())
                continue
            gradient = tensor.grad if trained else None
            if gradient is None:
                out[place] = 0.0
                continue
            if gradient.layout is not torch.strided:
                raise ScriptMistake(
                    f"the gradient of {self._layout.blobs[number].name} is stored as {gradient.layout}, and only dense "
                    'ones are averaged: leave out sparse=True, or use speedo.join(..., exchange="deltas")'
                )
            torch.from_numpy(out[place]).view(tensor.shape).copy_(gradient)
            present[number] = 1

    def set_gradients(self, mean: Vector, present: npt.NDArray[np.uint8]) -> None:
        """The reverse: a parameter without a gradient is not stepped."""
        for number, tensor, place, trained in self._blobs():
            values = torch.from_numpy(mean[place]).view(tensor.shape)
            if trained is None:
                # Not of this version, which a graph may need that has not been through its backward pass.
                tensor.data.copy_(values)
            elif trained and not present[number]:
                tensor.grad = None
            elif trained:
                if tensor.grad is None:
                    tensor.grad = torch.empty_like(tensor, memory_format=torch.preserve_format)
                tensor.grad.detach().copy_(values)

    def is_finite(self) -> bool:
        """Whether all gradients are."""
        return all(
            bool(torch.isfinite(one.grad).all())
            for one in self._parameters()
            if one.grad is not None
        )

    def forget(self, number: int | None = None) -> None:
        """No parameter of this optimizer, or of any, has a gradient: a step changes nothing."""
        for one in self._parameters(number):
            one.grad = None

    def step(self, number: int) -> None:
        """A step of this optimizer that is not the script's."""
        self._optimizers[number].step()

    # ------------------------------------------------------------ state

    def state(self) -> bytes:
        """The optimizers' state for `load_state`; empty if it cannot be handed on."""
        try:
            return state_bytes(self._optimizers)
        except EngineError as error:
            print(
                f"speedo: another worker's optimizer begins without state: {error}", file=sys.stderr
            )
            return b""

    def load_state(self, state: bytes) -> None:
        """Take over another worker's; raises `EngineError` if it is of another optimizer."""
        if state:
            read_state(state, self._optimizers)

    def rates_key(self) -> int:
        """See `speedo.worker.driven_meeting.Optimizers`."""
        states = [one.state_dict() for one in self._schedulers]
        groups = [group for one in self._optimizers for group in one.param_groups]
        values = [(key, one) for group in groups for key, one in group.items() if key != "params"]
        return zlib.crc32(repr((_plain(values), _plain(states))).encode())

    def rates(self) -> bytes:
        """See `speedo.worker.driven_meeting.Optimizers`."""
        groups = [get_rates(one) for one in self._optimizers]
        states = [one.state_dict() for one in self._schedulers]
        return pack({"groups": groups, "states": states}, "scheduler", TENSORS)

    def load_rates(self, state: bytes) -> None:
        """See `speedo.worker.driven_meeting.Optimizers`."""
        found = unpack(state, TENSORS)
        for scheduler, own in zip(self._schedulers, found["states"], strict=False):
            scheduler.load_state_dict(own)
        for optimizer, groups in zip(self._optimizers, found["groups"], strict=False):
            set_rates(optimizer, groups)

    # ------------------------------------------------------------ parts

    def _parameters(self, number: int | None = None) -> Iterator[Tensor]:
        some = self._optimizers if number is None else (self._optimizers[number],)
        return (
            one for optimizer in some for group in optimizer.param_groups for one in group["params"]
        )

    def _blobs(self) -> Iterator[tuple[int, Tensor, slice, bool | None]]:
        """With whether an optimizer has it; None for a buffer."""
        known = {id(one) for one in self._parameters()}
        for number, (blob, place) in enumerate(self._layout.slices()):
            if blob.average:
                yield number, self._module.get_buffer(blob.name), place, None
            else:
                parameter = self._module.get_parameter(blob.name)
                yield number, parameter, place, id(parameter) in known


def _plain(value: Any) -> Any:
    """What decides a step and is cheap to compare."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, dict):
        return [(key, _plain(one)) for key, one in value.items()]
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else None
