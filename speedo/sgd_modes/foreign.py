"""Modes and rules that are not part of the package: of an installed package, or a file of the user's.

An installed package names them in its entry points `speedo.modes` and `speedo.rules`; others are given as
`package.module:Class`. The module is looked for among the installed ones, and then in the folder of the command.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, TypeVar

from speedo.errors import ConfigError
from speedo.sgd_modes.base import Mode, options_of
from speedo.sgd_modes.rules import AddDelta, AverageDeltas, MergeRule

MODE_ENTRIES: Final = "speedo.modes"
RULE_ENTRIES: Final = "speedo.rules"
BROKEN: Final[dict[str, str]] = {}  # why, by the name of the entry point
Thing = TypeVar("Thing", Mode, type[MergeRule])
_entries = cache(entry_points)  # it reads the folders of all packages
_FORM: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_STRATEGY: Final = ("on_join", "on_result", "on_leave")


def is_foreign(name: object) -> bool:
    """Whether a name of a mode or rule says where it is."""
    return isinstance(name, str) and ":" in name


def place_in(text: str) -> str:
    """The place of a class with which the text begins, before its end or a colon; empty for none."""
    found = _FORM.match(text)
    return found[0] if found is not None and text[found.end() :][:1] in ("", ":") else ""


def look_in(folders: str) -> None:
    """Let modules of these folders be found, after all others: no file there takes the place of an installed module.

    Between folders is what is between them in PYTHONPATH.
    """
    sys.path += [one for one in folders.split(os.pathsep) if one and one not in sys.path]


def look_here() -> None:
    """Let modules of the working directory be found, if it is still there."""
    with suppress(OSError):
        look_in(os.getcwd())


def folders_of(*places: str) -> str:
    """The folders in which the modules of these classes, which are imported, were found; as `look_in` takes them."""
    found = dict[str, None]()
    for place in places:
        name = place.partition(":")[0]
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            path = Path(file).absolute()
            found[str(path.parents[name.count(".") + (path.stem == "__init__")])] = None
    return os.pathsep.join(found)


@cache
def mode_at(place: str) -> Mode:
    """The mode at `package.module:Class`. Raises `ConfigError`."""
    return as_mode(place, _found(place))


@cache
def rule_at(place: str) -> type[MergeRule]:
    """The rule at `package.module:Class`. Raises `ConfigError`."""
    return as_rule(place, _found(place))


def place_of(made: type) -> str:
    """Where a class is, as `package.module:Class`. Raises `ConfigError` for one that other processes cannot import."""
    if made.__module__ == "__main__" or "<locals>" in made.__qualname__:
        raise ConfigError(
            f"class {made.__qualname__} is of the program itself, and other processes of the run cannot import it; put "
            "it into a module, a file of its own, on its upper level"
        )
    return f"{made.__module__}:{made.__qualname__}"


def installed(
    group: str, made: Callable[[str, Any], Thing], taken: Collection[str]
) -> dict[str, Thing]:
    """What installed packages have under their entry points, by name; what cannot be used is in `BROKEN`.

    `made` makes a mode or a rule of it; `taken` are the names of ours.
    """
    found: dict[str, Thing] = {}
    for entry in _entries().select(group=group):
        try:
            if entry.name in (*taken, *found):
                raise ConfigError("there is another one of this name")
            thing = made(entry.name, entry.load())
            options_of(getattr(thing, "schedule", thing))  # they can be read
            found[entry.name] = thing
        except Exception as error:  # of a package that a run need not use
            BROKEN[entry.name] = (
                f"{entry.name} of the installed {entry.value} cannot be used: {error}"
            )
    return found


def as_mode(name: str, found: Any) -> Mode:
    """A mode as it is declared, or of a class of strategies. Raises `ConfigError`.

    Of such a class `rounds` is taken from its attribute, and the usual rule follows from that.
    """
    if isinstance(found, Mode):
        return found
    lacking = [method for method in _STRATEGY if not callable(getattr(found, method, None))]
    if not isinstance(found, type) or lacking:
        what = f"it has no {lacking[0]}" if lacking else "it is no class"
        raise ConfigError(
            f"mode {name} cannot be used: {what}; give a class with {', '.join(_STRATEGY)}, or a Mode "
            "(docs/modes.md, your own mode)"
        )
    rounds = bool(getattr(found, "rounds", False))
    return Mode(name, found, (AverageDeltas if rounds else AddDelta,), "", 0, rounds=rounds)


def as_rule(name: str, found: Any) -> type[MergeRule]:
    """The class of a rule. Raises `ConfigError`."""
    if isinstance(found, type) and issubclass(found, MergeRule):
        return found
    raise ConfigError(
        f"rule {name} cannot be used: it is no class made from speedo.sgd_modes.rules.MergeRule (docs/modes.md, your "
        "own rule)"
    )


def _found(place: str) -> Any:
    if not _FORM.fullmatch(place):
        raise ConfigError(f"{place!r} is no place of a class; use package.module:Class")
    name, _, inside = place.partition(":")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{place}: there is no module {error.name}, neither installed nor in the folder of the command; run it "
                "in the folder that has it"
            ) from None
        raise ConfigError(f"{place}: {name} cannot be imported: {error}") from None
    except Exception as error:
        raise ConfigError(
            f"{place}: {name} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    for part in inside.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise ConfigError(f"{place}: {name} has no {inside}")
    return found
