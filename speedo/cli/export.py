"""`speedo export` and `speedo import`: a trained net for other programs, and its weights back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from speedo.cli.page import PagedCommand
from speedo.cli.run_options import PATH, options_named
from speedo.cli.say import complain, say
from speedo.engines.make import is_installed
from speedo.errors import ConfigError
from speedo.system.bounds import EngineName

if TYPE_CHECKING:
    from speedo.engines.make import EngineChoice

FILE: Final = click.Path(path_type=Path)
shape_option: Final = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    help="The sizes of an input whose records are not here, as in data=1x3x227x227.  Repeatable.",
)


@click.command("export", cls=PagedCommand)
@click.argument("model", required=False, type=PATH, metavar="[MODEL|RUN]")
@click.option(
    "--net",
    type=FILE,
    metavar="FILE",
    help="The deploy, train or test prototxt of the model, or a solver.  [default: that of the run]",
)
@click.option(
    "--run", type=FILE, metavar="RUN", help="The run whose net MODEL is of, in place of --net."
)
@click.option("--onnx", type=FILE, metavar="FILE", help="Write an ONNX file.")
@click.option(
    "--torch",
    type=FILE,
    metavar="FILE",
    help="Write a Python module of plain PyTorch, and its state dict beside it (.pt).",
)
@click.option("--deploy", type=FILE, metavar="FILE", help="Write the deploy prototxt.")
@click.option(
    "--transform",
    is_flag=True,
    help="Have --onnx and --torch take records before transform_param: they subtract the mean, and scale.",
)
@shape_option
@options_named("data_root", "ignore_unknown", "engine")
def export(
    model: Path | None,
    net: Path | None,
    run: Path | None,
    onnx: Path | None,
    torch: Path | None,
    deploy: Path | None,
    transform: bool,
    shapes: tuple[str, ...],
    data_root: Path | None,
    ignore_unknown: bool | None,
    engine: EngineName | None,
) -> None:
    """Write MODEL, a .caffemodel, or the model of RUN in another form.

    \b
    speedo export runs/20260101-120000-easgd-ab12 --onnx lenet.onnx --torch lenet.py --deploy deploy.prototxt
    speedo export my.caffemodel --net deploy.prototxt --onnx my.onnx
    speedo export --net train_val.prototxt --shape data=1x3x227x227 --deploy deploy.prototxt

    Of a train or test net the deploy net is exported: inputs in place of data layers, no losses, Softmax where the loss
    had it. Each file is computed at once, on random records and, where the net's data are here, on test records, and
    compared with the engine; the largest difference is printed. Above 1e-4 of the largest output nothing is written.
    """
    from caffenets.export.exporting import Wanted
    from caffenets.inputs import given_shapes
    from speedo.engines.export.export import export as export_model

    given = given_shapes(shapes)
    if net is not None and run is not None:
        raise click.UsageError("give --net or --run, not both")
    weights, net, known = _model(model, net, run)
    unknown = bool(known.get("ignore_unknown") if ignore_unknown is None else ignore_unknown)
    of_run, root = known.get("engine"), known.get("data_root")
    if engine is None and of_run in ("caffe", "torch") and is_installed(of_run):
        engine = of_run
    located = Path(root) if data_root is None and isinstance(root, str) else data_root
    with _engine(engine, located) as (choice, located, scratch):
        wanted = Wanted(onnx, torch, deploy)
        for line in export_model(
            weights, net, wanted, shapes=given, transform=transform, data_root=located, choice=choice,
            scratch=scratch, ignore_unknown=unknown,
        ):  # fmt: skip
            say(line)


@click.command("import", cls=PagedCommand)
@click.argument("file", type=FILE, metavar="FILE")
@click.argument("model", type=FILE, metavar="MODEL.caffemodel")
@click.option(
    "--net",
    type=FILE,
    required=True,
    metavar="FILE",
    help="The prototxt that FILE was exported with.",
)
@shape_option
@options_named("data_root", "ignore_unknown", "engine")
def import_(
    file: Path,
    model: Path,
    net: Path,
    shapes: tuple[str, ...],
    data_root: Path | None,
    ignore_unknown: bool | None,
    engine: EngineName | None,
) -> None:
    """Write MODEL.caffemodel, or MODEL.caffemodel.h5, with the weights of FILE: an .onnx file, or a state dict (.pt).

    \b
    speedo import lenet.onnx --net deploy.prototxt lenet.caffemodel
    speedo import trained.pt --net deploy.prototxt trained.caffemodel

    Parameters are found by the names that `speedo export` gave them, such as conv1.weight. What was exported comes back
    to the bit.
    """
    from caffenets.inputs import given_shapes
    from speedo.engines.export.weights_back import import_weights

    given = given_shapes(shapes)
    with _engine(engine, data_root) as (choice, root, scratch):
        line = import_weights(
            file,
            net,
            model,
            shapes=given,
            data_root=root,
            choice=choice,
            scratch=scratch,
            ignore_unknown=bool(ignore_unknown),
        )
        say(line)


def _model(
    model: Path | None, net: Path | None, run: Path | None
) -> tuple[Path | None, Path, Mapping[str, Any]]:
    """The file of weights, that of the net, and the options of the run that they are of."""
    from speedo.study.scoring.models import models_of, options_of

    if model is None:
        if net is None:
            raise click.UsageError("name a model or a run, or give --net for --deploy alone")
        return None, net, {}
    weights = models_of(_run(model), snapshots=False)[0].path
    if net is not None:
        return weights, net, {}
    of_run = options_of(_run(run or model))
    solver = of_run.get("solver")
    if not isinstance(solver, str):
        raise click.UsageError(f"the net of {model} is not known: give --net, or the run")
    return weights, Path(solver), of_run


def _run(named: Path) -> Path:
    """A file, or the directory of a run. Raises `ConfigError`, `ClusterError`."""
    from speedo.cli.control import run_dir_of

    if named.is_file() or named.is_dir():
        return named
    if named.suffix or len(named.parts) > 1:
        raise ConfigError(f"{named}: there is no such file: name a .caffemodel or a run")
    return run_dir_of(named)


@contextmanager
def _engine(
    engine: EngineName | None, data_root: Path | None
) -> Iterator[tuple[EngineChoice, Path, Path]]:
    """What computes, where data are, and a folder for the files of one export."""
    from speedo.data.roots import default_data_root
    from speedo.run.engine_choice import choice_of
    from speedo.run.scratch import scratch_folder

    choice = choice_of(lambda line: complain(line), engine, device="cpu")
    with scratch_folder() as scratch:
        yield choice, (data_root or default_data_root()).absolute(), scratch
