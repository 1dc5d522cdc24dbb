"""The fault matrix as a table: `python -m tests.faults.report REPORT [PAGE]`.

REPORT is what the tests wrote down. With PAGE, the table also replaces the one between this page's two marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.faults.rows import Tried

BEGIN: Final = "<!-- make faults: begin -->"
END: Final = "<!-- make faults: end -->"


def tried_in(report: Path) -> list[Tried]:
    lines = report.read_text(encoding="utf-8").splitlines()
    return [Tried(**json.loads(line)) for line in lines]


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
    modes = ", ".join(one.mode for one in tests)
    return f"| {row} | {fault} | {modes} | {result} | {took} | {notes[0] if notes else ''} |"


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the marks; raises `ValueError` if they are not there."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} lacks the marks {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    made = table(tried_in(Path(sys.argv[1])))
    print(made)
    for name in sys.argv[2:]:
        put_into(Path(name), made)
