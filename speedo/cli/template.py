"""`speedo template`: ready files for Slurm, Kubernetes, KubeRay and systemd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from speedo.cli.launch import check_options
from speedo.cli.page import output_option
from speedo.cli.say import put
from speedo.launch.job_files import templates
from speedo.launch.job_files.templates import TrainingJob
from speedo.run.config.run_config import LARGEST_WORKERS

Make = Callable[..., Any]


@click.group()
def template() -> None:
    """Print a file that starts a run on a cluster of that kind; its first lines say how to use it.

    \b
    speedo template slurm --nodes 4 --workers 2 -o train.sbatch -- lenet_solver.prototxt --mode easgd
    speedo template kubernetes --nodes 3 --image registry/speedo:1.0 -o train.yaml -- --max-iter 938
    speedo template kuberay --nodes 3 --cpus 2 -o rayjob.yaml
    speedo template systemd worker --address 10.0.0.5 -o speedo-worker.service

    After -- come SOLVER and options of `speedo master`; they are checked here.
    """


def _common(what: str) -> Callable[[Make], Make]:
    """Write what the function makes of the training; `what` is the host or pod that --nodes counts."""
    options = (
        click.option("--name", default="speedo", show_default=True, help="Name of the run there."),
        click.option(
            "--nodes",
            type=click.IntRange(1, LARGEST_WORKERS),
            default=2,
            show_default=True,
            metavar="N",
            help=f"Number of {what}s.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1, LARGEST_WORKERS),
            default=1,
            show_default=True,
            metavar="N",
            help=f"Workers of each {what}.",
        ),
        click.option(
            "--cpus",
            type=click.IntRange(1, 1024),
            default=1,
            show_default=True,
            metavar="N",
            help="Cores, and BLAS threads, of each worker.",
        ),
        click.option("--memory", default="4Gi", show_default=True, help=f"Memory of each {what}."),
        output_option,
        click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- MASTER OPTIONS]"),
    )

    def add(make: Make) -> Make:
        @wraps(make)
        def command(output: Path | None, options: tuple[str, ...], **values: Any) -> None:
            common = {
                one.name: values.pop(one.name) for one in fields(TrainingJob) if one.name in values
            }
            put(make(_training(options, **common), **values), output)

        for option in reversed(options):
            command = option(command)
        return command

    return add


def _training(options: tuple[str, ...], **values: Any) -> TrainingJob:
    """Raises click's own error, or `ConfigError`, for options that `speedo master` would refuse."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    context = root.command.commands["master"].make_context("master", list(options), parent=root)
    given = {name: value for name, value in context.params.items() if name != "token_file"}
    check_options(given, values["nodes"] * values["workers"])
    return TrainingJob(options=tuple(options), **values)


_image = partial(
    click.option, "--image", default="speedo", show_default=True, help="The container image."
)
_data_claim = partial(
    click.option,
    "--data-claim",
    default="",
    metavar="NAME",
    help="Volume claim with the data, mounted read-only.  [default: the data in the image]",
)


@template.command(short_help="A script for sbatch.")
@click.option("--time", default="04:00:00", show_default=True, help="Time limit of the job.")
@click.option("--partition", default="", metavar="NAME", help="Partition of the job.")
@click.option("--apptainer", default="", metavar="FILE", help="Run this image file with apptainer.")
@click.option(
    "--pyxis", default="", metavar="IMAGE", help="Run this image with srun's --container-image."
)
@click.option(
    "--data-root",
    default="",
    metavar="DIR",
    help="Last folder searched for relative data paths, on every node.",
)
@_common("node")
def slurm(training: TrainingJob, **values: str) -> str:
    """Print a script for sbatch. Every node needs SpeeDO, or apptainer, or the plugin pyxis."""
    return templates.slurm(training, **values)


@template.command(short_help="Jobs for plain Kubernetes.")
@_image()
@_data_claim()
@click.option("--storage", default="1Gi", show_default=True, help="Size of the volume for runs.")
@_common("pod")
def kubernetes(training: TrainingJob, **values: str) -> str:
    """Print a Job for the master and an indexed Job for its workers, with service, volume and network policy."""
    return templates.kubernetes(training, **values)


@template.command(short_help="A RayJob for KubeRay.")
@_image()
@_data_claim()
@click.option(
    "--runs-claim",
    default="speedo-runs",
    show_default=True,
    metavar="NAME",
    help="Volume claim for run directories.",
)
@_common("pod")
def kuberay(training: TrainingJob, **values: str) -> str:
    """Print a RayJob: KubeRay makes the cluster, trains with `speedo train --ray auto`, and removes it."""
    return templates.kuberay(training, ray_version=version("ray"), **values)


@template.command(short_help="A unit for systemd.")
@click.argument("role", type=click.Choice(("master", "worker", "server")))
@click.option("--address", required=True, metavar="HOST", help="Address of the master.")
@click.option(
    "--speedo",
    default="/opt/speedo/bin/speedo",
    show_default=True,
    metavar="FILE",
    help="The command on that machine.",
)
@click.option("--data-root", default="", metavar="DIR", help="Folder of the data.")
@_common("machine")
def systemd(training: TrainingJob, **values: str) -> str:
    """Print a unit for a master, or for a worker or server that joins each of its runs."""
    return templates.systemd(training, **values)
