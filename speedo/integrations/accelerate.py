"""Accelerate: `with joined(accelerator, model, optimizer, loader, epochs=3) as loader:` around the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import PartialState
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.utils import send_to_device

from speedo.integrations import IN_RUN, RANK, SharedLoader
from speedo.run.script.joined_run import join


@contextmanager
def joined(accelerator: Any, model: Any, optimizer: Any, loader: Any, epochs: int = 0) -> Any:
    """Train what `accelerator.prepare` returned, as one worker of a run; the first worker alone is the main process.

    The loop iterates `epochs` times over what it yields, 0 if that is not known. Outside of a run all is as without it.
    """
    if not IN_RUN:
        yield loader
        return
    for state in (accelerator.state, PartialState()):
        state.process_index = state.local_process_index = RANK
    with join(model, optimizer):
        yield _PreparedLoader(accelerator, loader, epochs)


class _PreparedLoader(SharedLoader, DataLoaderStateMixin):
    """Does what a prepared loader does, but for reading one batch ahead: Accelerate learns which is the last."""

    def __init__(self, accelerator: Any, loader: Any, epochs: int) -> None:
        super().__init__(getattr(loader, "base_dataloader", loader), epochs)
        self.gradient_state, self._device = accelerator.gradient_state, accelerator.device

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        for number, batch in enumerate(super().__iter__(), 1):
            self.end_of_dataloader = number == len(self)
            yield send_to_device(batch, self._device)
        self.end()
