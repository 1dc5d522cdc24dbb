"""The command line of `caffenets`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from caffenets.costs import BYTES, costs_of
from caffenets.deploy import Deploy
from caffenets.errors import EngineError, NetError, SolverError
from caffenets.export.exporting import Wanted, check_wanted, exported
from caffenets.export.transform import Transform, transforms_of
from caffenets.export.weights_back import import_weights
from caffenets.extras import lacking, needed
from caffenets.files import written_whole
from caffenets.from_onnx.importing import import_net
from caffenets.inputs import SizesError, deployed, given_shapes
from caffenets.nets import (
    about,
    check_net,
    computing,
    net_differences,
    read_deploy,
    read_net,
    search_of,
)
from caffenets.picture import picture
from caffenets.prototxt.text import line_of_layer, to_text
from caffenets.weight_files.stored import Shape, shape_text
from caffenets.weights import differences, read_weights

FORMATS: Final = """A file named .prototxt is a net, in any format that Caffe has had. Other files are weights:
.caffemodel and .caffemodel.h5 of Caffe, .onnx, a state dict of PyTorch (.pt, .pth), .npz of NumPy. Nothing in a file is
run, and no other file is opened. Status: 0 if all is well (diff: the two are equal), 1 if the two differ, 2 for a file
that cannot be read."""

IMPORTS: Final = """examples:
  caffenets import net.onnx --to deploy.prototxt
      writes deploy.prototxt and deploy.caffemodel: a convolutional net in plain layers of BVLC's
      Caffe, for devices whose tools read nothing else. A free batch becomes 1. Both are computed on
      random records, by caffenets and by ONNX Runtime, and the largest difference is printed; above
      1e-4 of the largest output nothing is written. Nodes for which Caffe has no layer are named,
      all of them together, and nothing is written.
  caffenets import net.onnx --shape data=1x3x224x224 --to deploy.prototxt
      the same for a file that leaves height and width open
  caffenets import trained.pt --net deploy.prototxt --to trained.caffemodel
      the weights of a file that `caffenets export` wrote, or of one with the same names (.onnx, .pt,
      .npz), back into a .caffemodel; what was exported comes back to the bit

