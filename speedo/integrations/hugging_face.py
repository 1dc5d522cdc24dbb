"""Hugging Face's transformers: `SpeedoTrainer` in place of `Trainer`, or `class Mine(SpeedoTrainer, SFTTrainer)`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from transformers import Trainer

from speedo.errors import ConfigError
from speedo.integrations import IN_RUN, RANK
from speedo.integrations.accelerate import joined
from speedo.run.script.joined_run import current


class SpeedoTrainer(Trainer):
    """Its `train` is one worker's loop; the first worker alone writes checkpoints and logs."""

    def train(self, *args: Any, **options: Any) -> Any:
        """As `Trainer.train`. Raises `ConfigError` for `load_best_model_at_end`."""
        if IN_RUN and self.args.load_best_model_at_end:
            raise ConfigError("leave out load_best_model_at_end: train() ends with the run's model")
        if RANK:
            self.args.save_strategy = "no"
        with ExitStack() as self._joined:
            result = super().train(*args, **options)
            for batch in self.callback_handler.train_dataloader.rest() if IN_RUN else ():
                self.training_step(self.model_wrapped, batch)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return result

    def get_train_dataloader(self) -> Any:
        loader, args = super().get_train_dataloader(), self.args
        if not (IN_RUN and self.is_in_train):
            return loader
        self.create_optimizer()
        epochs = 0 if args.max_steps > 0 or args.num_train_epochs % 1 else args.num_train_epochs
        run = joined(self.accelerator, self.model, self.optimizer, loader, int(epochs))
        return self._joined.enter_context(run)

    def training_step(self, *args: Any, **options: Any) -> Any:
        loss = super().training_step(*args, **options)  # divided by the batches of the step
        if IN_RUN:
            current().report(loss * self.current_gradient_accumulation_steps)
        return loss
