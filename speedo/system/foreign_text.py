"""Text that others wrote (hosts, files, URIs, messages of workers), made fit for a terminal, a log and a page.

And tables for a terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

MOST_TEXT: Final = 4000  # of one text; the longest of our own messages have some hundreds
MOST_NAME: Final = 200


def clean_text(text: object, limit: int = MOST_TEXT) -> str:
    """The text as one line of at most `limit` characters, in which what a terminal would obey is written out: `\\x1b`.

    That is whatever Unicode calls control, format (bidi overrides, zero width), surrogate, private or unassigned, and
    ends of lines. A tab becomes a space.
    """
    try:
        whole = text if isinstance(text, str) else str(text)
    except (ValueError, RecursionError):  # Python writes no number of this many digits
        whole = f"a {type(text).__name__} beyond words"
    cut = whole[: limit + 1]
    if not cut.isprintable():
        cut = "".join(one if one.isprintable() else _written(one) for one in cut)
    return cut if len(cut) <= limit else f"{cut[: max(limit - 3, 0)]}..."[:limit]


def clean_lines(text: object, limit: int = MOST_TEXT) -> str:
    """The same of a text of our own with several lines: their ends stay, and each line is bounded."""
    return "\n".join(clean_text(line, limit) for line in str(text).split("\n"))


def clean_values(values: Any, limit: int = MOST_TEXT) -> Any:
    """Plain data in which every text, also the names of fields, is clean."""
    if isinstance(values, str):
        return clean_text(values, limit)
    if isinstance(values, Mapping):
        return {clean_text(key, limit): clean_values(one, limit) for key, one in values.items()}
    if isinstance(values, list | tuple):
        return [clean_values(one, limit) for one in values]
    return values


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Rows of cells as the lines of a table: the columns `left` begin at the left, the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _written(character: str) -> str:
    if unicodedata.category(character) == "Zs":  # the wide space of Chinese, say
        return character
    return " " if character == "\t" else repr(character)[1:-1]
