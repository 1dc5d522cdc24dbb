"""PyTorch Lightning, of the package lightning or pytorch_lightning: `Trainer(strategy=SpeedoStrategy())`."""

from __future__ import annotations

import sys
from collections import OrderedDict
from contextlib import ExitStack
from typing import Any

from speedo.errors import ConfigError
from speedo.integrations import IN_RUN, RANK, SharedLoader, compute_before_step
from speedo.run.script.joined_run import join

if "pytorch_lightning" in sys.modules:  # both may be installed
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl


class SpeedoStrategy(pl.strategies.SingleDeviceStrategy):
    """Makes `Trainer.fit` one worker's loop, on one device; the first worker alone writes checkpoints and logs.

    `fit` raises `ConfigError` for more than one training loader.
    """

    is_global_zero = RANK == 0

    def __init__(self, device: str = "cpu", **options: Any) -> None:
        super().__init__(device, **options)
        self._joined = ExitStack()
        if IN_RUN:
            self.global_rank = pl.utilities.rank_zero.rank_zero_only.rank = RANK

    def process_dataloader(self, dataloader: Any) -> Any:
        trains = IN_RUN and self.lightning_module.trainer.training
        return SharedLoader(dataloader) if trains else dataloader

    def on_train_start(self) -> None:
        if not IN_RUN:
            return
        trainer, optimizers = self.lightning_module.trainer, self.optimizers
        if not isinstance(loader := trainer.train_dataloader, SharedLoader):
            raise ConfigError("a run divides one data set: give the Trainer one training loader")
        if trainer.max_steps < 0 < trainer.max_epochs:
            loader.epochs = trainer.max_epochs - trainer.current_epoch
        for one in optimizers:
            compute_before_step(one, trainer.accumulate_grad_batches)
        optimizer = optimizers[0] if len(optimizers) == 1 else optimizers
        self._joined.enter_context(join(self.lightning_module, optimizer))

    def on_train_end(self) -> None:
        module, trainer = self.lightning_module, self.lightning_module.trainer
        loop = trainer.fit_loop.epoch_loop
        for number, batch in enumerate(trainer.train_dataloader.rest() if IN_RUN else ()):
            given = loop._build_kwargs(OrderedDict(), self.batch_to_device(batch), number)
            if module.automatic_optimization:
                loop.automatic_optimization.run(self.optimizers[0], number, given)
            else:
                loop.manual_optimization.run(given)
        self._joined.close()

    def on_exception(self, exception: BaseException) -> None:
        self._joined.__exit__(type(exception), exception, exception.__traceback__)
