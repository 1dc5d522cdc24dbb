"""The written forms of options: a YAML file, and `--phase` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from caffenets.files import read_bytes
from speedo.errors import ConfigError
from speedo.sgd_modes.conditions import check_condition
from speedo.sgd_modes.foreign import place_in
from speedo.sgd_modes.registry import PLAIN
from speedo.system.bounds import said, whole_number

MOST_BYTES: Final = 100_000  # of a file of options; PyYAML takes a second for this many
MOST_LEVELS: Final = 12


def parse_phase(text: str) -> dict[str, Any]:
    """Parse `easgd:1000,moving_rate=0.3,local_steps=1,10@500` into the mapping that a YAML file would hold.

    After the colon there may be a condition, as in `sync:accuracy>=0.8`. A mode of the user's has a colon of its own:
    `mine:MyMode:500`.
    """
    head, *options = text.split(",")
    mode, colon, end = head.partition(":")
    if mode not in PLAIN and (place := place_in(head)):
        mode, (_, colon, end) = place, head.removeprefix(place).partition(":")
    phase: dict[str, Any] = {"mode": mode.strip()}
    if (count := whole_number(end)) is not None:
        phase["iterations"] = count
    elif colon and not check_condition("until", end):
        phase["until"] = end.strip()
    elif colon:
        raise ConfigError(
            f"phase {said(text)} is not of the form MODE:ITERATIONS[,OPTION=VALUE...] or MODE:CONDITION[,...]; "
            "for example --phase sync:500 or --phase 'sync:accuracy>=0.8,local_steps=10'"
        )
    last = ""
    for option in options:
        if last == "local_steps" and "@" in option and "=" not in option:  # its comma is no end
            phase[last] += f",{option.strip()}"
            continue
        name, equals, value = option.partition("=")
        if not equals:
            raise ConfigError(
                f"phase {said(text)}: {option!r} is not of the form OPTION=VALUE; for example moving_rate=0.3"
            )
        key = name.strip().replace("-", "_")
        if key in phase:
            raise ConfigError(f"phase {said(text)} gives {key} twice; keep one")
        phase[key] = value.strip()
        last = key
    return phase


def read_options(file: Path) -> dict[str, Any]:
    """The options in this file; raises `ConfigError` with the line of what is no YAML, or YAML that is not accepted."""
    try:
        loaded = load_text(read_bytes(file, MOST_BYTES))
    except OSError as error:
        raise ConfigError(
            f"the configuration {file} cannot be read ({error.strerror}); correct --config"
        ) from None
    except ConfigError as error:
        raise ConfigError(
            f"the configuration {file}: {error}; write one 'option: value' per line"
        ) from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"the configuration {file} contains no options; write one 'option: value' per line"
        )
    options: dict[str, Any] = {}
    for name, value in loaded.items():
        option = str(name).replace("-", "_")
        if option in options:
            raise ConfigError(f"the configuration {file} has {option} twice; keep one")
        options[option] = value
    return options


def load_text(text: str | bytes) -> Any:
    """The values in a text of YAML; raises `ConfigError` with the line of what is none, or is not accepted."""
    try:
        return yaml.load(text, PlainLoader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "it" if mark is None else f"line {mark.line + 1}"
        why = getattr(error, "problem", None) or str(error).partition(";")[0].splitlines()[0]
        what = "cannot be used" if isinstance(error, _Refused) else "is not YAML"
        raise ConfigError(f"{where} {what}: {why}") from None


class _Refused(yaml.MarkedYAMLError):
    """A feature of YAML that is not accepted."""

    def __init__(self, problem: str, at: Any) -> None:
        super().__init__(problem=problem, problem_mark=at.start_mark)


class PlainLoader(yaml.SafeLoader):
    """Accepts the YAML that options need: a few levels, no aliases, no duplicate keys.

    An alias can make a few lines stand for millions of values, and PyYAML silently takes the last of duplicate keys.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _Refused("*name refers to another value here: write the value itself", event)
        if self._depth >= MOST_LEVELS:
            raise _Refused(f"it has more than {MOST_LEVELS} levels", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise _Refused(f"{said(key.value)} appears twice: keep one", key)
                keys.add(key.value)
        return super().construct_mapping(node, deep)
