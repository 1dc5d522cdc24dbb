"""The help page of a command: `--help` lists what most uses need, `--help-all` every option in full, by subject."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

_ALL: Final = "speedo.cli.page.all"
_WIDEST: Final = 26  # columns of an option's names; what is wider stands on a line of its own
_USUAL: Final = "  [default: "


class GroupedOption(click.Option):
    """An option that is listed under a heading of the help."""

    def __init__(self, *names: Any, heading: str = "Options", **extra: Any) -> None:
        super().__init__(*names, **extra)
        self.heading = heading


json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text."
)
output_option: Final = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write this file instead of standard output.",
)


class PagedCommand(click.Command):
    """A command whose `--help` has the options named in `in_sight`, each in one clause; empty: all in full."""

    def __init__(self, *args: Any, in_sight: Sequence[str] = (), **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.in_sight = in_sight

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """Also `--help-all`, where `--help` has less."""
        return [*super().get_params(context), *([_help_all] if self.in_sight else [])]

    def is_in_sight(self, context: click.Context, option: click.Option) -> bool:
        """Whether `--help` has it."""
        return not self.in_sight or option.is_eager or option.name in self.in_sight

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """What stands after a form feed is for `--help-all`."""
        said = self.help
        if self._is_whole(context):
            self.help = (said or "").replace("\f", "")
        super().format_help_text(context, formatter)
        self.help = said

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options in their order; if all, under their headings."""
        whole = self._is_whole(context)
        headings: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if not isinstance(parameter, click.Option) or record is None:
                continue
            if whole or self.is_in_sight(context, parameter):
                names, text = record
                heading = "Help" if parameter.is_eager else "Options"
                heading = (
                    getattr(parameter, "heading", heading) if _ALL in context.meta else "Options"
                )
                headings.setdefault(heading, []).append((names, text if whole else _clause(text)))
                if whole and (parts := getattr(parameter, "records_of_parts", None)):
                    headings[heading] += parts()
        if any(
            names.lstrip().startswith(",") for records in headings.values() for names, _ in records
        ):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(
                    "What begins with a comma is given with the option above it, as in --engine "
                    "torch,precision=bfloat16."
                )
        for heading, records in headings.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=30 if whole else _WIDEST)

    def _is_whole(self, context: click.Context) -> bool:
        return not self.in_sight or _ALL in context.meta


def _clause(text: str) -> str:
    """The first clause of an option's help, with its default."""
    words, usual, default = text.partition(_USUAL)
    return f"{re.split('[.;] ', words)[0].rstrip('.')}.{usual}{default}"


def _show_all(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


_help_all: Final = click.Option(
    ["--help-all"],
    is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
    help="Show every option, by subject, and exit.",
)  # fmt: skip
