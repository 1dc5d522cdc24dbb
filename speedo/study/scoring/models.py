"""Which models are scored: a file, the model of a run, or all snapshots of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caffenets.files import read_bytes
from speedo.errors import ConfigError
from speedo.run.config.former_run import options_of_run
from speedo.run_dir.directory import BEST, BEST_MODEL, CONFIG, METRICS, MODEL, RESULT
from speedo.run_dir.read_back import read_result

_SNAPSHOT: Final = re.compile(r"_iter_(\d{1,10})\.caffemodel(\.h5)?")


@dataclass(frozen=True, slots=True)
class ScoredModel:
    """A file of weights; `iteration` is the one that it was made at, None if that is not known."""

    path: Path
    iteration: int | None = None


def models_of(weights: Path, *, snapshots: bool) -> list[ScoredModel]:
    """The models that `--weights` names: a file, or of a run its model, or else its newest snapshot.

    With `snapshots` all snapshots of the run, and then its model if that is none of them. Raises `ConfigError`.
    """
    if not weights.is_dir():
        if snapshots:
            raise ConfigError(
                f"--snapshots needs a run, but --weights names the file {weights}; give its run directory"
            )
        if not weights.is_file():
            raise ConfigError(
                f"--weights names {weights}, which does not exist or is no file; give a .caffemodel or a run directory"
            )
        return [
            ScoredModel(weights, best_iteration(weights) if weights.name == BEST_MODEL else None)
        ]
    if not any((weights / name).exists() for name in (METRICS, RESULT, CONFIG)):
        raise ConfigError(f"--weights names {weights}, which is no run directory; give a run")
    found, last = snapshots_in(weights), _last_model(weights)
    if not found and last is None:
        raise ConfigError(
            f"the run in {weights} has no model yet: it is written at its end, and snapshots after every `snapshot` "
            "iterations of the solver"
        )
    if not snapshots:
        return [last if last is not None else found[-1]]
    alone = last is not None and not any(last.path.samefile(one.path) for one in found)
    return [*found, last] if alone and last is not None else found


def snapshots_in(run: Path) -> list[ScoredModel]:
    """The snapshots of a run by iteration."""
    found: dict[int, ScoredModel] = {}
    for path in sorted(run.iterdir()):
        named = _SNAPSHOT.search(path.name)
        if named and named.end() == len(path.name) and path.is_file():
            found[int(named[1])] = ScoredModel(path, int(named[1]))
    return [found[iteration] for iteration in sorted(found)]


def options_of(weights: Path) -> Mapping[str, Any]:
    """The options that a run was started with, of which this is the directory or a model; empty for what is no run.

    Raises `ConfigError`.
    """
    run = weights if weights.is_dir() else weights.parent
    file = run / CONFIG
    is_run = weights.is_dir() or (run / METRICS).is_file()
    if not is_run or not file.is_file():
        return {}
    return options_of_run(file, otherwise="name SOLVER, and nothing is taken from there")


def best_iteration(model: Path) -> int | None:
    """The iteration of the best model of a run, by the file beside it; None if that does not say."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(read_bytes(model.parent / BEST))["iteration"])
    return None


def _last_model(run: Path) -> ScoredModel | None:
    """The model at the end of a run; another place than its directory if that had no room."""
    result = read_result(run / RESULT)
    iteration = None if result is None else int(result["iteration"])
    places = [run / MODEL] + ([] if result is None else [Path(result["model"])])
    return next((ScoredModel(path, iteration) for path in places if path.is_file()), None)
