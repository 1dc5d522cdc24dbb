"""Writes a report: the page, and beside it the picture and the table under the same name."""

from __future__ import annotations

import io
from pathlib import Path

from speedo.errors import DataError
from speedo.report.figures import Figures
from speedo.report.page import Heading, page
from speedo.report.picture import draw, why_none
from speedo.report.tables import as_csv
from speedo.system.files import written_whole


def write_report(figures: Figures, heading: Heading, target: Path) -> list[Path]:
    """Write `target`, and the same name with .png (not without matplotlib) and .csv, each whole. Raises `DataError`."""
    contents = {
        target: page(figures, heading).encode(errors="replace"),
        target.with_suffix(".png"): _picture(figures, heading.title),
        target.with_suffix(".csv"): as_csv(figures).encode(errors="replace"),
    }
    for path, content in contents.items():
        if not content:
            continue
        try:
            with written_whole(path) as file:
                file.write(content)
        except OSError as error:
            raise DataError(
                f"the report {path} cannot be written: {error.strerror}; give another --output"
            ) from None
    return [path for path, content in contents.items() if content]


def _picture(figures: Figures, title: str) -> bytes:
    """Nothing where matplotlib is not installed."""
    if why_none():
        return b""
    file = io.BytesIO()
    draw(figures, title, file)
    return file.getvalue()
