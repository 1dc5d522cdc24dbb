"""skorch: `SpeedoNet` in place of `NeuralNet`, or `class Mine(SpeedoNet, NeuralNetClassifier)`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from skorch import NeuralNet

from speedo.integrations import IN_RUN, SharedLoader, compute_before_step
from speedo.run.script.joined_run import join


class SpeedoNet(NeuralNet):
    """Its `fit` is one worker's loop; each worker validates with all records of its `train_split`."""

    def fit_loop(self, X: Any, y: Any = None, epochs: int | None = None, **options: Any) -> Any:
        self._epochs = epochs or self.max_epochs
        compute_before_step(self.optimizer_)
        with join(self.module_, self.optimizer_) if IN_RUN else nullcontext():
            return super().fit_loop(X, y, epochs, **options)

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        loader = super().get_iterator(dataset, training)
        return SharedLoader(loader, self._epochs) if training and IN_RUN else loader
