"""Seeded texts and values as an attacker would send them; SPEEDO_FUZZ is how many, 2,000 by default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

COUNT = int(os.environ.get("SPEEDO_FUZZ", "2000"))
PIECES = (
    "..", ".", "/", "//", "~", "a", "logs", "worker", "x.log", "\0", "\n", "\r", "\t", " ", "", "%", "%2e%2e", "\\",
    "\x1b[2J", "$(id)", "`id`", "'", '"', "#", "&", "?", "=", ":", "@", "é", "\ud800", "\u202e", "a" * 300,
    "/etc/passwd",
    "/tmp/x", "*", "[", "]", "{", "}", "-", "--", "|", ";", "!", "<", ">", ",", "0", "-1", "null", "../" * 40,
)  # fmt: skip


def randoms() -> Iterator[Random]:
    """A source of chance for each input."""
    for seed in range(COUNT):
        yield Random(seed)


def text(chance: Random) -> str:
    return "".join(chance.choice(PIECES) for _ in range(chance.randrange(8)))


def value(chance: Random, levels: int = 2) -> Any:
    """Any value of JSON, mostly a text."""
    kind = chance.randrange(12 if levels else 10)
    if kind < 7:
        return text(chance)
    if kind < 10:
        return chance.choice((None, True, 0, -1, 2**70, 1e308, float("nan"), 3.5))
    if kind == 10:
        return [value(chance, levels - 1) for _ in range(chance.randrange(3))]
    return {text(chance): value(chance, levels - 1) for _ in range(chance.randrange(3))}


def files_outside(root: Path, inside: Path) -> list[Path]:
    """Files and links below `root` that are not below `inside`."""
    return [
        path
        for path in root.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and inside not in path.parents
    ]
