"""The command line: `caffenets show`, `caffenets diff` and `caffenets upgrade`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from caffenets.errors import NetError
from caffenets.files import written_whole
from caffenets.nets import net_differences, read_net
from caffenets.prototxt.text import to_text
from caffenets.weight_files.stored import shape_text
from caffenets.weights import differences, read_weights

FORMATS: Final = """A file named .prototxt is a net, in any format that Caffe has had. Other files are weights:
.caffemodel and .caffemodel.h5 of Caffe, .onnx, a state dict of PyTorch (.pt, .pth), .npz of NumPy. Nothing in a file is
run, and no other file is opened. Status: 0 if all is well (diff: the two are equal), 1 if the two differ, 2 for a file
that cannot be read."""


def main(words: Sequence[str] | None = None) -> None:
    """Exits with the status of the command; prints the text of a `NetError` without a traceback."""
    asked = _parser().parse_args(words)
    try:
        sys.exit(asked.do(asked))
    except NetError as error:
        print(f"caffenets: {error}", file=sys.stderr)
    except BrokenPipeError:  # `| head`
        sys.stdout = None
        sys.exit(0)
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

    show = command("show", _show, "List the layers of a net, or the arrays of a file of weights")
    show.add_argument("file", type=Path, metavar="FILE")
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
    upgrade.add_argument("file", type=Path, metavar="NET")
    upgrade.add_argument("out", type=Path, metavar="OUT", nargs="?", help="default: print it")
    for one in (show, diff, upgrade):
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
    rows: list[dict[str, Any]]
    if _is_net(asked.file):
        layers = _net(asked.file, asked).layer
        rows = [
            {"name": one.name, "type": one.type, "bottoms": [*one.bottom], "tops": [*one.top]}
            for one in layers
        ]
        ways = (f"{', '.join(one.bottom)} -> {', '.join(one.top)}" for one in layers)
        table = [(one.name, one.type, way) for one, way in zip(layers, ways, strict=True)]
        end = f"{len(rows):,} layers"
    else:
        arrays = read_weights(asked.file)
        rows = [{"name": name, "shape": a.shape, "values": a.size} for name, a in arrays.items()]
        table = [(name, f"{a.size:,}", shape_text(a.shape)) for name, a in arrays.items()]
        total = sum(one.size for one in arrays.values())
        end = f"{len(rows):,} arrays, {total:,} values, {4 * total / 1e6:,.1f} MB as float32"
    if asked.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    first, second = (max((len(row[at]) for row in table), default=0) for at in (0, 1))
    for name, kind, rest in table:
        print(f"{name:<{first}}  {kind:<{second}}  {rest}")
    print(end)
    return 0


def _diff(asked: argparse.Namespace) -> int:
    if _is_net(asked.first) != _is_net(asked.second):
        raise NetError(
            f"{asked.first} and {asked.second} are a net and weights: give two of a kind"
        )
    if _is_net(asked.first):
        lines = list(net_differences(_net(asked.first, asked), _net(asked.second, asked)))
        for line in lines:
            print(json.dumps({"difference": line}) if asked.json else line)
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
            print(f"{one.name}: {one.text}")
    if not asked.json:
        print(f"{count:,} of {len(first.keys() | second.keys()):,} arrays differ")
    return 1 if count else 0


def _upgrade(asked: argparse.Namespace) -> int:
    text = to_text(_net(asked.file, asked))
    if asked.out is None:
        print(text, end="")
        return 0
    try:
        with written_whole(asked.out) as out:
            out.write(text.encode())
    except OSError as error:
        raise NetError(f"{asked.out} cannot be written: {error.strerror or error}") from error
    return 0
