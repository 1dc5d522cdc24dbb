"""`speedo template`: ready files for Slurm, Kubernetes, KubeRay and systemd."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import click

from speedo.cli.launch import check_options
from speedo.config.run_config import LARGEST_WORKERS
from speedo.deployment import templates
from speedo.deployment.templates import Training

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def template() -> None:
    """Print a file that starts a run on a cluster of that kind, with what to do with it in its first lines.

    \b
    speedo template slurm --nodes 4 --workers 2 -- lenet_solver.prototxt --mode easgd > train.sbatch
    speedo template kubernetes --nodes 3 --image registry/speedo:1.0 -- --max-iter 938 > train.yaml
    speedo template kuberay --nodes 3 --cpus 2 > rayjob.yaml
    speedo template systemd worker --address 10.0.0.5 > speedo-worker.service

    What follows -- is the SOLVER and the options of `speedo master`; they are checked here.
    """


def _common(what: str) -> Callable[[Command], Command]:
    """The options of every kind; `what` is the host or pod that --nodes counts."""
    options = (
        click.option("--name", default="speedo", show_default=True, help="Name of the run there."),
        click.option(
            "--nodes",
            type=click.IntRange(1, LARGEST_WORKERS),
            default=2,
            show_default=True,
            metavar="N",
            help=f"How many {what}s train.",
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
        click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- MASTER OPTIONS]"),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _training(options: tuple[str, ...], **values: Any) -> Training:
    """Raises click's own error, or `ConfigError`, for options that `speedo master` would refuse."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    context = root.command.commands["master"].make_context("master", list(options), parent=root)
    given = {name: value for name, value in context.params.items() if name != "token_file"}
    check_options(given, values["nodes"] * values["workers"])
    return Training(options=tuple(options), **values)


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
def slurm(
    time: str,
    partition: str,
    apptainer: str,
    pyxis: str,
    data_root: str,
    options: tuple[str, ...],
    **values: Any,
) -> None:
    """Print a script for sbatch. Every node needs SpeeDO, or apptainer, or the plugin pyxis."""
    training = _training(options, **values)
    text = templates.slurm(
        training,
        time=time,
        partition=partition,
        apptainer=apptainer,
        pyxis=pyxis,
        data_root=data_root,
    )
    click.echo(text, nl=False)


@template.command(short_help="Jobs for plain Kubernetes.")
@_image()
@_data_claim()
@click.option("--storage", default="1Gi", show_default=True, help="Size of the volume for runs.")
@_common("pod")
def kubernetes(
    image: str, data_claim: str, storage: str, options: tuple[str, ...], **values: Any
) -> None:
    """Print a Job for the master and an indexed Job for its workers, with service, volume and network policy."""
    training = _training(options, **values)
    text = templates.kubernetes(training, image=image, storage=storage, data_claim=data_claim)
    click.echo(text, nl=False)


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
def kuberay(
    image: str, data_claim: str, runs_claim: str, options: tuple[str, ...], **values: Any
) -> None:
    """Print a RayJob: KubeRay makes the cluster, trains with `speedo train --ray auto`, and removes it."""
    training = _training(options, **values)
    text = templates.kuberay(
        training,
        image=image,
        ray_version=version("ray"),
        runs_claim=runs_claim,
        data_claim=data_claim,
    )
    click.echo(text, nl=False)


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
def systemd(
    role: str, address: str, speedo: str, data_root: str, options: tuple[str, ...], **values: Any
) -> None:
    """Print a unit for a master, or for a worker or server that joins each of its runs."""
    training = _training(options, **values)
    text = templates.systemd(
        training, role=role, address=address, speedo=speedo, data_root=data_root
    )
    click.echo(text, nl=False)
