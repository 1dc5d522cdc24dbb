"""What to do about something that is not installed: make in a checkout, pip elsewhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from caffenets import extras

CHECKOUT: Final = Path(__file__).resolve().parents[2]


def in_checkout() -> bool:
    """Whether this package is that of a checkout, with the Makefile that sets it up."""
    return (CHECKOUT / "Makefile").is_file() and (CHECKOUT / "scripts" / "setup.sh").is_file()


def install_pycaffe() -> str:
    """How pycaffe comes to this machine."""
    if in_checkout():
        return "run `make setup` on this node"
    return (
        "install the wheel of pycaffe that a checkout of SpeeDO builds (pip install pycaffe-*.whl)"
    )


def install_extra(extra: str) -> str:
    """How what this extra of `pyproject.toml` brings comes to this machine."""
    return f"pip install 'speedo[{extra}]'"


lacking = partial(extras.lacking, project="speedo")
needed = partial(extras.needed, project="speedo")
