"""The options of a run of scripts, on one host and on several."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any, Final

from speedo.errors import ConfigError
from speedo.run.config.option_table import rows
from speedo.run.config.run_config import MASTER
from speedo.sgd_modes.registry import PLAIN, RULES, rules_own
from speedo.watch.export import EXPORTS

OPTIONS: Final = (
    *("mode", "rule", "workers", "local_steps", "sync_when", "moving_rate", "delta_scale"),
    *("staleness_scaling", "phases", "batch_division"),
    *dict.fromkeys(name for mode in PLAIN.values() for name in mode.own),
    *dict.fromkeys(name for rule in RULES for name in rules_own(rule)),
    *("compress", "compress_center", "run_dir", "redis", "same_node", "threads", "bind"),
    *("stop_on_divergence", "max_seconds", "target", "patience", "best_by", "timeout"),
    *("join_timeout", "min_workers", "restarts", "master_restarts", "servers", "overlap"),
    *(name for export in EXPORTS for name in export.own if name not in export.of_solvers),
    *("checkpoint_interval", "grace", "take_over", "redis_tls"),
)
# What a script decides itself, or cannot have.
FIXED: Final = {"split_batch": False, "final_test": False, "reshard_after": 0.0}
_ALSO: Final = {"max_iter", "seed", "config_file", "resume"}


def options_of_own(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a run of scripts. Raises `ConfigError` for those that are of a solver's run alone."""
    table = {row.name: row for row in rows()}
    known = {*OPTIONS, *_ALSO, *(name for name, row in table.items() if row.group == MASTER)}
    given = {name for name, value in options.items() if value not in (None, False, ())}
    if foreign := sorted(given - known):
        flags = ", ".join(_flag(name, table[name].flags) for name in foreign)
        raise ConfigError(
            f"{flags}: with --own there is no solver, and what it would set is for the script to decide; leave it out"
        )
    return {**{name: options[name] for name in options if name in known}, **FIXED, "own": True}


def checked_command(command: Sequence[str]) -> tuple[str, ...]:
    """What a command line has after `--`. Raises `ConfigError` for a program that is not there."""
    if command and command[0] not in ("python", "python3") and shutil.which(command[0]) is None:
        raise ConfigError(
            f"{command[0]} is not a program on this host: give one of the PATH, as in -- python train.py"
        )
    return tuple(command)


def _flag(name: str, flags: str) -> str:
    return "SOLVER" if name == "solver" else flags.partition("/")[0].split()[0].rstrip(",")
