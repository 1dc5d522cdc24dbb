"""SpeeDO: trains one Caffe model with many workers on ordinary machines."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speedo.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from speedo.launch.from_python import Cluster
    from speedo.run.result import RunResult
    from speedo.run.script.joined_run import current, join
    from speedo.run_dir.events import (
        CheckpointWritten,
        ModelTested,
        ResultMerged,
        WorkerJoined,
        WorkerLeft,
    )
    from speedo.sgd_modes.base import Strategy
    from speedo.sgd_modes.rules import MergeRule

__version__ = VERSION
__all__ = [
    "CheckpointWritten",
    "Cluster",
    "ModelTested",
    "ResultMerged",
    "WorkerJoined",
    "WorkerLeft",
    "__version__",
    "current",
    "join",
    "train",
]

_LATER = {
    "CheckpointWritten": "speedo.run_dir.events",
    "ModelTested": "speedo.run_dir.events",
    "ResultMerged": "speedo.run_dir.events",
    "WorkerJoined": "speedo.run_dir.events",
    "WorkerLeft": "speedo.run_dir.events",
    "Cluster": "speedo.launch.from_python",
    "current": "speedo.run.script.joined_run",
    "join": "speedo.run.script.joined_run",
}


def __getattr__(name: str) -> Any:
    """What is imported when it is first used, because that takes a while."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def train(
    solver: str | PathLike[str] | None = None,
    *,
    mode: str | Strategy | type[Strategy] = "sync",
    rule: str | MergeRule | type[MergeRule] | None = None,
    workers: int = 2,
    on_result: Callable[[ResultMerged], object] | None = None,
    on_test: Callable[[ModelTested], object] | None = None,
    on_join: Callable[[WorkerJoined], object] | None = None,
    on_leave: Callable[[WorkerLeft], object] | None = None,
    on_checkpoint: Callable[[CheckpointWritten], object] | None = None,
    **options: Any,
) -> RunResult:
    """Train on this machine and return the result; `solver` None is the bundled LeNet on Fashion-MNIST.

    `mode` and `rule` are names, or a class or an object of your own, whose class is in a module. `options` are those of
    `speedo train`, with underscores: `max_iter`, `moving_rate`, `run_dir`, ... . The functions
    `on_...` are called in this thread during the run, soon after their event. What one raises ends the
    run, which exports its model, and is raised here then. Raises `SpeedoError` with what is wrong and what to change.
    """
    from speedo.actors.train_process import train_apart
    from speedo.data.remote.uris import uri_of
    from speedo.run.config.run_config import make_config
    from speedo.run.remote_inputs import fetch_run
    from speedo.study.doctor import require_for
    from speedo.watch.callbacks import Callbacks

    callbacks = Callbacks(on_result, on_test, on_join, on_leave, on_checkpoint)
    given = {"mode": mode, "rule": rule, "workers": workers, **options}
    if solver is not None:
        given["solver"] = Path(solver)
    if (uri := uri_of(given.get("resume"))) is not None:
        folder = given.pop("run_dir", None)
        folder = None if folder is None else Path(folder)
        given["resume"] = fetch_run(uri, folder, lambda line: None)
    config = make_config(given)
    require_for(config)
    return train_apart(config, callbacks)
