"""`speedo run`: train with a script of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from speedo.cli.own_scripts import FIXED, OPTIONS
from speedo.cli.run_options import (
    IN_SIGHT,
    PATH,
    RunCommand,
    no_translation,
    options_for,
    ray_options,
)
from speedo.cli.train import run_with
from speedo.data.remote.uris import uri_of
from speedo.errors import ConfigError
from speedo.run.config.former_run import former_script
from speedo.run.config.run_config import ENDING, FILES
from speedo.system.bounds import Option

# What these say of a solver's run is another thing of a script's.
_WORDS: Final = {
    "max_iter": Option(
        "End the run after N batches of all workers together.",
        usual="the script ends it",
        group=ENDING,
    ),
    "seed": Option(
        "Seed of the order of shuffled records.", usual="another in each run", group=FILES
    ),
    "weights": Option(
        "Start from these weights instead of worker 0's: the .npz of a run, or a state dict of PyTorch's (.pt).",
        group=FILES,
        metavar="FILE|URI",
    ),
    "resume": Option(
        "Resume the run in this directory from its last checkpoint. Without SCRIPT, the script of that run is started "
        "with the same arguments in the same folder. A run at a URI is fetched first, into --run-dir or runs/NAME.",
        group=FILES,
        metavar="RUN|URI",
    ),
}


@click.command(
    cls=RunCommand,
    translate=no_translation,
    in_sight=IN_SIGHT,
    context_settings={"allow_interspersed_args": False},
)
@options_for(lambda row: row.name in (*OPTIONS, *_WORDS), words=_WORDS)
@ray_options
@click.argument("script", type=PATH, required=False)
@click.argument("arguments", nargs=-1)
def run(script: Path | None, arguments: tuple[str, ...], **options: Any) -> None:
    """Train with a script of your own: each worker is a process of SCRIPT with its ARGUMENTS.

    In the script, `with speedo.join(model, optimizer) as run:` around the loop makes it a worker, and
    `run.share(loader)` gives it its records. Without `speedo run` the script is a run of one worker.

    \b
    speedo run --workers 4 --mode easgd --local-steps 10 train.py --epochs 3

    The output of worker 0 is shown; the output of each worker is in the run directory, in logs/. The last line is the
    path of the trained model, an .npz file of NumPy. With --ray the workers are actors on the nodes of a Ray cluster;
    this machine must be one of them, and SCRIPT in a folder that all nodes share.
    """

    script_of_run = _script(script, arguments, options["resume"])
    run_with({**options, **FIXED, "own": True, **script_of_run})


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
