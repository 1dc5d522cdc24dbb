"""What a checkpoint has of a script's run beside weights and counters, and how a run continues from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from speedo.errors import CheckpointError, ClusterError, ConfigError
from speedo.exchange.transfer import put_history
from speedo.master.lease_book import LeaseBook
from speedo.run.script_job import FirstModel
from speedo.run.settings import RunSettings
from speedo.run.takeover import Takeover
from speedo.run_dir.checkpoint_file import Checkpoint, WorkerState, read_checkpoint
from speedo.storage.base import Store

_MODEL: Final = TypeAdapter(FirstModel)
_ALONE: Final = ""  # `WorkerState.share`: the state does not depend on a place in the data


@dataclass(frozen=True, slots=True)
class FormerRun:
    """A script's run as a checkpoint has it: its model, and who trains which records."""

    checkpoint: Checkpoint
    model: FirstModel
    book: LeaseBook

    @property
    def epoch(self) -> int:
        """The first that is not trained to its end."""
        return self.book.first_unsettled

    def for_workers(self, count: int) -> Checkpoint:
        """The checkpoint for this many workers: who has no state in it begins with that of the first who has one."""
        had, none = self.checkpoint.histories, WorkerState(0, 1, 1, 0, _ALONE)
        first = min(had, default=None)
        histories = {} if first is None else {n: had.get(n, had[first]) for n in range(count)}
        workers = dict.fromkeys(histories, none)
        return replace(self.checkpoint, workers=workers, histories=histories)

    def check(self, model: FirstModel) -> None:
        """Raises `ClusterError` with every parameter in which the script's model is another one now."""
        if found := model.differences(self.model.layout):
            raise ClusterError(
                "the checkpoint is of another model: the script has "
                + "; ".join(found)
                + ": resume with the script and arguments that the run was begun with"
            )


def state_of(model: FirstModel, leases: Callable[[], Mapping[str, Any]]) -> Callable[[], bytes]:
    """What says what a checkpoint and the journal have of the script; `leases` is `LeaseBook.state`."""
    text = json.dumps(asdict(model))
    return lambda: f'{{"model": {text}, "leases": {json.dumps(leases())}}}'.encode()


def read_former_run(path: Path) -> FormerRun:
    """The run in this checkpoint file. Raises `CheckpointError`, and `ConfigError` if it trains no script."""
    checkpoint = read_checkpoint(path)
    if not checkpoint.script:
        raise ConfigError(
            f"{path} is of a run that trains a solver's net: resume it with speedo train --resume"
        )
    return _former_run(checkpoint, path)


def former_run(
    path: Path | None, takeover: Takeover | None, settings: RunSettings
) -> FormerRun | None:
    """The run in this file, or what its former masters have left; None if there is neither.

    Raises as `read_former_run` and `Takeover.as_checkpoint`.
    """
    if takeover is None:
        return None if path is None else read_former_run(path)
    model = FirstModel((), 1)  # finds no center
    for entry in takeover.entries(settings):
        with suppress(ValueError, KeyError, TypeError, ValidationError):
            model = _MODEL.validate_python(json.loads(entry.records)["model"])
            break
    checkpoint = takeover.as_checkpoint(model, settings)
    if checkpoint is not None and takeover.newest:
        checkpoint = replace(checkpoint, script=checkpoint.records, records=b"")
    return None if checkpoint is None else _former_run(checkpoint, takeover.run_dir, goes_on=True)


def _former_run(checkpoint: Checkpoint, path: Path, *, goes_on: bool = False) -> FormerRun:
    try:
        values = json.loads(checkpoint.script)
        model = _MODEL.validate_python(values["model"])
        book = LeaseBook.from_state(values["leases"], same_scripts=goes_on)
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise CheckpointError(
            f"{path} is damaged: its section of the script: {error!r:.200}"
        ) from None
    counters = checkpoint.counters
    layout = model.layout
    fits = layout.digest == counters.layout and layout.size == checkpoint.center.size
    if not fits or model.batch < 1:
        raise CheckpointError(f"{path} is damaged: its weights are not those of its model")
    return FormerRun(checkpoint, model, book)


def give_states_back(checkpoint: Checkpoint, store: Store, keyspace: str) -> None:
    """Write the workers' states to the store, where the workers of their slots read them, however late."""
    for slot, state in checkpoint.histories.items():
        put_history(store, keyspace, slot, checkpoint.counters.version, state, expire_s=None)
