"""Finds what the files of a package declare, so that a new mode, rule, codec and the like is one new file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any


def declared_in(package: str, word: str) -> Iterator[Any]:
    """What the files of this package declare under this name, in the order of the files' names."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        found = importlib.import_module(f"{package}.{module.name}")
        if hasattr(found, word):
            yield getattr(found, word)
