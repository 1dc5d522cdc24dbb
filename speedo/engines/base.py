"""The interface to the compute engine: one model with its solver in this process.

The engine does not count the run's iterations: `set_iteration` sets the global iteration of the next step, and with
it the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from speedo.engines.evaluation import Part, PartOfTest
from speedo.engines.files import WrittenModel
from speedo.engines.step_memory import StepMemory
from speedo.exchange.factors import Factors, Product
from speedo.exchange.vector import Blob, Layout, Vector

Done = Callable[[int, int], None]


class RateSchedule(Protocol):
    """The learning rate as a function of the global iteration."""

    def rate(self, iteration: int) -> float:
        """The rate of this iteration."""
        ...

    def from_base(self, lr: float) -> RateSchedule:
        """The same policy from another base rate."""
        ...


def nobody(start: int, stop: int) -> None:
    """Nobody waits for these values."""


class Engine(Protocol):
    """A model and its solver. Vectors are flat float32 of `layout.size` values, owned by the caller."""

    @property
    def layout(self) -> Layout: ...

    @property
    def samples_per_step(self) -> int:
        """Records of one solver step: `batch_size * iter_size` of this engine's own train net."""
        ...

    def read_weights(self, out: Vector) -> None:
        """Copy the parameters into `out`."""
        ...

    def load_weights(self, vector: Vector) -> None:
        """Copy `vector` into the parameters; the solver's history stays."""
        ...

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        """Call `change(blob, place, weights)` for every blob: `weights` is its memory, `place` its part of a vector."""
        ...

    def set_iteration(self, iteration: int) -> None:
        """Set the global iteration of the next step, and so its learning rate; later steps continue from it."""
        ...

    def step(self, n: int, delta: Vector | None = None) -> float:
        """Run `n` solver steps on the next records and return the mean of their losses.

        If `delta` is given, it becomes the sum of the solver's own updates. The difference of the weights before and
        after would contain the rounding of both.
        """
        ...

    def adjust(
        self, lr: float | None, momentum: float | None, weight_decay: float | None, batches: int
    ) -> None:
        """Use these solver values from the next step on; None is the solver's own. Weights and history stay.

        `lr` takes the place of the base rate. A step then takes the mean gradient of `batches` times as many batches.
        """
        ...

    def advance(self, batches: int) -> None:
        """Skip this many batches of the train net's data, as if the engine had trained on them."""
        ...

    def place(self, ranges: Sequence[tuple[int, int]], ahead: int = 0) -> None:
        """Read the records of these ranges next: from the first number to before the second one, whatever the shard.

        As many as `ahead` after the last will probably be wanted then; an engine may prepare for that.
        """
        ...

    def gradient(
        self, n: int, out: Vector, done: Done = nobody, factors: Sequence[Factors] = ()
    ) -> float:
        """Mean raw gradient (no weight decay, no momentum) over `n` batches at the present weights; mean loss.

        BatchNorm's statistics have no gradient: their places hold their change instead, which the net forgets.

        `done(start, stop)` is called as soon as these values are final, while earlier layers still compute: once for
        every blob, those of the last layers first. `factors` are for products of `products()`, with `n` times their
        rows; they are filled instead of the products' places in `out`, which are left alone.
        """
        ...

    def products(self) -> tuple[Product, ...]:
        """The weights of inner products whose gradient `gradient` can give as factors."""
        ...

    def apply_gradient(self, vector: Vector) -> None:
        """One update of the solver (clipping, weight decay, momentum) with this raw gradient."""
        ...

    def evaluate(self) -> Mapping[str, float]:
        """Mean of each output of the test net(s) over `test_iter` batches: `accuracy`, `loss`, ...

        With several test nets the names of net `k` (from the second) are prefixed `test{k}/`.
        """
        ...

    def save(self, path: Path) -> None:
        """Write a `.caffemodel` that any Caffe loads; whole or not at all."""
        ...

    def history(self) -> bytes:
        """The solver's own state (momentum and the like), to be given to `load_history` of an equal engine."""
        ...

    def load_history(self, state: bytes) -> None:
        """Take over `history()`; raises `EngineError` if it is not of this solver."""
        ...

    def close(self) -> None:
        """Free what the engine holds; may be called twice."""
        ...


class ModelEngine(Engine, Protocol):
    """What a run asks of an engine of Caffe's nets besides: its files, shares of tests, shapes."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each blob between the layers of the train net, by its name."""
        ...

    def memory(self) -> StepMemory:
        """What a step takes, from shapes alone: nothing is computed."""
        ...

    def next_batch(self) -> Mapping[str, Vector]:
        """Read the next batch, and compute nothing: the tops of the data layers by their names, in their own shapes."""
        ...

    def copy_from(self, path: Path) -> None:
        """Copy the parameters of a `.caffemodel`, matching layers by name."""
        ...

    def written(self, *, hdf5: bool) -> WrittenModel:
        """The `.caffemodel`, or `.caffemodel.h5`, of the present weights; what follows needs no engine."""
        ...

    def history_from(self, solverstate: bytes) -> bytes:
        """The content of a `.solverstate` of Caffe's own as a `history`."""
        ...

    def evaluate_share(
        self, share: PartOfTest, passed: Callable[[int], None] = lambda samples: None
    ) -> Part:
        """This share of a test, to be `combined` with the others; `EngineError` if weights are not finite.

        `passed` is called after every batch with its records.
        """
        ...

    def test_outputs(self) -> tuple[str, ...]:
        """The names that `evaluate` will give."""
        ...
