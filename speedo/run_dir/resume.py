"""Finds the last good checkpoint of a run, to resume it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from speedo.errors import CheckpointError, ConfigError
from speedo.run_dir.checkpoint_file import Counters, checkpoints_in, latest
from speedo.run_dir.directory import CHECKPOINTS, CONFIG


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run to resume from this checkpoint. `problems` names newer ones that are damaged."""

    run_dir: Path
    path: Path
    counters: Counters
    slots: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def iteration(self) -> int:
        return self.counters.iteration

    def notes(self, workers: int) -> list[str]:
        """What is restored and what is not, as lines for the user."""
        counters = self.counters
        restored = f"resumed at iteration {counters.iteration} (version {counters.version}): weights, counters, "
        restored += "learning rate and position in the data"
        with_history = [slot for slot in self.slots if slot < workers]
        if with_history:
            restored += f", solver history of {len(with_history)} of {workers} workers"
            if len(with_history) < workers:
                restored += "; the momentum of the others begins at 0"
        else:
            restored += (
                "; the workers' solver histories are not in the checkpoint: momentum begins at 0"
            )
        return [
            *(f"warning: {problem}; the one before it is used" for problem in self.problems),
            restored,
            "not restored: results in flight, the workers' own weights (easgd), the random numbers of dropout",
        ]


def find_run(folder: Path, *, script: bool = False) -> Resumed:
    """The last good checkpoint of the run in this directory, of a script or a solver.

    Raises `ConfigError`, `CheckpointError`.
    """
    if not os.path.isdir(folder):
        remedy = "give the one that the run printed"
        if folder.name.removesuffix(".h5").endswith(".caffemodel"):
            remedy = "give the .solverstate beside it, or begin a run from it with --weights"
        raise ConfigError(f"resume names {folder}, which is not a run directory; {remedy}")
    if not os.path.isfile(folder / CONFIG):
        raise ConfigError(
            f"resume names {folder}, which holds no run: it has no {CONFIG}; give a run directory"
        )
    if not checkpoints_in(folder / CHECKPOINTS):
        again = "" if script else f", with --config {folder / CONFIG}"
        raise CheckpointError(
            f"{folder} has no checkpoint: the run ended before its first one; start it again{again}"
        )
    path, checkpoint, problems = latest(folder / CHECKPOINTS)
    slots = tuple(sorted(checkpoint.histories))
    return Resumed(folder.resolve(), path, checkpoint.counters, slots, tuple(problems))
