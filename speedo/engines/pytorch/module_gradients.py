"""The gradients of the module that a user's script trains, as one flat vector in the order of its weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from speedo.engines.pytorch.optimizer_state import read_state, state_bytes
from speedo.errors import EngineError, ScriptMistake
from speedo.exchange.vector import Layout, Vector


class ModuleGradients:
    """Of those parameters that the optimizer has, and have a gradient; beside them BatchNorm's moving averages.

    `blobs` counts parameters and buffers. `made` counts the steps that the optimizer has made.
    """

    def __init__(self, module: Module, optimizer: Optimizer, layout: Layout) -> None:
        self._module, self._optimizer, self._layout = module, optimizer, layout
        self.blobs, self.made = len(layout.blobs), 0

    def take_gradients(self, out: Vector, present: npt.NDArray[np.uint8]) -> None:
        """Copy them into `out`, 0 where there is none; `present` says which parameters have one.

        Raises `ScriptMistake` for a sparse one.
        """
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
                tensor.detach().copy_(values)
            elif trained and not present[number]:
                tensor.grad = None
            elif trained:
                if tensor.grad is None:
                    tensor.grad = torch.empty_like(tensor, memory_format=torch.preserve_format)
                tensor.grad.detach().copy_(values)

    def forget(self) -> None:
        """No parameter has a gradient: a step changes nothing."""
        for group in self._optimizer.param_groups:
            for one in group["params"]:
                one.grad = None

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Inside there are no gradients of the script's own."""
        parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
        kept = [one.grad for one in parameters]
        self.forget()
        try:
            yield
        finally:
            for one, gradient in zip(parameters, kept, strict=True):
                one.grad = gradient

    def step(self) -> None:
        """A step of the optimizer that is not the script's."""
        self._optimizer.step()

    def state(self) -> bytes:
        """The optimizer's state for `load_state`; empty if it cannot be handed on."""
        try:
            return state_bytes(self._optimizer)
        except EngineError as error:
            print(
                f"speedo: another worker's optimizer begins without state: {error}", file=sys.stderr
            )
            return b""

    def load_state(self, state: bytes) -> None:
        """Take over another worker's; raises `EngineError` if it is of another optimizer."""
        if state:
            read_state(state, self._optimizer)

    def _blobs(self) -> Iterator[tuple[int, Tensor, slice, bool | None]]:
        """With whether the optimizer has it; None for a buffer."""
        known = {id(one) for group in self._optimizer.param_groups for one in group["params"]}
        for number, (blob, place) in enumerate(self._layout.slices()):
            if blob.average:
                yield number, self._module.get_buffer(blob.name), place, None
            else:
                parameter = self._module.get_parameter(blob.name)
                yield number, parameter, place, id(parameter) in known
