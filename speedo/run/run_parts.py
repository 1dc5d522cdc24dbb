"""What a run has before its model is known: its places, its status, its directory and its store."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from speedo.master.slots import Roster
from speedo.run.config.run_config import RunConfig
from speedo.run.script_job import NO_LIMIT, ScriptJob
from speedo.run.settings import RunSettings
from speedo.run_dir.checkpoint_file import Checkpoint
from speedo.run_dir.fence import Fence
from speedo.storage.base import Store, remove_run
from speedo.storage.lease import MasterFence
from speedo.watch.status import Status, StatusBoard


@dataclass(frozen=True, slots=True)
class RunParts:
    """Where a run keeps its things, who is in it, and how it goes."""

    settings: RunSettings
    run_dir: Path
    store: Store
    fence: Fence
    roster: Roster
    board: StatusBoard
    records: int | None = None  # for training
    master_fence: MasterFence | None = None  # of a run that a standby may take over

    def status(self) -> Status:
        """The present state; from any thread."""
        return self.board.status(time.monotonic())

    def end(self) -> None:
        """The run is over."""
        self.board.state, self.board.over = "finished", True

    def clean_store(self) -> None:
        """Remove the keys of this run from the store; it may be the user's own server.

        A master that has been replaced removes nothing: its successor does. Raises `FencedError` then.
        """
        self.fence.require()
        remove_run(self.store, self.settings.run, self.settings.epoch)


def run_parts(
    config: RunConfig,
    settings: RunSettings,
    run_dir: Path,
    store: Store,
    records: int | None,
    resume: Checkpoint | None = None,
    master_fence: MasterFence | None = None,
) -> RunParts:
    """The parts of a run of this many `records`, which may continue from the checkpoint `resume`."""
    spec, share = settings.spec, settings.data_share
    roster = Roster(
        settings.batch_sizes,
        spec.iter_size,
        resumed=dict(resume.workers) if resume else {},
        version=resume.counters.version if resume else 0,
        share=share,
        records=records,
    )
    max_iter = 0 if spec.max_iter == NO_LIMIT else spec.max_iter
    # In `own` the hosts say how many records there are.
    board = StatusBoard(config.mode, max_iter, spec.batch, None if share == "own" else records)
    board.master_restarts = settings.master_restarts
    board.counted = "samples" if isinstance(spec, ScriptJob) else "images"
    board.given_up.shards = roster.sharding.count
    held = (lambda: None) if master_fence is None else master_fence.require
    fence = Fence(run_dir, settings.epoch, time.monotonic, held)
    return RunParts(settings, run_dir, store, fence, roster, board, records, master_fence)
