"""The tables of options in docs/, written from the declarations of the options."""

from __future__ import annotations

import re

from speedo.run.config.combinations import EXCLUDED, OF_A_MODE, WITHOUT_EFFECT
from speedo.run.config.option_table import Row, rows
from speedo.run.config.run_config import RunConfig
from speedo.sgd_modes.registry import PLAIN, RULES


def markdown(model: type[RunConfig] = RunConfig) -> str:
    """The tables of docs/options.md, one for each group."""
    table, lines = rows(model), list[str]()
    for group in dict.fromkeys(row.group for row in table):
        lines += [
            f"### {group}",
            "",
            "| option | meaning | values | default | source of the default |",
        ]
        lines += ["|---|---|---|---|---|"]
        for row in table:
            if row.group == group:
                cells = (_name(row), row.meaning, row.values, row.usual, row.source)
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def markdown_of_modes() -> str:
    """The tables of docs/modes.md: the sources of modes and rules, and their options with default and source."""
    lines = ["| mode | after |", "|---|---|"]
    lines += [f"| `{mode.name}` | {mode.paper} {mode.year} |" for mode in PLAIN.values()]
    lines += ["", "| rule | modes | after |", "|---|---|---|"]
    for name, rule in RULES.items():
        fitting = ", ".join(f"`{mode.name}`" for mode in PLAIN.values() if mode.fits(rule))
        lines.append(f"| `{name}` | {fitting} | {rule.paper} {rule.year} |")
    lines += ["", "| option | modes | default | source of the default |", "|---|---|---|---|"]
    for row in rows():
        alike: dict[tuple[str, str], list[str]] = {}
        for mode in row.modes:
            alike.setdefault((row.usual_in(mode), row.source_in(mode)), []).append(mode)
        for (usual, source), modes in alike.items():
            those = ", ".join(modes) if len(modes) < len(PLAIN) else "all"
            lines.append(f"| {_name(row)} | {those} | {usual} | {source} |")
    return "\n".join([*lines, ""])


def _name(row: Row) -> str:
    if row.name == "solver":
        return "`SOLVER`"
    if row.parent:
        return f"`{row.flags} ...,{row.as_part}`".replace("|", "\\|")
    metavar = f" {row.metavar}".replace("|", "\\|") if row.metavar else ""  # it ends no cell
    return ", ".join(f"`{flag}{metavar}`" for flag in row.flags.split("/"))


def markdown_of_combinations() -> str:
    """The table of docs/options.md."""
    lines = ["| options | refused, or without effect |", "|---|---|"]
    for table, begin in ((OF_A_MODE, ""), (EXCLUDED, ""), (WITHOUT_EFFECT, "without effect: ")):
        for one in table:
            names = ", ".join(f"`{name}`" for name in one.options)
            says = re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), one.says)
            lines.append(f"| {names} | {begin}{says} |")
    return "\n".join([*lines, ""])
