"""A net as a picture: a box for each layer, below those that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from xml.sax.saxutils import escape

_WIDTH, _LINE, _PAD, _GAP, _ROW_GAP = 200, 16, 6, 24, 34  # pixels
_MOST_CHARACTERS: Final = 30  # of a line in a box
# Of types that begin so: what has weights, what makes places fewer, what brings records.
_COLOURS: Final = {
    "Convolution": "#cfe2ff", "Deconvolution": "#cfe2ff", "Depthwise": "#cfe2ff", "InnerProduct": "#cfe2ff",
    "LSTM": "#cfe2ff", "RNN": "#cfe2ff", "Pooling": "#d1e7dd", "Input": "#e2e3e5", "Data": "#e2e3e5",
}  # fmt: skip


@dataclass(slots=True)
class _Box:
    """A layer, with those that work in place on what it makes."""

    lines: list[str]
    colour: str
    row: int
    sources: list[_Box] = field(default_factory=list)
    column: float = 0.0
    x: float = 0.0
    y: float = 0.0

    @property
    def height(self) -> int:
        return _LINE * len(self.lines) + 2 * _PAD


def picture(net: Any) -> str:
    """The SVG of a NetParameter in today's format."""
    rows = _rows(net)
    _place(rows)
    boxes = [box for row in rows for box in row]
    width = max((box.x + _WIDTH for box in boxes), default=0) + _GAP
    height = max((box.y + box.height for box in boxes), default=0) + _GAP
    lines = (
        f'<path d="M{one.x + _WIDTH / 2:.0f} {one.y + one.height:.0f} C{one.x + _WIDTH / 2:.0f} '
        f"{one.y + one.height + _ROW_GAP:.0f} {box.x + _WIDTH / 2:.0f} {box.y - _ROW_GAP:.0f} "
        f'{box.x + _WIDTH / 2:.0f} {box.y:.0f}"/>'
        for box in boxes
        for one in box.sources
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="sans-serif" font-size="12">\n<title>{escape(str(net.name) or "net")}</title>\n'
        '<rect width="100%" height="100%" fill="white"/>\n<g fill="none" stroke="#555">\n'
        + "\n".join([*lines, "</g>", *map(_drawn, boxes), "</svg>", ""])
    )


def _rows(net: Any) -> list[list[_Box]]:
    """The boxes by row: each is below all that it reads."""
    makers: dict[str, _Box] = {}
    rows: list[list[_Box]] = []
    for layer in net.layer:
        own = (
            makers.get(layer.bottom[0])
            if list(layer.bottom) == list(layer.top) and layer.bottom
            else None
        )
        if own is not None:
            own.lines.append(f"{layer.name} ({layer.type})")
            continue
        sources = [makers[name] for name in dict.fromkeys(layer.bottom) if name in makers]
        colour = next((c for kind, c in _COLOURS.items() if layer.type.startswith(kind)), "#ffffff")
        row = 1 + max((one.row for one in sources), default=-1)
        box = _Box([str(layer.name), str(layer.type)], colour, row, sources)
        while len(rows) <= row:
            rows.append([])
        rows[row].append(box)
        makers.update(dict.fromkeys(layer.top, box))
    return rows


def _place(rows: Sequence[list[_Box]]) -> None:
    """In each row from left to right as what the boxes read is; each row in the middle."""
    widest, y = max(map(len, rows), default=0), float(_GAP)
    for row in rows:
        for at, box in enumerate(row):
            columns = [one.column for one in box.sources]
            box.column = sum(columns) / len(columns) if columns else float(at)
        row.sort(key=lambda box: box.column)
        left = (widest - len(row)) / 2
        for at, box in enumerate(row):
            box.column = left + at
            box.x, box.y = _GAP + box.column * (_WIDTH + _GAP), y
        y += max(box.height for box in row) + _ROW_GAP


def _drawn(box: _Box) -> str:
    bold = ' font-weight="bold"'
    texts = (
        f'<text x="{box.x + _WIDTH / 2:.0f}" y="{box.y + _PAD + _LINE * (at + 0.75):.0f}" text-anchor="middle"'
        f"{bold if not at else ''}>{escape(_cut(line))}</text>"
        for at, line in enumerate(box.lines)
    )
    return (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{_WIDTH}" height="{box.height}" rx="4" fill="{box.colour}" '
        f'stroke="#555"/>{"".join(texts)}'
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
