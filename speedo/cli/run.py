"""`speedo run`: train with a script of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from speedo.cli.run_options import PATH, GroupedCommand, options_named, ray_options, under
from speedo.cli.train import run_with
from speedo.config.former_run import former_script
from speedo.config.run_config import RUN
from speedo.errors import ConfigError
from speedo.remote.uris import uri_of
from speedo.sgd_modes.registry import RULES, rules_own

if TYPE_CHECKING:
    from speedo.config.run_config import RunConfig
    from speedo.monitor.console import Progress
    from speedo.run.result import RunResult

OPTIONS = (
    *("mode", "rule", "workers", "local_steps", "sync_when", "moving_rate", "delta_scale"),
    *("staleness_scaling", "phases", "backup_workers", "max_advance", "catch_up", "window"),
    *dict.fromkeys(name for rule in RULES for name in rules_own(rule)),
    *("compress", "compress_center", "run_dir", "redis", "same_node", "threads", "bind"),
    *("stop_on_divergence", "max_seconds", "target", "patience", "best_by", "timeout"),
    *("join_timeout", "min_workers", "restarts", "servers", "overlap", "tensorboard"),
    *("metrics_port", "checkpoint_interval", "take_over"),
)
# What a script decides itself, or cannot have.
FIXED = {
    "split_batch": False,
    "final_test": False,
    "reshard_after": 0.0,
}


class ScriptCommand(GroupedCommand):
    """Its words after the script are the script's, and the original had no such command."""

    @staticmethod
    def translate(words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Nothing is translated."""
        return list(words), []


@click.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False})
@options_named(*OPTIONS)
@under(
    RUN,
    "--max-iter",
    type=int,
    metavar="N",
    help="End the run after N batches of all workers together.  [default: the script ends it]",
)
@under(
    RUN,
    "--seed",
    type=int,
    metavar="N",
    help="Of the order of records that are shuffled.  [default: another in each run]",
)
@under(
    RUN,
    "--weights",
    type=PATH,
    metavar="FILE|URI",
    help="Start from these weights instead of worker 0's: the .npz of a run, or a state dict of PyTorch's (.pt).",
)
@under(
    RUN,
    "--resume",
    type=PATH,
    metavar="RUN|URI",
    help="Resume the run in this directory from its last checkpoint. Without SCRIPT its own is run with the same "
    "arguments in the same folder. A run at a URI is fetched first, into --run-dir or runs/NAME.",
)
@ray_options
@click.argument("script", type=PATH, required=False)
@click.argument("arguments", nargs=-1)
def run(script: Path | None, arguments: tuple[str, ...], **options: Any) -> None:
    """Train with a script of your own: SCRIPT, with its ARGUMENTS, is started as every worker.

    In the script `with speedo.join(model, optimizer) as run:` around the loop makes it a worker, and
    `run.share(loader)` gives it its records. Started by itself it is a run of one worker.

    \b
    speedo run --workers 4 --mode easgd --local-steps 10 train.py --epochs 3

    What worker 0 prints is shown here, and the output of each is in the run directory, in logs/. With --ray the
    workers are actors on the nodes of a Ray cluster, of which this machine is one: SCRIPT is then in a folder that
    all of them share.
    The last line of the output is the path of the trained model, an .npz file of NumPy.
    """

    def launch(config: RunConfig, watch: Progress) -> RunResult:
        from speedo.actors import launch as launcher

        return (launcher.train if config.ray is None else launcher.train_on_ray)(config, watch)

    script_of_run = _script(script, arguments, options["resume"])
    run_with(launch, {**options, **FIXED, "own": True, **script_of_run})


def _script(script: Path | None, arguments: tuple[str, ...], resume: Path | None) -> dict[str, Any]:
    """The options with the script: the one that was given, or that of the run to resume, which ran in a folder."""
    if script is not None:
        return {"script": (str(script.absolute()), *arguments)}
    if resume is None:
        raise ConfigError("no script is given; give the path of a Python script")
    if uri_of(resume) is not None:
        raise ConfigError(f"the run {resume} was another's: give SCRIPT and its arguments again")
    words, folder = former_script(resume)
    return {"script": words, "script_folder": folder}
