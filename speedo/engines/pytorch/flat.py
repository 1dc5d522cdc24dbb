"""The parameters of a net as one flat float32 tensor, whose parts are the parameters' own memory.

So the weights leave and arrive by one copy. A GPU's go through a buffer of the host that it reaches by itself (pinned).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from speedo.exchange.vector import Blob, Layout, Vector


class FlatParameters:
    """The blobs of `layout` in one tensor of the device; they begin as zeros.

    `leaves` has a tensor for every blob, in its shape, for autograd. Each has a version counter of its own: a running
    sum that changes in the forward pass must not make autograd refuse the weights beside it.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.flat = torch.zeros(layout.size, device=device)
        self.leaves = [self.flat[place].view(blob.shape).data for blob, place in layout.slices()]
        self._places = [place for _, place in layout.slices()]
        self._statistics = layout.statistics
        self._on_host = device.type == "cpu"
        self._buffer: Tensor | None = None

    def read(self, out: Vector) -> None:
        """Copy the weights into `out`."""
        self._copy_out(self.flat, out)

    def write(self, vector: Vector) -> None:
        """Copy `vector` into the weights."""
        self._copy_in(vector, self.flat)

    def room_for(self, out: Vector) -> Tensor:
        """A tensor of the device that `deliver` brings to `out`; on the CPU it is `out` itself."""
        return torch.from_numpy(out) if self._on_host else torch.empty_like(self.flat)

    def deliver(self, room: Tensor, out: Vector) -> None:
        """Have in `out` what is in its `room_for`."""
        if not self._on_host:
            self._copy_out(room, out)

    def on_device(self, vector: Vector) -> Tensor:
        """The values of a vector, which must not be changed: on the CPU it is its own memory."""
        if not self._on_host:
            moved = torch.empty_like(self.flat)
            self._copy_in(vector, moved)
            return moved
        # PyTorch does not know tensors that must not be written to, and warns of them.
        return torch.from_numpy(vector if vector.flags.writeable else vector.copy())

    def change(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        """Call `change(blob, place, weights)` for every blob; a GPU's weights are a copy that is written back."""
        if self._on_host:
            memory = cast(Vector, self.flat.numpy())
        else:
            buffer = self._host_buffer()
            buffer.copy_(self.flat)
            memory = cast(Vector, buffer.numpy())
        for blob, place in self.layout.slices():
            change(blob, place, memory[place])
        if not self._on_host:
            self.flat.copy_(buffer)

    def clear_gradients(self) -> None:
        """Forget the gradients, so that the next backward pass begins with its own memory instead of adding."""
        for leaf in self.leaves:
            leaf.grad = None

    def gradients(self) -> list[Tensor | None]:
        """The sum that the backward passes left for every blob, as a vector; None is zero."""
        return [None if leaf.grad is None else leaf.grad.reshape(-1) for leaf in self.leaves]

    def read_gradient(self, number: int, whole: Tensor, divisor: int) -> None:
        """Copy the gradient of blob `number`, divided by `divisor`, into a tensor of the layout's size."""
        gradient, part = self.leaves[number].grad, whole[self._places[number]]
        if gradient is None:
            part.zero_()
        elif divisor == 1:
            part.copy_(gradient.reshape(-1))
        else:
            torch.div(gradient.reshape(-1), divisor, out=part)

    def as_gradients(self, whole: Tensor) -> list[Tensor | None]:
        """The form of `gradients`, of a tensor; running sums have none, and count in no norm."""
        return [None if blob.statistic else whole[place] for blob, place in self.layout.slices()]

    def read_statistics(self) -> list[Tensor]:
        """A copy of each of BatchNorm's running sums."""
        return [self.flat[place].clone() for place in self._statistics]

    def read_statistics_change(self, before: Sequence[Tensor], whole: Tensor) -> None:
        """Write the change of the running sums since `before` to their places in `whole`."""
        for place, former in zip(self._statistics, before, strict=True):
            torch.sub(self.flat[place], former, out=whole[place])

    def write_statistics(self, before: Sequence[Tensor]) -> None:
        """Set the running sums to what they were `before`."""
        for place, former in zip(self._statistics, before, strict=True):
            self.flat[place] = former

    def add_statistics(self, whole: Tensor) -> None:
        """Add the values at their places in `whole` to the running sums."""
        for place in self._statistics:
            self.flat[place] += whole[place]

    def are_finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        return all(bool(torch.isfinite(leaf).all()) for leaf in self.leaves)

    def _copy_out(self, tensor: Tensor, out: Vector) -> None:
        if self._on_host:
            np.copyto(out, tensor.numpy())
        else:
            buffer = self._host_buffer()
            buffer.copy_(tensor)
            np.copyto(out, buffer.numpy())

    def _copy_in(self, vector: Vector, tensor: Tensor) -> None:
        if self._on_host:
            np.copyto(cast(Vector, tensor.numpy()), vector)
        else:
            buffer = self._host_buffer()
            np.copyto(cast(Vector, buffer.numpy()), vector)
            tensor.copy_(buffer)

    def _host_buffer(self) -> Tensor:
        if self._buffer is None:
            self._buffer = torch.empty(self.layout.size, pin_memory=True)
        return self._buffer
