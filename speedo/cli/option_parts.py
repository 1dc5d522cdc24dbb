"""Options that are given with another one: `--engine torch,precision=bfloat16`, or `--engine precision=bfloat16`.

The option may be repeated: `--mode partial --mode catch_up=yes` says the same as `--mode partial,catch_up=yes`. What a
mode or a rule of the user's declares is a part of `--mode` or `--rule`, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from speedo.cli.page import GroupedOption
from speedo.run.config.option_table import Row, rows
from speedo.sgd_modes.foreign import is_foreign
from speedo.system.bounds import said

Parts = Mapping[str, Any]
_PART: Final = re.compile(r"(?:^|,)([A-Za-z_][A-Za-z0-9_-]*)=")


def type_of(row: Row) -> Any:
    """What click takes its value for."""
    if isinstance(row.kind, tuple):
        return click.Choice(row.kind)
    return click.Path(path_type=Path) if row.kind is Path else row.kind


class ValueWithParts(click.ParamType[Any]):
    """`inner` converts the value itself, and each part has the type of its row; one of a user's class is a text."""

    def __init__(self, inner: click.ParamType[Any], parts: Sequence[Row]) -> None:
        self.inner, self.parts = inner, parts
        self.name = inner.name
        self._names = {name: row for row in parts for name in (row.name, row.part_name)}

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self.inner.get_metavar(param=param, ctx=ctx)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, Parts]:
        if not isinstance(value, str):
            return value, {}
        # What a class of the user's declares is in no row.
        own = is_foreign(value.partition(",")[0]) and getattr(param, "name", "") in ("mode", "rule")
        found = [one for one in _PART.finditer(value) if own or self._begins_a_part(value, one[1])]
        main = value[: found[0].start()] if found else value
        ends = [one.start() for one in found[1:]] + [len(value)]
        parts = dict[str, Any]()
        for one, end in zip(found, ends, strict=False):
            name = one[1].replace("-", "_")
            row = self._names.get(name)
            if row is None and not own:
                known = ", ".join(row.as_part for row in self.parts)
                self.fail(f"{said(one[1])} is no part of it; known are {known}", param, ctx)
            text = value[one.end() : end]
            if row is None:
                parts[name] = text
            else:
                parts[row.name] = click.types.convert_type(type_of(row)).convert(text, param, ctx)
        return (self.inner.convert(main, param, ctx) if main or not found else None), parts

    def _begins_a_part(self, value: str, name: str) -> bool:
        """A list of resources has names of its own, and a URL may have any."""
        if name.replace("-", "_") in self._names:
            return True
        return "://" not in value and not any(row.part_name == "resources" for row in self.parts)


class OptionWithParts(GroupedOption):
    """An option whose value may be followed by parts, each a parameter of the command by its own name."""

    def __init__(self, *names: Any, parts: Sequence[Row], **extra: Any) -> None:
        super().__init__(*names, **{**extra, "multiple": True, "default": None})
        self.type = ValueWithParts(self.type, parts)
        self.parts = parts

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        main = None
        parts = dict[str, Any](dict.fromkeys(row.name for row in self.parts))
        for one, others in super().type_cast_value(ctx, value) or ():
            main = main if one is None else one
            parts |= others
        ctx.params |= parts
        return main

    def records_of_parts(self) -> list[tuple[str, str]]:
        """Lines of the help."""
        return [(f"  ,{row.as_part}", row.help) for row in self.parts]


def now_given_with(flag: str) -> str:
    """How an option of an earlier version is given now; empty for others."""
    for row in rows():
        if row.parent and flag.replace("--no-", "--") == f"--{row.name.replace('_', '-')}":
            return f"{flag} is given with {row.flags} now: {row.flags} {row.as_part}"
    return ""
