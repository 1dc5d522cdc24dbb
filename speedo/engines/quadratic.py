"""An exact toy problem: a quadratic bowl in which every record has a different minimum.

Record k asks for w = target + offset_k, with loss 0.5 (w - target - offset_k)' C (w - target -
offset_k) and diagonal C, so the gradient of a batch is exact and a split batch adds up to the whole
one. It replaces Caffe in tests that are not about the engine: a step takes a few microseconds.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from speedo.engines.base import Done, nobody
from speedo.engines.files import write_out
from speedo.errors import EngineError
from speedo.exchange.factors import Factors, Product
from speedo.exchange.vector import Blob, Layout, Vector

# Divisible by 2, 3, 4, 5 and 6, so that shards of as many workers hold equally many records.
RECORDS: Final = 240


@cache
def _problem(size: int, seed: int) -> tuple[Vector, Vector, Vector]:
    """Curvature, target (`size` values each) and offsets (`RECORDS` rows, mean zero), read-only."""
    random = np.random.default_rng(seed)
    curvature = random.uniform(0.5, 1.5, size).astype(np.float32)
    target = random.standard_normal(size).astype(np.float32)
    offsets = random.standard_normal((RECORDS, size))
    centred = (offsets - offsets.mean(axis=0)).astype(np.float32)
    for array in (curvature, target, centred):
        array.flags.writeable = False
    return curvature, target, centred


@cache
def _batch_offset(
    size: int, seed: int, noise: float, start: int, batch: int, count: int
) -> tuple[Vector, float]:
    """Mean offset of the batch start, start + count, ... and the part of the loss that comes from its spread."""
    curvature, _, offsets = _problem(size, seed)
    wanted = np.float32(noise) * offsets[(start + count * np.arange(batch)) % RECORDS]
    mean = wanted.mean(axis=0)
    mean.flags.writeable = False
    return mean, float(((wanted - mean) ** 2 @ curvature).mean())


class QuadraticEngine:
    """An `Engine` in numpy: plain SGD with momentum at a fixed rate, from zero weights.

    Rank `rank` of `count` reads the records rank, rank + count, ... `noise` scales the offsets;
    with 0 all records are alike and the minimum is exact.
    """

    def __init__(
        self,
        size: int = 8,
        *,
        seed: int = 0,
        rank: int = 0,
        count: int = 1,
        batch: int = 1,
        lr: float = 0.1,
        momentum: float = 0.0,
        noise: float = 0.0,
    ) -> None:
        self._curvature, self._target, _ = _problem(size, seed)
        self._layout = Layout((Blob("w/0", (size,)),))
        self._rank, self._count, self._batch = rank, count, batch
        self._lr, self._momentum = np.float32(lr), np.float32(momentum)
        self._own, self._decay, self._batches = (lr, momentum), np.float32(0.0), 1
        self._noise = noise
        self._problem = (size, seed, noise)
        self._weights = np.zeros(size, np.float32)
        self._velocity = np.zeros(size, np.float32)
        self._difference = np.empty(size, np.float32)
        self._gradient = np.empty(size, np.float32)
        self._records_read = 0
        self._placed: list[int] | None = None  # what is left of the records of `place`
        self.read_records: list[int] = []  # of those, in their order

    @property
    def layout(self) -> Layout:
        """One blob, `w/0`."""
        return self._layout

    @property
    def samples_per_step(self) -> int:
        """The batch."""
        return self._batch

    def read_weights(self, out: Vector) -> None:
        """Copy the parameters into `out`."""
        out[:] = self._weights

    def load_weights(self, vector: Vector) -> None:
        """Copy `vector` into the parameters; the velocity stays."""
        self._weights[:] = vector

    def set_iteration(self, iteration: int) -> None:
        """The iteration of the next step; the rate does not depend on it."""

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        for blob, place in self.layout.slices():
            change(blob, place, self._weights[place])

    def step(self, n: int, delta: Vector | None = None) -> float:
        """Run `n` steps; mean loss, each at the weights before its step. See `Engine.step`."""
        total = 0.0
        if delta is not None:
            delta.fill(0.0)
        for _ in range(n):
            total += self._mean_gradient()
            update = self._update(self._gradient)
            if delta is not None:
                delta -= update
        return total / n

    def adjust(
        self, lr: float | None, momentum: float | None, weight_decay: float | None, batches: int
    ) -> None:
        self._lr = np.float32(self._own[0] if lr is None else lr)
        self._momentum = np.float32(self._own[1] if momentum is None else momentum)
        self._decay, self._batches = np.float32(weight_decay or 0.0), batches

    def advance(self, batches: int) -> None:
        self._records_read += batches * self._batch

    def place(self, ranges: Sequence[tuple[int, int]], ahead: int = 0) -> None:
        self._placed = [number for start, stop in ranges for number in range(start, stop)]

    def products(self) -> tuple[Product, ...]:
        """None."""
        return ()

    def gradient(
        self, n: int, out: Vector, done: Done = nobody, factors: Sequence[Factors] = ()
    ) -> float:
        """Mean gradient over `n` batches at the present weights; mean loss."""
        out[:] = 0
        total = 0.0
        for _ in range(n):
            total += self._mean_gradient()
            out += self._gradient
        out /= n
        done(0, len(out))
        return total / n

    def apply_gradient(self, vector: Vector) -> None:
        """One update with momentum."""
        np.copyto(self._gradient, vector)
        self._update(self._gradient)

    def evaluate(self) -> Mapping[str, float]:
        """`loss` of the mean record, zero at the target; `EngineError` if it is not finite."""
        difference = (self._weights - self._target).astype(np.float64)
        loss = 0.5 * float(difference @ (self._curvature * difference))
        if not math.isfinite(loss):
            raise EngineError("the weights are not finite: training has diverged; lower lr")
        return {"loss": loss}

    def save(self, path: Path) -> None:
        """Write the weights as numpy's `.npy`; whole or not at all."""
        buffer = io.BytesIO()
        np.save(buffer, self._weights)
        try:
            write_out(buffer, path)
        except OSError as error:
            raise EngineError(f"cannot write the model {path}: {error.strerror}") from error

    def history(self) -> bytes:
        """The velocity."""
        return self._velocity.tobytes()

    def load_history(self, state: bytes) -> None:
        """Take over `history()`; raises `EngineError` for another size."""
        if len(state) != self._velocity.nbytes:
            raise EngineError(
                f"the history has {len(state)} bytes, this engine's {self._velocity.nbytes}: "
                "resume with the same problem"
            )
        self._velocity[:] = np.frombuffer(state, np.float32)

    def close(self) -> None:
        """There is nothing to free."""

    def _mean_gradient(self) -> float:
        """Leave the mean gradient of a step's batches in `_gradient`; their mean loss."""
        if self._batches == 1:
            return self._forward_backward()
        total, gradient = 0.0, np.zeros_like(self._gradient)
        for _ in range(self._batches):
            total += self._forward_backward()
            gradient += self._gradient
        np.divide(gradient, np.float32(self._batches), out=self._gradient)
        return total / self._batches

    def _forward_backward(self) -> float:
        """Leave the gradient of the next batch in `_gradient`; its loss."""
        np.subtract(self._weights, self._target, self._difference)
        spread = 0.0
        if self._placed is not None:
            self._take_placed(self._placed)
        elif self._noise:
            spread = self._take_offset()
        np.multiply(self._curvature, self._difference, self._gradient)
        return 0.5 * (float(self._difference.dot(self._gradient)) + spread)

    def _take_offset(self) -> float:
        """Move `_difference` by the batch's mean offset; what their spread adds to the loss."""
        start = (self._records_read * self._count + self._rank) % RECORDS
        self._records_read += self._batch
        mean, spread = _batch_offset(*self._problem, start, self._batch, self._count)
        self._difference -= mean
        return spread

    def _take_placed(self, placed: list[int]) -> None:
        """As `_take_offset`, of the next of these records, without their spread."""
        if len(placed) < self._batch:
            raise EngineError(f"{len(placed)} records were placed for a batch of {self._batch}")
        numbers = placed[: self._batch]
        del placed[: self._batch]
        self.read_records += numbers
        size, seed, noise = self._problem
        offsets = _problem(size, seed)[2][np.array(numbers) % RECORDS]
        self._difference -= np.float32(noise) * offsets.mean(axis=0)

    def _update(self, gradient: Vector) -> Vector:
        """Move the weights; what was subtracted from them."""
        # v = mu v + lr g; w = w - v  (Caffe: solvers/sgd_solver.cpp, ComputeUpdateValue)
        if self._decay:
            gradient += self._decay * self._weights
        gradient *= self._lr
        if self._momentum:
            self._velocity *= self._momentum
            self._velocity += gradient
            gradient = self._velocity
        self._weights -= gradient
        return gradient
