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


def saved_by(name: str, folder: Path) -> Path:
    """Where a script with speedo saves its weights: in a file, or it leaves that to the run in this folder."""
    saves = "run.is_first" in "\n".join(_lines(name))
    return folder.with_suffix(".pt") if saves else folder / "model.npz"


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


def by_peer(name: str, peer: str) -> str | None:
    """The script as it is written for `peer`, "ddp" or "accelerate"; None where there is none."""
    file = SCRIPTS / peer / f"{name}.diff"
    return patched(plain(name), file.read_text(encoding="utf-8")) if file.exists() else None


def patched(text: str, diff: str) -> str:
    """The text with a unified diff applied. Raises `ValueError` where it does not fit."""
    old, new, at = text.splitlines(), list[str](), 0
    for line in diff.splitlines()[2:]:  # after the names of the files
        if found := re.match(r"@@ -(\d+)", line):
            start = int(found[1]) - 1
            new += old[at:start]
            at = start
        elif line.startswith("+"):
            new.append(line[1:])
        elif old[at] != line[1:]:
            raise ValueError(f"line {at + 1} is {old[at]!r}, not {line[1:]!r}")
        else:
            new += [line[1:]] * line.startswith(" ")
            at += 1
    return "\n".join([*new, *old[at:]]) + "\n"


def differing(before: str, after: str) -> int:
    """Lines of the script `after` that are new or changed, wherever they are indented."""
    old, new = ([line.strip() for line in text.splitlines()] for text in (before, after))
    return sum(line.startswith("+ ") and line != "+ " for line in difflib.ndiff(old, new))


def _lines(name: str) -> list[str]:
    return (SCRIPTS / f"{name}.py").read_text(encoding="utf-8").splitlines()
