"""The fault matrix as a table: `python -m tests.faults.report PAGE REPORT...`.

A report is what the tests wrote down; where a test stands in several, the last counts. The table also replaces the
one between the two marks of PAGE.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.faults.rows import MODES, Tried

BEGIN: Final = "<!-- make faults: begin -->"
END: Final = "<!-- make faults: end -->"
_ORDER: Final = (*MODES, "hybrid")


def tried_in(*reports: Path) -> list[Tried]:
    """One entry for each test: it failed if any part of it did."""
    found: dict[tuple[int, str, str], Tried] = {}
    for report in reports:
        own: dict[tuple[int, str, str], Tried] = {}
        for line in report.read_text(encoding="utf-8").splitlines():
            tried = Tried(**json.loads(line))
            key = (tried.row, tried.fault, tried.mode)
            if key not in own or own[key].outcome == "passed":
                own[key] = tried
        found |= own
    return list(found.values())


def table(tried: Iterable[Tried]) -> str:
    """A line for each fault: the modes it was tried in, pass or fail, the seconds to recover, a note."""
    lines = [
        "| row | fault | modes | result | recovered after | found |",
        "|---|---|---|---|---|---|",
    ]
    ordered = sorted(tried, key=lambda one: (one.row, one.fault))
    for (row, fault), group in groupby(ordered, key=lambda one: (one.row, one.fault)):
        lines.append(_line(row, fault, list(group)))
    return "\n".join(lines)


def _line(row: int, fault: str, tests: list[Tried]) -> str:
    failed = [one.mode for one in tests if one.outcome != "passed"]
    result = f"FAIL: {', '.join(failed)}" if failed else "pass"
    seconds = sorted(one.seconds for one in tests if one.seconds is not None)
    took = f"{seconds[0]:.1f} to {seconds[-1]:.1f} s" if seconds else ""
    notes = [one.note for one in tests if one.note and one.outcome == "passed"]
    modes = ", ".join(sorted((one.mode for one in tests), key=_ORDER.index))
    return f"| {row} | {fault} | {modes} | {result} | {took} | {notes[0] if notes else ''} |"


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the marks; raises `ValueError` if they are not there."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} lacks the marks {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    page, *reports = map(Path, sys.argv[1:])
    made = table(tried_in(*reports))
    print(made)
    put_into(page, made)
