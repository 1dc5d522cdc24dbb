"""Caffe's six solver updates on PyTorch tensors, on whichever device the parameters are.

As in Caffe the sum over `iter_size` batches is clipped, then divided; then come the weight decay and the solver's rule
(Caffe: solvers/sgd_solver.cpp, ApplyUpdate). The rules are those of `speedo.engines.update_rules`; PyTorch fuses a
multiplication with an addition, so the last bits differ from NumPy's.

A processor walks the parameters in blocks that stay in its cache. A GPU takes all at once: then what differs from blob
to blob, the multipliers, is a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speedo.engines.solver_update import BLOCK, Multipliers
from speedo.engines.update_rules import RULES, SolverFields, float32
from speedo.exchange.vector import Layout, Vector


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate of a piece: `number`, times `factors` if its blobs have several multipliers."""

    number: float
    factors: Tensor | None

    def add(self, h: Tensor, x: Tensor) -> None:
        """h += rate x."""
        if self.factors is None:
            h.add_(x, alpha=self.number)
        else:
            h.addcmul_(x, self.factors, value=self.number)

    def scale(self, u: Tensor) -> Tensor:
        """u *= rate."""
        u.mul_(self.number)
        return u if self.factors is None else u.mul_(self.factors)


class _PyTorch:
    """The arithmetic of PyTorch, for `speedo.engines.update_rules`."""

    library = torch

    def add(self, h: Tensor, x: Tensor, factor: float | Rate, scratch: Tensor) -> None:
        if isinstance(factor, Rate):
            factor.add(h, x)
        else:
            h.add_(x, alpha=factor)

    def add_square(self, h: Tensor, x: Tensor, factor: float, scratch: Tensor) -> None:
        h.addcmul_(x, x, value=factor)

    def scale(self, u: Tensor, rate: Rate) -> Tensor:
        return rate.scale(u)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one call of the rule updates: its memory and its multipliers, numbers or a tensor of its length.

    Its gradient is part `at` of the gradient of `blob`, or of the whole vector where `blob` is None.
    """

    place: slice
    blob: int | None
    at: slice
    weights: Tensor
    history: tuple[Tensor, ...]
    lr: float | Tensor
    decay: float | Tensor


class ParameterUpdate:
    """The solver's update of the tensor `flat`, with its history: `history[k]` is Caffe's vector k.

    `updates` counts the solver's own updates, by which Adam corrects its bias. BatchNorm's statistics have no update,
    and zeros in the history. `whole` takes all at once, which is for GPUs.
    """

    def __init__(
        self,
        fields: SolverFields,
        layout: Layout,
        blobs: Sequence[Multipliers],
        flat: Tensor,
        *,
        whole: bool | None = None,
    ) -> None:
        self._layout, self._blobs, self._flat = layout, tuple(blobs), flat
        self._whole = flat.device.type != "cpu" if whole is None else whole
        vectors = RULES[fields.type].vectors
        self.history = torch.zeros(vectors, layout.size, device=flat.device)
        self.updates = 0
        # Without memory there is nothing to update.
        pieces = self._all_at_once if self._whole else self._in_blocks
        self._pieces = [] if flat.is_meta else list(pieces())
        longest = max((piece.weights.numel() for piece in self._pieces), default=0)
        self._scratch = [torch.empty(longest, device=flat.device) for _ in range(3)]
        self._zeros = torch.zeros(0 if self._whole else longest, device=flat.device)
        self._gathered = torch.zeros(layout.size if self._whole else 0, device=flat.device)
        self.use(fields)

    def use(self, fields: SolverFields) -> None:
        """Use these fields from the next update on; the type must be the same. The history stays."""
        self.fields = fields
        self._rule = RULES[fields.type](fields, _PyTorch())
        self._weight_decay = float(np.float32(fields.weight_decay))

    def restore(self, history: Sequence[Vector], updates: int) -> None:
        """Copy the history of an equal solver."""
        for own, given in zip(self.history, history, strict=True):
            own.copy_(torch.from_numpy(given))
        self.updates = updates

    @torch.no_grad()
    def apply(
        self,
        gradients: Sequence[Tensor | None],
        rate: float,
        *,
        divisor: int = 1,
        delta: Tensor | None = None,
        onto: bool = False,
    ) -> None:
        """Update the weights with the gradients of every blob, which are sums over `divisor` batches, at this rate.

        None is a gradient of zero. `delta`, of the device, becomes what was added to the weights; `onto` adds it there.
        Places of statistics are left alone.
        """
        factor = self._factor(gradients, divisor)
        if self._whole:
            self._gather(gradients)
        number = float(np.float32(rate) * np.float32(self._rule.scale(self.updates + 1)))
        for piece in self._pieces:
            size = piece.weights.numel()
            own, u, t = (
                self._scratch
                if size == self._scratch[0].numel()
                else [scratch[:size] for scratch in self._scratch]
            )
            g = self._gradient_of(piece, gradients)
            if factor is not None:
                g = torch.mul(g, factor, out=own)
            g = self._with_decay(g, piece, own, t)
            if isinstance(piece.lr, float):
                step_rate = Rate(float(np.float32(number) * np.float32(piece.lr)), None)
            else:
                step_rate = Rate(number, piece.lr)
            step = self._rule.step(g, piece.history, u, t, step_rate)
            piece.weights.sub_(step)
            if delta is not None:
                part = delta[piece.place]
                part.sub_(step) if onto else torch.neg(step, out=part)
        self.updates += 1

    def _factor(self, gradients: Sequence[Tensor | None], divisor: int) -> float | Tensor | None:
        """What the sum of the gradients is multiplied by: to the norm allowed and to the mean; None for 1."""
        batches = self.fields.iter_size
        if not self.fields.clips:
            return None if divisor == 1 else float32(1.0 / divisor)
        norms = [
            torch.linalg.vector_norm(gradient, dtype=torch.float64)
            for gradient, blob in zip(gradients, self._layout.blobs, strict=True)
            if gradient is not None and not blob.statistic
        ]
        if not norms:
            return None
        # Of the sum over `iter_size` batches, as Caffe has it.
        norm = torch.linalg.vector_norm(torch.stack(norms)).mul_(batches / divisor).float()
        # Filled there: a number that is copied to a GPU would make the host wait for it.
        bound = torch.full_like(norm, float32(self.fields.clip_gradients))
        factor = torch.where(norm > bound, bound / norm, 1.0).div_(divisor)
        if self._whole:
            return factor  # read here, it would make the host wait for the GPU
        number = float(factor)
        return None if number == 1.0 else number

    def _with_decay(self, g: Tensor, piece: _Piece, own: Tensor, t: Tensor) -> Tensor:
        w, multiplier = piece.weights, piece.decay
        if not self._weight_decay or (isinstance(multiplier, float) and not multiplier):
            return g
        pull = torch.sign(w, out=t) if self.fields.l1 else w
        if isinstance(multiplier, Tensor):
            return torch.addcmul(g, pull, multiplier, value=self._weight_decay, out=own)
        local = float(np.float32(self._weight_decay) * np.float32(multiplier))
        return torch.add(g, pull, alpha=local, out=own)

    def _gradient_of(self, piece: _Piece, gradients: Sequence[Tensor | None]) -> Tensor:
        if piece.blob is None:
            return self._gathered[piece.at]
        gradient = gradients[piece.blob]
        if gradient is None:
            return self._zeros[: piece.weights.numel()]
        return gradient if gradient.numel() == piece.weights.numel() else gradient[piece.at]

    def _gather(self, gradients: Sequence[Tensor | None]) -> None:
        parts = [self._gathered[place] for _, place in self._layout.slices()]
        found = [(a, b) for a, b in zip(parts, gradients, strict=True) if b is not None]
        for part, gradient in zip(parts, gradients, strict=True):
            if gradient is None:
                part.zero_()
        if found:
            torch._foreach_copy_([part for part, _ in found], [given for _, given in found])

    def _in_blocks(self) -> list[_Piece]:
        """Blob by blob, each in blocks of the cache's size."""
        pieces = []
        for index, (blob, place) in enumerate(self._layout.slices()):
            if blob.statistic:
                continue
            own = self._blobs[index]
            for start in range(0, blob.size, BLOCK):
                at = slice(start, min(start + BLOCK, blob.size))
                here = slice(place.start + at.start, place.start + at.stop)
                pieces.append(self._piece(here, index, at, float(own.lr), float(own.decay)))
        return pieces

    def _all_at_once(self) -> list[_Piece]:
        """From one statistic to the next, with the multipliers of every value where they differ."""
        size = self._layout.size
        lr, decay = torch.empty(size), torch.empty(size)
        for own, (_, place) in zip(self._blobs, self._layout.slices(), strict=True):
            lr[place], decay[place] = own.lr, own.decay
        ends = [(place.start, place.stop) for place in self._layout.statistics]
        pieces = []
        start = 0
        for stop, after in [*ends, (size, size)]:
            if start < stop:
                here = slice(start, stop)
                pieces.append(
                    self._piece(here, None, here, self._same(lr[here]), self._same(decay[here]))
                )
            start = after
        return pieces

    def _same(self, values: Tensor) -> float | Tensor:
        first = float(values[0])
        return first if bool((values == first).all()) else values.to(self._flat.device)

    def _piece(
        self, place: slice, blob: int | None, at: slice, lr: float | Tensor, decay: float | Tensor
    ) -> _Piece:
        history = tuple(vector[place] for vector in self.history)
        return _Piece(place, blob, at, self._flat[place], history, lr, decay)
