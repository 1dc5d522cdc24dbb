"""Packages that only a part of the work needs: imported when it is done, with the line that installs one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from caffenets.errors import ConfigError


def lacking(module: str, extra: str, what: str, project: str = "caffe-nets") -> str:
    """The sentence that `what` needs this module of an extra; nothing where it can be imported."""
    try:
        import_module(module)
    except ImportError:
        return f"{what} needs the Python package {module}: pip install '{project}[{extra}]'"
    return ""


def needed(module: str, extra: str, what: str, project: str = "caffe-nets") -> Any:
    """The module of an extra. Raises `ConfigError` where it is not installed."""
    if sentence := lacking(module, extra, what, project):
        raise ConfigError(sentence)
    return import_module(module)
