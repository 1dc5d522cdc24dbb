"""What the engines of Caffe and of PyTorch have in common: all that their parameters and test nets suffice for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from speedo.engines.base import RateSchedule
from speedo.engines.evaluation import WHOLE, Part, PartOfTest, combined
from speedo.engines.files import WrittenModel
from speedo.engines.solver_history import history_from
from speedo.errors import EngineError
from speedo.exchange.vector import Blob, Layout, Vector


class SolverEngine(ABC):
    """A part of a `ModelEngine`: `_parameters` are those of its `_net`, `_tests` its test nets, `_type` its solver's.

    Raises `EngineError` for a rank that is none.
    """

    _net: Any
    _parameters: Any
    _tests: Any
    _type: str

    def __init__(self, lr_policy: RateSchedule, rank: int, count: int) -> None:
        if not 0 <= rank < count:
            # Caffe's data layers would look for such a record forever.
            raise EngineError(
                f"rank {rank} of {count}: a rank is 0 or more and less than the count"
            )
        self._schedule = self._own_schedule = lr_policy
        self._batches = 1  # of a step, times iter_size
        self._iteration = 0
        self._closed = False

    @property
    def layout(self) -> Layout:
        """The train net's parameter blobs."""
        layout: Layout = self._parameters.layout
        return layout

    @abstractmethod
    def _open(self) -> AbstractContextManager[None]:
        """Refuse a closed engine; errors of the library become ours."""

    def read_weights(self, out: Vector) -> None:
        """Copy the parameters into `out`."""
        self._parameters.read(out)

    def load_weights(self, vector: Vector) -> None:
        """Copy `vector` into the parameters; test nets share them, the history stays."""
        self._parameters.write(vector)

    def change_weights(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        self._parameters.change(change)

    def set_iteration(self, iteration: int) -> None:
        """The global iteration of the next step, from which the rate follows."""
        self._iteration = iteration

    def evaluate(self) -> Mapping[str, float]:
        """The metrics; `EngineError` without a test net, or if weights or outputs are not finite."""
        metrics = combined([self.evaluate_share(WHOLE)])
        if not metrics:
            raise EngineError("there is no test net with an output: add one and its test_iter")
        return metrics

    def evaluate_share(
        self, share: PartOfTest, passed: Callable[[int], None] = lambda samples: None
    ) -> Part:
        """See `ModelEngine.evaluate_share`.

        An Accuracy layer answers 1.0 for a net full of NaN, so the weights are looked at first.
        """
        with self._open():
            if not self._parameters.are_finite():
                raise EngineError(
                    "the weights are not finite: training has diverged; lower base_lr"
                )
            return self._score(share, passed)

    @abstractmethod
    def _score(self, share: PartOfTest, passed: Callable[[int], None]) -> Part:
        """What the test nets give with the present weights."""

    def test_outputs(self) -> tuple[str, ...]:
        """The names that `evaluate` will give; builds the test nets, but runs none."""
        with self._open():
            return tuple(self._tests.outputs(self._net))

    def save(self, path: Path) -> None:
        """Write the `.caffemodel`, in place by renaming; `EngineError` if it cannot be."""
        self.written(hdf5=False).write(path)

    @abstractmethod
    def written(self, *, hdf5: bool) -> WrittenModel:
        """The `.caffemodel`, or `.caffemodel.h5`, of the present weights; what follows needs no engine."""

    def history_from(self, solverstate: bytes) -> bytes:
        """The content of a `.solverstate` of Caffe's own as a `history`."""
        return history_from(self._type, self.layout, solverstate)
