"""The forms of a script in `tests/scripts`: for one process, for `speedo run`, for DistributedDataParallel, Accelerate.

A line that ends with `# speedo` is one of those for speedo; `# speedo: LINE` says the line of the script before it.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).parents[2] / "tests" / "scripts"
_MARKED: Final = re.compile(r"^( *)(.*?)  # speedo(?:: (.*))?$")


def names() -> list[str]:
    """Of all scripts."""
    return sorted(path.stem for path in SCRIPTS.glob("*.py"))


def changed(name: str) -> int:
    """How many lines of the script are for speedo."""
    return sum(_MARKED.match(line) is not None for line in _lines(name))


def plain(name: str) -> str:
    """The script before it was changed; what stands in a block that is left out moves to the left."""
    lines, left = [], list[int]()  # the indentations of blocks that are left out
    for line in _lines(name):
        indentation = len(line) - len(line.lstrip())
        while line and left and indentation <= left[-1]:
            left.pop()
        line = line[4 * len(left) :]
        marked = _MARKED.match(line)
        if marked is None:
            lines.append(line)
        elif marked[3] is not None:
            lines.append(marked[1] + marked[3])
        elif marked[2].endswith(":"):
            left.append(indentation)
    return "\n".join(lines) + "\n"


def differing(before: str, after: str) -> int:
    """Lines of the script `after` that are new or changed, wherever they are indented."""
    old, new = ([line.strip() for line in text.splitlines()] for text in (before, after))
    return sum(line.startswith("+ ") and line != "+ " for line in difflib.ndiff(old, new))


def _lines(name: str) -> list[str]:
    return (SCRIPTS / f"{name}.py").read_text(encoding="utf-8").splitlines()
