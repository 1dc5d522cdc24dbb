"""The command line: `caffenets show WEIGHTS` and `caffenets diff FIRST SECOND`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from caffenets.errors import NetError
from caffenets.weight_files.stored import shape_text
from caffenets.weights import differences, read_weights

FORMATS = """Formats of weights: .caffemodel and .caffemodel.h5 of Caffe, .onnx, a state dict of PyTorch (.pt, .pth),
and .npz of NumPy. Nothing in a file is run, and no other file is opened. Status: 0 if all is well (diff: the files are
equal), 1 if files differ, 2 for a file that cannot be read."""


def main(words: Sequence[str] | None = None) -> None:
    """Exits with the status of the command; prints the text of a `NetError` without a traceback."""
    parser = argparse.ArgumentParser(
        "caffenets", description="Look into trained weights, without Caffe.", epilog=FORMATS
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    show = commands.add_parser(
        "show", help="names, shapes and sizes of the arrays in a file", epilog=FORMATS
    )
    show.add_argument("weights", type=Path, metavar="WEIGHTS")
    diff = commands.add_parser(
        "diff",
        help="which arrays of two files differ, and how far",
        description="Compares arrays of the same name, value by value.",
        epilog=FORMATS,
    )
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
        one.add_argument("--json", action="store_true", help="a line of JSON for each array")
    asked = parser.parse_args(words)
    try:
        sys.exit(_show(asked) if asked.command == "show" else _diff(asked))
    except NetError as error:
        print(f"caffenets: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `| head`
        sys.stdout = None
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)


def _show(asked: argparse.Namespace) -> int:
    found = read_weights(asked.weights)
    if asked.json:
        for name, one in found.items():
            print(json.dumps({"name": name, "shape": one.shape, "values": one.size}))
        return 0
    width = max(map(len, found), default=0)
    for name, one in found.items():
        print(f"{name:<{width}}  {one.size:>13,}  {shape_text(one.shape)}")
    total = sum(one.size for one in found.values())
    print(f"{len(found):,} arrays, {total:,} values, {4 * total / 1e6:,.1f} MB as float32")
    return 0


def _diff(asked: argparse.Namespace) -> int:
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
