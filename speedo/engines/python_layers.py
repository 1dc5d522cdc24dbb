"""Imports the modules of Python layers, and decides which modules a prototxt may name.

Every process of a run imports the modules that a prototxt names, which runs their code. So a module is accepted only
from the solver's own folder; other installed modules must be allowed by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Collection
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from speedo.engines.native_failures import describe_exception
from speedo.errors import EngineError


def import_python_layers(parameter: Any, folder: Path | None, allowed: Collection[str]) -> None:
    """Import the modules of all Python layers in a SolverParameter: Caffe would lose the exception.

    `allowed` names modules or packages from anywhere. Raises `EngineError` naming layer, module and remedy,
    before anything is imported where a module is not allowed.
    """
    nets = (parameter.train_net_param, parameter.net_param, *parameter.test_net_param)
    layers = [layer for net in nets for layer in net.layer if layer.type == "Python"]
    if layers and folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    for layer in layers:
        _check(layer, folder, allowed)
    for layer in layers:
        _import(layer, folder)


def _check(layer: Any, folder: Path | None, allowed: Collection[str]) -> None:
    """Only the top-level package is looked up: looking up a module inside it would import it."""
    module = str(layer.python_param.module)
    top = module.partition(".")[0]
    found = _find(top)
    if found is None:
        raise _missing(layer, folder)
    if any(module == name or module.startswith(f"{name}.") for name in allowed):
        return
    places = [found.origin] if found.origin else list(found.submodule_search_locations or ())
    outside = [place for place in places if folder is None or not _is_in(place, folder)]
    if outside or not places:
        raise EngineError(
            f"layer {layer.name!r} names the Python module {module!r}, which is not in "
            f"{_folder(folder)} ({outside[0] if outside else 'it has no file'}); "
            f"if you trust it, allow it with --python-layers {module}"
        )


def _find(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a module that was made by hand has no specification
        return None


def _is_in(place: str, folder: Path) -> bool:
    """Links are resolved: a link in the folder may point to another user's file."""
    return Path(place).resolve().is_relative_to(folder.resolve())


def _import(layer: Any, folder: Path | None) -> None:
    module, name = str(layer.python_param.module), str(layer.python_param.layer)
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _failed(layer, error) from error
        raise _missing(layer, folder) from error
    except Exception as error:
        raise _failed(layer, error) from error
    if not hasattr(imported, name):
        raise EngineError(
            f"layer {layer.name!r}: the Python module {module!r} ({imported.__file__}) has no class {name!r}; "
            "correct python_param, or define the class there"
        )


def _failed(layer: Any, error: BaseException) -> EngineError:
    return EngineError(
        f"layer {layer.name!r}: the Python module {layer.python_param.module!r} cannot be imported, correct it: "
        f"{describe_exception(error)}"
    )


def _missing(layer: Any, folder: Path | None) -> EngineError:
    module = str(layer.python_param.module)
    return EngineError(
        f"layer {layer.name!r} names the Python module {module!r}, which is not found: put it into "
        f"{_folder(folder)} on every node, or install it there and allow it with --python-layers {module}"
    )


def _folder(folder: Path | None) -> str:
    return f"the solver's folder {folder}" if folder is not None else "the solver's folder"
