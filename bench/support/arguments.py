"""What the command lines of the benches have in common."""

from __future__ import annotations

import argparse


def whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("use 1 or more")
    return number


def seconds(text: str) -> float:
    number = float(text)
    if not 1 <= number <= 3600:
        raise argparse.ArgumentTypeError("use 1 to 3600")
    return number


def size(text: str) -> float:
    number = float(text)
    if not 0.01 <= number <= 1000:
        raise argparse.ArgumentTypeError("use 0.01 to 1000 MB")
    return number


def rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


def parser_for(
    module: str, about: str | None, *, default_rounds: int = 5
) -> argparse.ArgumentParser:
    """A parser with `--rounds` and `--markdown`; `about` is the module's docstring."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=(about or "").splitlines()[0]
    )
    parser.add_argument(
        "--rounds", type=whole, default=default_rounds, metavar="N", help="medians are printed"
    )
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    return parser
