"""Imports Ray without packages that it imports at once, and uses only for what none of our processes does."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Final

# Its dashboard's clients, and the check of a runtime environment.
_LATER: Final = ("requests", "jsonschema")
_WITH_A_CONNECTION: Final = "ray._common.usage.usage_lib"
# For Ray's clients elsewhere. It does not need it: other packages bring it.
_ABSENT: Final = "grpc"


class _Later(ModuleType):
    """In place of a package: it is imported when something of it is first used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def left_for_later() -> Iterator[None]:
    """What is imported in this context gets these packages when it uses them; what is imported afterwards, at once."""
    absent = _ABSENT not in sys.modules
    if absent:
        sys.modules[_ABSENT] = None  # type: ignore[assignment]
    for name in _LATER:
        if name not in sys.modules and (spec := importlib.util.find_spec(name)) is not None:
            sys.modules[name] = _Later(name)
            sys.modules[name].__spec__ = spec
    try:
        yield
    finally:
        if absent:
            sys.modules.pop(_ABSENT, None)
        for name in _LATER:
            if isinstance(sys.modules.get(name), _Later):
                del sys.modules[name]


def import_ray() -> Any:
    """The module `ray`, and what it imports with its first connection."""
    with left_for_later():
        ray = importlib.import_module("ray")
        with suppress(ImportError):  # another Ray has it elsewhere, or needs it not
            importlib.import_module(_WITH_A_CONNECTION)
    return ray
