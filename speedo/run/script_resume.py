"""What a checkpoint has of a script's run beside weights and counters, and how a run continues from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from speedo.errors import CheckpointError, ClusterError, ConfigError
from speedo.exchange.transfer import put_history
from speedo.master.lease_book import LeaseBook
from speedo.run.script_job import FirstModel
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


def state_bytes(model: FirstModel, leases: Mapping[str, Any]) -> bytes:
    """What `read_former_run` reads in a checkpoint; `leases` is a `LeaseBook.state`."""
    return json.dumps({"model": asdict(model), "leases": leases}).encode()


def read_former_run(path: Path) -> FormerRun:
    """The run in this checkpoint file. Raises `CheckpointError`, and `ConfigError` if it trains no script."""
    checkpoint = read_checkpoint(path)
    if not checkpoint.script:
        raise ConfigError(
            f"{path} is of a run that trains a solver's net: resume it with speedo train --resume"
        )
    try:
        values = json.loads(checkpoint.script)
        model = _MODEL.validate_python(values["model"])
        book = LeaseBook.from_state(values["leases"])
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
