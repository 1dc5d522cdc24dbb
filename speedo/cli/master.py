"""`speedo master`: trains with workers that join from other machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from speedo.cli.own_scripts import options_of_own
from speedo.cli.run_options import GroupedCommand, master_options, run_options
from speedo.cli.train import run_with
from speedo.config.run_config import RunConfig

if TYPE_CHECKING:  # what a run needs takes a second to import, and a mistake is told before
    from speedo.monitor.console import Progress
    from speedo.run.result import RunResult


@click.command(cls=GroupedCommand)
@run_options
@master_options
def master(token_file: Path | None, **options: Any) -> None:
    """Wait for workers from other machines, train with them, test, export, stop.

    On each node run `speedo worker --master ADDRESS` with the same token file (mode 0600). With --own there is no
    SOLVER: each node brings a script, by `speedo worker --master ADDRESS -- python train.py`.
    """
    if options["own"]:
        options = options_of_own(options)

    def launch(config: RunConfig, watch: Progress) -> RunResult:
        from speedo.actors import launch as launcher

        return launcher.serve_master(config, watch, token_file)

    run_with(launch, options)