Files of the name before are replaced. Nothing in a file is run, and no other file is opened."""


def main(words: Sequence[str] | None = None) -> None:
    """Exits with the status of the command; prints the text of a `NetError` without a traceback."""
    asked = _parser().parse_args(words)
    files = [str(getattr(asked, name)) for name in ("file", "first", "second") if name in asked]
    try:
        with about(" or ".join(files)):
            status = asked.do(asked)
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(status)
    except NetError as error:
        print(f"caffenets: {error}", file=sys.stderr)
    except BrokenPipeError:  # `| head`
        sys.stdout = None
        sys.exit(0)
    except OSError as error:  # of the standard output, or of the folder for scratch
        sys.stdout = None
        place = f"{error.filename} " if error.filename else ""
        text = f"{place}cannot be written: {error.strerror or error}; make room"
        print(f"caffenets: {text}", file=sys.stderr)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "caffenets",
        description="Look into nets and weights of Caffe, without Caffe.",
        epilog=FORMATS,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, do: Any, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=f"{text}.", epilog=FORMATS)
        made.set_defaults(do=do)
        return made

    show = command(
        "show",
        _show,
        "List the layers of a net with what each takes, or the arrays of a file of weights",
    )
    show.add_argument("file", type=Path, metavar="FILE")
    show.add_argument(
        "--svg", type=Path, metavar="OUT", help="also write the graph of a net as a picture"
    )
    check = command(
        "check",
        _check,
        "Say what is wrong with a net, with line and remedy: layers, shapes, files and records that it names",
    )
    check.add_argument("file", type=Path, metavar="NET")
    diff = command("diff", _diff, "Say how two nets or two files of weights differ, name by name")
    diff.add_argument("first", type=Path, metavar="FIRST")
    diff.add_argument("second", type=Path, metavar="SECOND")
    diff.add_argument(
        "--within",
        type=float,
        default=0.0,
        metavar="X",
        help="take arrays for equal whose values differ by at most X of the largest (default: 0, equal to the bit)",
    )
    for one in (show, diff):
        one.add_argument(
            "--json", action="store_true", help="a line of JSON for each layer or array"
        )
    upgrade = command("upgrade", _upgrade, "Write a net of an older format of Caffe in today's")
    deploy = command(
        "deploy",
        _write_deploy,
        "Write the deploy net of a train net: inputs for data layers, no losses",
    )
    for one in (upgrade, deploy):
        one.add_argument("file", type=Path, metavar="NET")
        one.add_argument("out", type=Path, metavar="OUT", nargs="?", help="default: print it")
    export = command(
        "export",
        _export,
        "Write a net with its weights for other programs: ONNX, plain PyTorch, a deploy net",
    )
    export.add_argument("file", type=Path, metavar="NET")
    export.add_argument(
        "weights", type=Path, metavar="WEIGHTS", nargs="?", help="a .caffemodel or .caffemodel.h5"
    )
    export.add_argument("--onnx", type=Path, metavar="OUT.onnx", help="an ONNX file")
    export.add_argument(
        "--torch",
        type=Path,
        metavar="OUT.py",
        help="a module of plain PyTorch, and a .pt beside it",
    )
    export.add_argument("--deploy", type=Path, metavar="OUT.prototxt", help="the deploy net")
    back = command(
        "import",
        _import,
        "Write a net of ONNX as a net of Caffe, or weights from elsewhere into a .caffemodel",
    )
    back.epilog = IMPORTS
    back.formatter_class = argparse.RawDescriptionHelpFormatter
    back.add_argument("file", type=Path, metavar="FILE", help=".onnx; with --net .pt or .npz, too")
    back.add_argument(
        "--to", type=Path, required=True, metavar="OUT",
        help="OUT.prototxt, and OUT.caffemodel beside it; with --net a .caffemodel or .caffemodel.h5",
    )  # fmt: skip
    back.add_argument(
        "--net", type=Path, metavar="NET.prototxt", help="the net that FILE was exported of: take its weights alone"
    )  # fmt: skip
    export.add_argument(
        "--transform",
        action="store_true",
        help="have the files subtract the mean and scale, as the net's data layer does to its records",
    )
    for one in (check, export):
        one.add_argument(
            "--data-root",
            type=Path,
            metavar="DIR",
            help="also search here for the files that the net names with relative paths",
        )
    for one in (show, check, deploy, export, back):
        one.add_argument(
            "--shape",
            action="append",
            default=[],
            metavar="NAME=SIZES",
            help="the sizes of an input, the batch among them, where the net does not say them: data=1x3x227x227",
        )
    for one in (show, check, diff, upgrade, deploy, export, back):
        one.add_argument(
            "--ignore-unknown",
            action="store_true",
            help="leave out fields that Caffe does not have, unless one is known to change what a net computes",
        )
    return parser


def _is_net(path: Path) -> bool:
    return path.suffix == ".prototxt"


def _net(path: Path, asked: argparse.Namespace) -> Any:
    left_out: list[str] | None = [] if asked.ignore_unknown else None
    net = read_net(path, left_out)
    for text in left_out or ():
        print(f"caffenets: left out: {text}", file=sys.stderr)
    return net


def _show(asked: argparse.Namespace) -> int:
    if _is_net(asked.file):
        rows, table, end = _shown_net(asked)
    elif asked.svg is not None or asked.shape:
        raise NetError(
            f"{asked.file}: --svg and --shape are for a net, whose name ends in .prototxt"
        )
    else:
        arrays = read_weights(asked.file)
        rows = [{"name": name, "shape": a.shape, "values": a.size} for name, a in arrays.items()]
        table = [(name, shape_text(a.shape), f"{a.size:,}") for name, a in arrays.items()]
        total = sum(one.size for one in arrays.values())
        end = f"{len(rows):,} arrays, {total:,} values, {4 * total / 1e6:,.1f} MB as float32"
    if asked.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    for line in aligned(table):
        print(plain(line))
    print(end)
    return 0


Rows = list[dict[str, Any]]
Table = list[tuple[str, ...]]


def _shown_net(asked: argparse.Namespace) -> tuple[Rows, Table, str]:
    """The deploy net with what each layer takes."""
    deploy = _deploy(asked, given_shapes(asked.shape))
    _draw(deploy.net, asked)
    costs = costs_of(deploy.net)
    table: Table = [("layer", "type", "makes", "parameters", "multiply-adds")]
    for one in costs:
        makes = ", ".join(map(shape_text, one.tops))
        table.append((one.name, one.type, makes, f"{one.parameters:,}", f"{one.multiply_adds:,}"))
    parameters, work = (
        sum(getattr(c, of) for c in costs) for of in ("parameters", "multiply_adds")
    )
    made = sum(one.made_bytes for one in costs)
    end = (
        f"{len(costs):,} layers, {parameters:,} parameters, {work:,} multiply-adds; float32: "
        f"{BYTES * parameters / 1e6:,.1f} MB of parameters, {made / 1e6:,.1f} MB of what layers make"
    )
    return [asdict(one) for one in costs], table, end


def _draw(net: Any, asked: argparse.Namespace) -> None:
    if asked.svg is not None:
        _write(picture(net), asked.svg, asked.file)


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows with columns below each other; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (
            cell.rjust(width) if cell[:1].isdigit() and "x" not in cell else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()


def plain(text: str) -> str:
    """The text without what would steer a terminal: names in a file are a stranger's."""
    return "".join(c if c.isprintable() else f"{c!a}"[1:-1] for c in text)


def _deploy(asked: argparse.Namespace, given: Mapping[str, Shape]) -> Deploy:
    left_out: list[str] | None = [] if asked.ignore_unknown else None
    deploy = read_deploy(asked.file, given, left_out)
    for text in (*(f"left out: {one}" for one in left_out or ()), *deploy.notes):
        print(f"caffenets: {text}", file=sys.stderr)
    return deploy


