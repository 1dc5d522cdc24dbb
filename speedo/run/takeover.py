"""What a master takes over from one that died or hung: the newest center that is whole, and the counters at it.

The center is in the run's store, with what the merge rule or the solver's update keeps beside it
(`speedo.master.kept_state`), the counters in the journal (`speedo.master.journal`), which is in Redis where a standby
may take over. What workers keep, a checkpoint has, where they are new processes. Where the store has lost a part of it,
the run is resumed from its newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from speedo.engines.base import ModelEngine
from speedo.errors import CheckpointError, PayloadError, StoreError, StoreUnavailableError
from speedo.exchange.transfer import fetch_vector
from speedo.exchange.vector import Layout
from speedo.master.journal import JournalEntry, entry_of, read_journals
from speedo.master.kept_state import fetch_kept
from speedo.messages import Kind, Merge
from speedo.run.script_job import FirstModel
from speedo.run.settings import RunSettings
from speedo.run_dir.checkpoint_file import Checkpoint, checkpoints_in, latest
from speedo.run_dir.directory import CHECKPOINTS
from speedo.run_dir.metrics_log import keep_published
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.storage.lease import MasterFence


@dataclass
class Takeover:
    """Where a run goes on under another master, once it is asked for the checkpoint to begin from.

    `merges` may be missing in the log. `merged` has the ticket of each worker's last result that is in the center,
    `incarnations` the latest of each slot, `members` the workers that were in the run; `exchanged` are its turns and
    results before. `tests`: a test was under way, which nobody else will make. Without `newest` the run goes back to a
    checkpoint, or to its beginning, and its workers with it. In a run that has a lease, `master_fence` knows the
    journal.
    """

    store: Store
    run_dir: Path
    master_fence: MasterFence | None = None
    merges: tuple[Merge, ...] = ()
    merged: Mapping[int, int] = field(default_factory=dict)
    incarnations: Mapping[int, int] = field(default_factory=dict)
    members: tuple[int, ...] = ()
    exchanged: tuple[int, int] = (0, 0)
    tests: bool = False
    newest: bool = False

    def entries(self, settings: RunSettings) -> list[JournalEntry]:
        """The journal's, the newest first. Raises `StoreError` as `as_checkpoint`."""
        if self.master_fence is None:
            folder = settings.near.folder
            return read_journals(Path(folder)) if folder else []
        entry = entry_of(self.master_fence.entry())
        return [] if entry is None else [entry]

    def as_checkpoint(
        self,
        model: ModelEngine | FirstModel,
        settings: RunSettings,
        history_of: Callable[[bytes], bytes] = bytes,
    ) -> Checkpoint | None:
        """What the former masters of this run have left; None if that is nothing.

        `history_of` makes a history of what is kept of the solver, or raises `PayloadError`. Raises `CheckpointError`;
        `StoreError` if the journal is in a Redis that does not answer.
        """
        layout, entries = model.layout, self.entries(settings)
        self.members = tuple(range(settings.workers))
        if entries:
            self.incarnations, self.members = entries[0].incarnations, entries[0].members
        for entry in entries:
            counters = entry.counters
            if (counters.run, counters.layout) != (settings.run, layout.digest):
                continue
            found = self._found(entry, settings, layout, history_of)
            if found is not None:
                self.merges, self.merged = entry.merges, entry.merged
                self.members, self.exchanged = entry.members, entry.exchanged
                self.tests, self.newest = entry.tests, True
                return self._for_new_workers(found) if settings.moved else found
        kept = self.run_dir / CHECKPOINTS
        return latest(kept)[1] if checkpoints_in(kept) else None

    def _for_new_workers(self, found: Checkpoint) -> Checkpoint:
        """The same with what a checkpoint has of the workers' processes.

        Each has read as much since as the others: what it was alone, nobody has kept.
        """
        if self.master_fence is not None:
            self._cut_log(found.counters.version)
        try:
            _, before, _ = latest(self.run_dir / CHECKPOINTS)
        except CheckpointError:  # there is none that is whole
            return found
        passed = max(0, found.counters.samples - before.counters.samples)
        each = passed // max(1, sum(one.batch_size for one in before.workers.values()))
        workers = {
            slot: replace(one, batches=one.batches + each) for slot, one in before.workers.items()
        }
        return replace(found, workers=workers, histories=before.histories)

    def _cut_log(self, newest: int) -> None:
        """The log may have come from another machine: leave in it what was published, and have the rest made up."""
        assert self.master_fence is not None
        former = map(entry_of, self.master_fence.former_entries())
        merges = {one.version: one for entry in former if entry for one in entry.merges}
        merges |= {one.version: one for one in self.merges}
        self.merges = tuple(merges[version] for version in sorted(merges) if version <= newest)
        try:
            keep_published(self.run_dir, newest, self.merges)
        except OSError as error:
            raise CheckpointError(
                f"{self.run_dir} cannot be written: {error.strerror}; make room there or make it writable"
            ) from None

    def counts(self, worker: int, ticket: int) -> bool:
        """Whether this result of a former master's turn can still be merged."""
        return self.newest and ticket > self.merged.get(worker, 0)

    def _found(
        self,
        entry: JournalEntry,
        settings: RunSettings,
        layout: Layout,
        history_of: Callable[[bytes], bytes],
    ) -> Checkpoint | None:
        """What the store has of the version of this entry, if that is whole."""
        counters, center = entry.counters, layout.zeros()
        run, version = f"{settings.run}:{counters.epoch}", counters.version
        try:
            key = keys.center(run, version)
            header = fetch_vector(self.store, key, layout, Kind.CENTER, center)
            rule, history = (b"", b"") if entry.whole else fetch_kept(self.store, run, version)
            history = history and history_of(history)
        except StoreUnavailableError:
            if self.master_fence is not None:  # it is there: nothing that was seen is to be undone
                raise
            return None
        except (PayloadError, StoreError, CheckpointError):
            return None
        if header.version != version or not np.isfinite(center).all():
            return None
        return Checkpoint(counters, center, history, rule_state=rule, records=entry.records)
