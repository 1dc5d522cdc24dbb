"""Writes a report: the page, and beside it the picture and the table under the same name."""

from __future__ import annotations

import io
from pathlib import Path

from caffenets.files import written_whole
from speedo.errors import DataError
from speedo.watch.report.figures import Figures
from speedo.watch.report.page import Heading, page
from speedo.watch.report.picture import draw, why_none
from speedo.watch.report.tables import as_csv


def write_report(figures: Figures, heading: Heading, target: Path) -> list[Path]:
    """Write `target`, and the same name with .png (not without matplotlib) and .csv, each whole. Raises `DataError`."""
    _write(target, page(figures, heading).encode(errors="replace"))
    picture, table = target.with_suffix(".png"), target.with_suffix(".csv")
    written = [target, table]
    if not why_none():
        write_picture(figures, heading.title, picture)
        written.insert(1, picture)
    _write(table, as_csv(figures).encode(errors="replace"))
    return written


def write_picture(figures: Figures, title: str, target: Path) -> None:
    """Write the picture alone, in the form that its name ends in. Raises `DataError`."""
    file = io.BytesIO()
    draw(figures, title, file, target.suffix.lower().removeprefix("."))
    _write(target, file.getvalue())


def _write(path: Path, content: bytes) -> None:
    try:
        with written_whole(path) as file:
            file.write(content)
    except OSError as error:
        raise DataError(
            f"the report {path} cannot be written: {error.strerror}; give another --output"
        ) from None