def _write_deploy(asked: argparse.Namespace) -> int:
    return _write(to_text(_deploy(asked, given_shapes(asked.shape)).net), asked.out, asked.file)


def _diff(asked: argparse.Namespace) -> int:
    if _is_net(asked.first) != _is_net(asked.second):
        raise NetError(
            f"{asked.first} and {asked.second} are a net and weights: give two of a kind"
        )
    if _is_net(asked.first):
        lines = list(net_differences(_net(asked.first, asked), _net(asked.second, asked)))
        for line in lines:
            print(json.dumps({"difference": line}) if asked.json else plain(line))
        return 1 if lines else 0
    first, second = read_weights(asked.first), read_weights(asked.second)
    count = 0
    for one in differences(first, second):
        if one.apart is not None and one.apart <= asked.within:
            continue
        count += 1
        if asked.json:
            print(json.dumps({"name": one.name, "difference": one.text, "apart": one.apart}))
        else:
            print(plain(f"{one.name}: {one.text}"))
    if not asked.json:
        print(f"{count:,} of {len(first.keys() | second.keys()):,} arrays differ")
    return 1 if count else 0


def _export(asked: argparse.Namespace) -> int:
    """The files are compared with what this package computes, and only then written."""
    wanted = Wanted(asked.onnx, asked.torch, asked.deploy)
    check_wanted(wanted, asked.weights)
    needed("torch", "torch", "an export, which is compared with the net,")
    from caffenets.pytorch.trials import TrialsHere, check_computable

    for _, path in wanted:
        _check_out(path, asked.file, asked.weights)
    deploy = _deploy(asked, given_shapes(asked.shape))
    check_computable(deploy.net)
    before = _transforms(asked, deploy) if asked.transform else None
    with TemporaryDirectory() as scratch:
        for line in exported(
            *(replace(deploy, notes=[]), asked.weights, wanted, TrialsHere(), str(asked.file)),
            Path(scratch),
            before=before,
        ):
            print(line)
    return 0


def _import(asked: argparse.Namespace) -> int:
    given, what = given_shapes(asked.shape), "a comparison with the ONNX file"
    lack = lacking("torch", "torch", what) or lacking("onnxruntime", "onnx", what)
    trials: Any = f"not compared: {lack}"
    if asked.net is not None:
        needed("torch", "torch", "an import of weights, which are tried in the net,")
    if asked.net is not None or not lack:
        from caffenets.pytorch.trials import TrialsHere

        trials = TrialsHere()
    with TemporaryDirectory() as scratch:
        if asked.net is None:
            lines = import_net(asked.file, asked.to, given, trials, Path(scratch))
        else:
            net = _net(asked.net, asked)
            lines = import_weights(
                asked.file, asked.to, net, lambda blobs: read_deploy(asked.net, given, blobs=blobs),
                trials, str(asked.net), Path(scratch),
            )  # fmt: skip
        for line in lines:
            print(line)
    return 0


def _transforms(asked: argparse.Namespace, deploy: Deploy) -> Mapping[str, Transform]:
    origin, search = str(asked.file), search_of(asked.file, asked.data_root)
    net = computing(read_net(asked.file, []), origin)
    return transforms_of(net, deploy.inputs, search.require, origin)


def _check(asked: argparse.Namespace) -> int:
    """Status 1 if something is wrong."""
    net, origin, given = _net(asked.file, asked), str(asked.file), given_shapes(asked.shape)
    problems = check_net(net, origin, asked.data_root)
    try:
        costs_of(deployed(computing(net, origin), origin, given).net)
    except SizesError as error:
        print(f"caffenets: shapes are not looked at: {error}", file=sys.stderr)
    except SolverError as error:
        problems = problems or [*error.problems]
    except EngineError as error:
        layer = re.match(r"layer '(.*?)' ", str(error))
        if layer is None or not any(layer[0] in one for one in problems):
            place = "" if layer is None else line_of_layer(origin, layer[1])
            problems.append(f"{origin}{place}: {error}")
    for text in problems:
        print(text)
    print(
        f"{origin}: {len(net.layer):,} layers, {len(problems) or 'no'} problem{'s'[: len(problems) != 1]}"
    )
    return 1 if problems else 0


def _upgrade(asked: argparse.Namespace) -> int:
    return _write(to_text(_net(asked.file, asked)), asked.out, asked.file)


def _check_out(out: Path, *read: Path | None) -> None:
    for one in read:
        if one is not None and out.exists() and out.samefile(one):
            raise NetError(f"{out} is the file that is read: give the new one another name")


def _write(text: str, out: Path | None, read: Path) -> int:
    if out is None:
        print(text, end="")
        return 0
    try:
        _check_out(out, read)
        with written_whole(out) as file:
            file.write(text.encode())
    except OSError as error:
        raise NetError(f"{out} cannot be written: {error.strerror or error}") from error
    return 0
