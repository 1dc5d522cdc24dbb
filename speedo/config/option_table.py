"""The options of a run as a table, from their declarations; `--help` and docs/options.md are made from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from speedo.bounds import Option, Seconds, declared
from speedo.config.run_config import MERGING, RunConfig
from speedo.sgd_modes.registry import PLAIN, takers

FIRST: Final = ("mode", "workers")
BEGIN: Final = "<!-- made from speedo/config/option_table.py -->"
END: Final = "<!-- end -->"
_METAVARS: Final = {int: "N", float: "F", Path: "PATH", str: "TEXT"}


@dataclass(frozen=True)
class Row:
    """An option of a run. `kind` is int, float, bool, str, Path, tuple, or the words to choose from.

    `modes` are those that take it; empty where it has nothing to do with them.
    """

    name: str
    kind: Any
    default: Any
    option: Option
    modes: tuple[str, ...]

    @property
    def group(self) -> str:
        return self.option.group or MERGING

    @property
    def is_switch(self) -> bool:
        """Whether it can only be turned on: it is off by default."""
        return self.default is False

    @property
    def flags(self) -> str:
        """Its names on the command line: `--name`, or `--name/--no-name`."""
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
    def values(self) -> str:
        """What can be given, in words."""
        if isinstance(self.kind, tuple):
            return ", ".join(self.kind)
        bound = self.option.bound
        return "" if bound is None or isfunction(bound) else str(bound)

    @property
    def usual(self) -> str:
        """The default in words; for an option of modes, of each of them."""
        if self.option.usual or not self.modes:
            return self.option.usual or self._said(self.default)
        return _by_mode({mode: self._default_in(mode) for mode in self.modes})

    @property
    def source(self) -> str:
        """Where the default comes from."""
        if self.option.source or not self.modes:
            return self.option.source
        first = {mode: PLAIN[mode].rules[0] for mode in self.modes}
        return _by_mode({m: r.source for m, r in first.items() if r.option == self.name})

    @property
    def help(self) -> str:
        """What the command line says of it."""
        some = self.modes and len(self.modes) < len(PLAIN)
        text = f"{', '.join(self.modes)}: {_lower(self.option.help)}" if some else self.option.help
        return f"{text}  [default: {self.usual}]" if self.usual else text

    def _default_in(self, mode: str) -> str:
        if self.name in PLAIN[mode].own:
            return self._said(PLAIN[mode].own[self.name].default)
        usual = PLAIN[mode].rules[0]
        if self.default is not None:
            return self._said(self.default)
        return usual.usual if usual.option == self.name else "not set"

    def _said(self, value: Any) -> str:
        if value is None or value == () or value is False:
            return ""
        if value is True:
            return self.flags.split("/")[0]
        return f"{value:g}" if isinstance(value, float) else str(value)


def rows(model: type[RunConfig] = RunConfig) -> tuple[Row, ...]:
    """Every option, in the order of `--help`: by groups, in each by the order of their declaration."""
    found = [
        Row(name, _kind(field.annotation), field.default, declared(field.metadata), takers(name))
        for name, field in model.model_fields.items()
    ]
    made = sorted(found, key=lambda row: (*FIRST, row.name).index(row.name))
    groups = list(dict.fromkeys(row.group for row in made))
    return tuple(sorted(made, key=lambda row: groups.index(row.group)))


def markdown(model: type[RunConfig] = RunConfig) -> str:
    """The tables of docs/options.md, one for each group."""
    return "\n".join(_lines(rows(model)))


def _lines(table: tuple[Row, ...]) -> Iterator[str]:
    for group in dict.fromkeys(row.group for row in table):
        yield f"### {group}\n"
        yield "| option | what it says | values | default | source of the default |"
        yield "|---|---|---|---|---|"
        for row in table:
            if row.group == group:
                cells = (row.option.help, row.values, row.usual, row.source)
                modes = (
                    f"{', '.join(row.modes)}: " if row.modes and len(row.modes) < len(PLAIN) else ""
                )
                yield f"| {_name(row)} | {modes}" + " | ".join(cells) + " |"
        yield ""


def _name(row: Row) -> str:
    if row.name == "solver":
        return "`SOLVER`"
    metavar = f" {row.metavar}" if row.metavar else ""
    return ", ".join(f"`{flag}{metavar}`" for flag in row.flags.split("/"))


def _by_mode(words: dict[str, str]) -> str:
    """One text for all modes, or the modes of each: `sync: 1; async, partial: min(1, 2 / workers)`."""
    modes: dict[str, list[str]] = {}
    for mode, text in words.items():
        modes.setdefault(text, []).append(mode)
    if len(modes) == 1:
        return next(iter(modes))
    return "; ".join(f"{', '.join(those)}: {text}" for text, those in modes.items())


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _kind(annotation: Any) -> Any:
    """The type without None; the words of a Literal."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    if get_origin(annotation) is Literal:
        return tuple(kinds)
    if get_origin(annotation) is tuple:
        return tuple
    return _kind(kinds[0]) if kinds else annotation
