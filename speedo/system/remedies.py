"""What to do about something that is not installed: make in a checkout, pip elsewhere."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from speedo.errors import ConfigError

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


def lacking(module: str, extra: str, what: str) -> str:
    """The sentence that `what` needs this module of an extra; nothing where it can be imported."""
    try:
        import_module(module)
    except ImportError:
        return f"{what} needs the Python package {module}: {install_extra(extra)}"
    return ""


def needed(module: str, extra: str, what: str) -> Any:
    """The module of an extra. Raises `ConfigError` where it is not installed."""
    if sentence := lacking(module, extra, what):
        raise ConfigError(sentence)
    return import_module(module)
