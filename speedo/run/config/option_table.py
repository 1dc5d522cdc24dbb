"""The table of all options of a run, collected from their declarations; `--help` and docs/ are generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from speedo.run.config.run_config import GROUPS, MERGING, RunConfig
from speedo.sgd_modes.base import options_of
from speedo.sgd_modes.foreign import is_foreign
from speedo.sgd_modes.registry import PLAIN, RULES, rules_with, takers
from speedo.system.bounds import Option, Seconds, declared

FIRST: Final = ("mode", "workers")
# Options of modes that the original and papers name by themselves; the others are given with the mode.
BY_THEMSELVES: Final = (
    *("local_steps", "moving_rate", "delta_scale", "max_advance", "window", "server_gradient"),
)  # fmt: skip
_METAVARS: Final = {int: "N", float: "F", Path: "PATH", str: "TEXT"}


@dataclass(frozen=True)
class Row:
    """An option of a run. `kind` is int, float, bool, str, Path, tuple, or the words to choose from.

    `modes` are the modes that use it; empty for an option of the run.
    """

    name: str
    kind: Any
    default: Any
    option: Option
    modes: tuple[str, ...]

    @property
    def parent(self) -> str:
        """The option that it is given with on the command line; empty if it stands by itself."""
        if self.option.given_with or rules_with(self.name):
            return self.option.given_with or "rule"
        return (
            "mode" if self.modes and self.name not in BY_THEMSELVES and self.name != "rule" else ""
        )

    @property
    def part_name(self) -> str:
        """Its name behind that option."""
        return self.name.removeprefix(f"{self.parent}_")

    @property
    def group(self) -> str:
        if self.option.given_with:
            return (
                declared(RunConfig.model_fields[self.option.given_with].metadata).group or MERGING
            )
        return self.option.group or MERGING

    @property
    def is_switch(self) -> bool:
        """Whether it is a flag without a value that is off by default."""
        return self.default is False

    @property
    def flags(self) -> str:
        """Its names on the command line: `--name`, or `--name/--no-name`."""
        if self.parent:
            return f"--{self.parent.replace('_', '-')}"
        name = self.name.replace("_", "-")
        two = f"--{name}/--no-{name}" if self.kind is bool and not self.is_switch else f"--{name}"
        return self.option.flags or two

    @property
    def metavar(self) -> str | None:
        if self.kind is bool or isinstance(self.kind, tuple):
            return None
        usual = "S" if isinstance(self.option.bound, Seconds) else _METAVARS.get(self.kind, "VALUE")
        return self.option.metavar or usual

    @property
    def as_part(self) -> str:
        """How it is written behind the option that it is given with."""
        values = "yes|no" if self.kind is bool else self.metavar or "|".join(self.kind)
        return f"{self.part_name}={values}"

    @property
    def values(self) -> str:
        """The values that can be given, as text."""
        if isinstance(self.kind, tuple):
            return ", ".join(self.kind)
        bound = self.option.bound
        return "" if bound is None or isfunction(bound) else str(bound)

    @property
    def usual(self) -> str:
        """The default as text; for an option of modes, the default in each mode."""
        if self.option.usual or not self.modes:
            return self.option.usual or self._said(self.default)
        return _by_mode({mode: self.usual_in(mode) for mode in self.modes})

    @property
    def source(self) -> str:
        """Where the default comes from."""
        return self.option.source or _by_mode({mode: self.source_in(mode) for mode in self.modes})

    @property
    def meaning(self) -> str:
        """Its help; if only some modes use it, their names come first."""
        text = self.option.help
        rules = rules_with(self.name)
        if not rules and (not self.modes or len(self.modes) == len(PLAIN)):
            return text
        whose = f"rule {', '.join(rules)}" if rules else ", ".join(self.modes)
        return f"{whose}: {text[:1].lower()}{text[1:]}"

    @property
    def help(self) -> str:
        """The same with the default, as the command line shows it."""
        return f"{self.meaning}  [default: {self.usual}]" if self.usual else self.meaning

    def usual_in(self, mode: str) -> str:
        """The default in this mode, in words."""
        own, rule = PLAIN[mode].own.get(self.name), PLAIN[mode].rules[0]
        own = next((options_of(RULES[one])[self.name] for one in rules_with(self.name)), own)
        if self.option.usual or own or self.default is not None:
            return self.option.usual or self._said(own.default if own else self.default)
        return rule.usual if self.name in options_of(rule) else "not set"

    def source_in(self, mode: str) -> str:
        """Where the default in this mode comes from; empty for an option that is not set there."""
        rule = PLAIN[mode].rules[0]
        return self.option.source or (rule.source if self.name in options_of(rule) else "")

    def _said(self, value: Any) -> str:
        if value is None or value == () or value is False:
            return ""
        if value is True and self.parent:
            return "yes"
        if value is True:
            return self.flags.split("/")[0]
        return f"{value:g}" if isinstance(value, float) else str(value)


def rows(model: type[RunConfig] = RunConfig) -> tuple[Row, ...]:
    """Every option in the order of `--help`: by group, within a group in the order of declaration."""
    found = [
        Row(name, _kind(field.annotation), field.default, declared(field.metadata), takers(name))
        for name, field in model.model_fields.items()
        if any(isinstance(one, Option) for one in field.metadata)
    ]
    made = sorted(found, key=lambda row: (*FIRST, row.name).index(row.name))
    groups = list(dict.fromkeys((*GROUPS, *(row.group for row in made))))
    made = sorted((row for row in made if not row.parent), key=lambda row: groups.index(row.group))
    return tuple(
        one for row in made for one in (row, *(part for part in found if part.parent == row.name))
    )


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line, in the order of the table, each with its parts.

    What is in no row is of a rule or a mode of the user's.
    """
    table = rows()
    switches = {row.name for row in table if row.is_switch}
    given = {
        name: value
        for name, value in options.items()
        if value is not None and value != () and not (value is False and name in switches)
    }
    known, words = {row.name for row in table}, list[str]()
    for row in table:
        parts = [one for one in table if one.parent == row.name and one.name in given]
        told = [f"{one.part_name}={_as_word(given[one.name])}" for one in parts]
        if is_foreign(given.get(row.name)) and row.name in ("mode", "rule"):
            told += [f"{name}={_as_word(given[name])}" for name in given if name not in known]
        if row.parent or row.name == "solver" or (row.name not in given and not told):
            continue
        on, _, off = row.flags.partition("/")
        flag, value = on.split()[0].rstrip(","), given.get(row.name)
        if row.kind is bool:
            words.append(flag if value else off)
        elif isinstance(value, tuple):
            words += [word for one in value for word in (flag, str(one))]
        else:
            words += [flag, ",".join([*([] if value is None else [str(value)]), *told])]
    return words


def _as_word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _by_mode(words: dict[str, str]) -> str:
    """One text for all modes, or the modes of each: `sync: 1; async, partial: min(1, 2 / workers)`."""
    modes: dict[str, list[str]] = {}
    for mode, text in words.items():
        modes.setdefault(text, []).append(mode)
    if len(modes) == 1:
        return next(iter(modes))
    return "; ".join(f"{', '.join(those)}: {text}" for text, those in modes.items() if text)


def _kind(annotation: Any) -> Any:
    """The type without None; the words of a Literal."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    if get_origin(annotation) is Literal:
        return tuple(kinds)
    if get_origin(annotation) is tuple:
        return tuple
    return _kind(kinds[0]) if kinds else annotation
