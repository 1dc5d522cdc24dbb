"""The figures as tables, for a terminal or in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bench.support.figures import (
    Measured,
    least_core,
    median_discarded,
    median_part,
    median_rate,
    paired_ratio,
    parts_of,
)
from bench.support.throughput import SEQUENTIAL, Round, Row

WHOLE_CORE = 0.95  # less than this of a core: somebody else was computing
Table = list[list[str]]  # the first row is the heading
Writer = Callable[[Table], str]

HEADING = ["", "batch each", "images/s", "of free-running", "least to most", "x sequential"]


def rates(rows: Sequence[Row], rounds: Sequence[Round]) -> Table:
    """Throughput and its ratios, a row for each thing measured."""
    table = [HEADING]
    for row in rows:
        rate = median_rate(rounds, row.name)
        ratio = paired_ratio(rounds, row.name, row.baseline) if row.baseline else None
        speedup = paired_ratio(rounds, row.name, SEQUENTIAL)
        table.append(
            [
                row.name,
                _batches(row.batches),
                number(rate),
                "" if ratio is None else f"{ratio.median:.1%}",
                "" if ratio is None else f"{ratio.least:.1%} to {ratio.most:.1%}",
                "" if speedup is None else f"{speedup.median:.2f}",
            ]
        )
    return table


def breakdown(rows: Sequence[Row], rounds: Sequence[Round]) -> Table:
    """Where the milliseconds of a turn go; what stands behind `rest` is a part of it."""
    parts = parts_of(rounds)
    table = [["ms of a turn", *parts]]
    for row in rows:
        values = [median_part(rounds, row.name, part) for part in parts]
        if any(value is not None for value in values):
            table.append([row.name, *("" if one is None else f"{one:.2f}" for one in values)])
    return table


def discarded(rows: Sequence[Row], rounds: Sequence[Round]) -> list[str]:
    """A sentence for each mode that threw results away; their images are not counted."""
    shares = {row.name: median_discarded(rounds, row.name) for row in rows}
    return [
        f"{name} discarded {share:.1%} of its results" for name, share in shares.items() if share
    ]


def starved(rows: Sequence[Row], rounds: Sequence[Round], cores: int) -> list[str]:
    """A sentence for each row of plain processes that did not have a core each all the time."""
    shares = {row.name: least_core(rounds, row.name) for row in rows if len(row.batches) <= cores}
    return [
        f"{name} got but {share:.0%} of a core in one round: the machine was busy, the figures are worthless"
        for name, share in shares.items()
        if share < WHOLE_CORE
    ]


def number(value: float | None) -> str:
    """A rate, or that there is none."""
    return "failed" if value is None else f"{value:,.0f}"


def text(table: Table) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *others in table:
        cells = [one.rjust(width) for one, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def markdown(table: Table) -> str:
    """The same as a table of Markdown."""
    heading, *rows = table
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [heading, rule, *rows])


def report(
    title: str, rows: Sequence[Row], rounds: Sequence[Round], write: Writer, cores: int
) -> str:
    """Everything about one net."""
    said = [f"{sentence}." for sentence in starved(rows, rounds, cores) + discarded(rows, rounds)]
    return "\n\n".join([title, write(rates(rows, rounds)), *said, write(breakdown(rows, rounds))])


def plain(rounds: Sequence[Round]) -> list[dict[str, object]]:
    """The rounds as JSON has them."""
    return [{name: _fields(one) for name, one in round_.items()} for round_ in rounds]


def _fields(one: Measured) -> dict[str, object]:
    return {
        "images_per_s": one.images_per_s,
        "ms": dict(one.parts),
        "discarded": one.discarded,
        "core": None if math.isnan(one.core) else one.core,
        "beside": dict(one.beside),
    }


def _batches(batches: tuple[int, ...]) -> str:
    return "+".join(map(str, batches)) if len(set(batches)) > 1 else str(batches[0])
