"""Charts as SVG text: lines, bars with intervals, stacked bars, small histograms, lives.

Colours are classes, which the page's style sheet gives for light and dark: `c0` is the reference, `c1` to `c7` the
others. No element has a style attribute, so a strict Content-Security-Policy holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from textwrap import wrap
from typing import Any, Final

WIDTH: Final = 440  # of a chart of lines, in the units of its view box
HEIGHT: Final = 300
# The margins of its frame.
LEFT: Final = 52
RIGHT: Final = 14
TOP: Final = 34
BOTTOM: Final = 44
ROW: Final = 34  # of a chart of bars
COLOURS: Final = 8
LINE: Final = 14  # between two lines of one text
MOST_LINES: Final = 4
# Units that a letter takes, somewhat more than in the page's fonts; SVG does not wrap text by itself.
LETTERS: Final = {"name": 8.0, "name small": 7.0, "tick": 6.6}

Place = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class PlottedLine:
    """A line by rising x, with a band from `lows` to `highs` if they are given; one point is drawn as a point."""

    label: str
    colour: int
    dash: int
    xs: Sequence[float]
    ys: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with the text at its end; `low` and `high` are the ends of its interval, `mark` another's figure."""

    label: str
    colour: int
    value: float | None
    text: str
    low: float | None = None
    high: float | None = None
    predicted: bool = False
    mark: tuple[float, float] | None = None
    title: str = ""


@dataclass(slots=True)
class Chart:
    """A drawing: its SVG, and what the page's script needs to show values under the pointer."""

    name: str
    title: str
    svg: str
    data: dict[str, Any] = field(default_factory=dict)


def number(value: float) -> str:
    """For people: three significant digits, thousands with commas."""
    if not math.isfinite(value):
        return "none"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values from `low` to `high`, at most `most` and a few fewer."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / most))
    for factor in (1, 2, 2.5, 5, 10):
        if span / (step * factor) <= most:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(
    name: str,
    title: str,
    across: str,
    up: str,
    lines: Sequence[PlottedLine],
    *,
    level: tuple[float, str] | None = None,
    quiet: float = 0.1,
) -> Chart:
    """Lines over one pair of axes; `level` is a horizontal line with its name.

    The upper end of a falling curve's first tenth (`quiet`) may be outside: it would flatten all that follows.
    """
    drawn = [line for line in lines if any(math.isfinite(y) for y in line.ys)]
    right = max((max(line.xs) for line in drawn), default=1.0) or 1.0
    low, high = _extent(drawn, quiet * right, level)
    x_ticks, y_ticks = ticks(0.0, right), ticks(low, high)
    edge, floor = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at_x(value: float) -> float:
        return LEFT + (edge - LEFT) * value / right

    def at_y(value: float) -> float:
        return floor - (floor - TOP) * (value - low) / (high - low)

    def across_at(y: float, kind: str) -> str:
        return _shape("line", kind, x1=LEFT, x2=edge, y1=y, y2=y)

    frame = _shape("rect", "", x=LEFT, y=TOP, width=edge - LEFT, height=floor - TOP)
    parts = [f'<clipPath id="{name}-clip">{frame}</clipPath>']
    for value in y_ticks:
        parts.append(across_at(at_y(value), "grid"))
        parts.append(_text("tick", _tick(value, y_ticks), LEFT - 6, at_y(value) + 4, "end"))
    for value in x_ticks:
        parts.append(_text("tick", _tick(value, x_ticks), at_x(value), floor + 16, "middle"))
    parts.append(across_at(floor, "axis"))
    parts.append(f'<g clip-path="url(#{name}-clip)">')
    if level is not None:
        parts.append(across_at(at_y(level[0]), "level"))
    parts += [_drawn(line, at_x, at_y) for line in drawn]
    parts.append("</g>")
    if level is not None:
        parts.append(_text("tick", level[1], LEFT + 6, at_y(level[0]) - 5))
    turned = f"translate(13 {(TOP + floor) / 2}) rotate(-90)"
    parts += [
        _text("name", title, LEFT, 18),
        _text("label", across, (LEFT + edge) / 2, HEIGHT - 8, "middle"),
        _shape("text", "label", up, transform=turned, text_anchor="middle"),
        _shape("line", "cursor", x1=0, x2=0, y1=0, y2=0),
    ]
    data = {
        "box": [LEFT, TOP, edge, floor],
        "right": right,
        "across": across,
        "lines": [
            {
                "label": line.label,
                "c": line.colour,
                "x": [_short(x) for x in line.xs],
                "y": [_short(y) for y in line.ys],
            }
            for line in drawn
        ],
    }
    label = f"{title}: {up} against {across}"
    return Chart(name, title, _svg(name, label, WIDTH, HEIGHT, parts), data)


def _extent(
    lines: Sequence[PlottedLine], after: float, level: tuple[float, str] | None
) -> tuple[float, float]:
    values = [] if level is None else [level[0]]
    for line in lines:
        pairs = list(zip(line.xs, line.ys, strict=True))
        late = [y for x, y in pairs if x >= after and math.isfinite(y)]
        values += late or [y for _, y in pairs if math.isfinite(y)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _drawn(line: PlottedLine, at_x: Place, at_y: Place) -> str:
    points = [(at_x(x), at_y(y)) for x, y in zip(line.xs, line.ys, strict=True) if math.isfinite(y)]
    parts = [f'<g class="line c{line.colour} d{line.dash}" data-label="{escape(line.label)}">']
    if line.lows and line.highs:
        there = [(x, y) for x, y in zip(line.xs, line.highs, strict=True) if math.isfinite(y)]
        back = [(x, y) for x, y in zip(line.xs, line.lows, strict=True) if math.isfinite(y)]
        if len(there) > 1:
            path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in [*there, *reversed(back)])
            parts.append(_shape("polygon", "band", points=path))
    if len(points) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(_shape("path", "stroke", d=f"M{path}"))
    if line.dots or len(points) == 1:
        parts += [_shape("circle", "dot", cx=x, cy=y, r=3) for x, y in points]
    return "".join(parts) + "</g>"


def bar_chart(
    name: str, title: str, bars: Sequence[Bar], *, level: tuple[float, str] | None = None
) -> Chart:
    """Bars from 0 to the right, a row each with the name above its bar."""
    ends = [
        value for bar in bars for value in (bar.value, bar.high, bar.mark and bar.mark[1]) if value
    ]
    most = max([*ends, *([level[0]] if level else [])], default=1.0)
    left, right, top = 4.0, 130.0, 34.0
    labels = [_block("tick", bar.label, left, WIDTH - left) for bar in bars]
    height = top + ROW * len(bars) + sum(tall for _, tall in labels) + 10

    def at(value: float) -> float:
        return left + (WIDTH - left - right) * value / most

    def span(kind: str, ends: tuple[float, float], middle: float, half: float) -> str:
        low, high = at(ends[0]), at(ends[1])
        upright = f"{middle - half}V{middle + half}"
        path = f"M{low:.1f} {upright}M{low:.1f} {middle}H{high:.1f}M{high:.1f} {upright}"
        return _shape("path", kind, d=path)

    parts = [_text("name", title, left, 18)]
    y = top
    for bar, (label, tall) in zip(bars, labels, strict=True):
        end = left
        kind = f"row c{bar.colour}" + (" predicted" if bar.predicted else "")
        parts.append(f'<g class="{kind}">{_title(bar.title or f"{bar.label}: {bar.text}")}')
        parts += label(y + 11)
        y += tall
        if level is not None:
            x = at(level[0])
            parts.append(_shape("line", "level", x1=x, x2=x, y1=y + 14, y2=y + 31))
        if bar.value is not None:
            end = at(bar.value)
            wide = max(end - left, 1)
            parts.append(_shape("rect", "bar", x=left, y=y + 15, width=wide, height=12, rx=2))
        if bar.mark is not None:
            parts.append(span("mark", bar.mark, y + 21, 9))
            end = max(end, at(bar.mark[1]))
        if bar.low is not None and bar.high is not None and bar.high > bar.low:
            parts.append(span("whisker", (bar.low, bar.high), y + 21, 4))
            end = max(end, at(bar.high))
        parts.append(_text("value", bar.text, end + 6, y + 25) + "</g>")
        y += ROW
    return Chart(name, title, _svg(name, title, WIDTH, height, parts))


def stacked_chart(
    name: str, title: str, rows: Sequence[tuple[str, Sequence[tuple[str, int, float]], str]]
) -> Chart:
    """Rows of parts (name, colour, share of 1), each row with the text at its end."""
    left, right, top = 4.0, 84.0, 34.0
    labels = [_block("tick", label, left, WIDTH - left) for label, _, _ in rows]
    height = top + ROW * len(rows) + sum(tall for _, tall in labels) + 10
    parts = [_text("name", title, left, 18)]
    y = top
    for (label, shares, text), (lines, tall) in zip(rows, labels, strict=True):
        parts += lines(y + 11)
        x, y = left, y + tall
        for part, colour, share in shares:
            wide = max((WIDTH - left - right) * share, 0.0)
            said = _title(f"{label}: {part} {share:.0%}")
            parts.append(
                _shape("rect", f"part p{colour}", said, x=x, y=y + 15, width=wide, height=12)
            )
            x += wide
        parts.append(_text("value", text, WIDTH - right + 6, y + 25))
        y += ROW
    return Chart(name, title, _svg(name, title, WIDTH, height, parts))


def histogram(name: str, title: str, colour: int, counts: Sequence[tuple[str, float]]) -> Chart:
    """Upright bars of shares of 1, with their names below."""
    width, left, bottom = 220, 34, 22
    heading, more = _block("name small", title, 4, width - 4)
    height, top = 150 + more, 30 + more
    most = max((share for _, share in counts), default=1.0) or 1.0
    each = (width - left - 6) / max(len(counts), 1)
    floor = height - bottom
    parts = heading(15)
    for value in ticks(0.0, most, 3):
        y = floor - (floor - top) * value / most
        parts.append(_shape("line", "grid", x1=left, x2=width - 4, y1=y, y2=y))
        parts.append(_text("tick small", f"{value:.0%}", left - 4, y + 4, "end"))
    every = max(1, math.ceil(len(counts) / 9))
    for place, (label, share) in enumerate(counts):
        tall, x = max((floor - top) * share / most, 0.0), left + each * place
        said = _title(f"staleness {label}: {share:.1%} of the results")
        size = {"x": x + 0.1 * each, "y": floor - tall, "width": 0.8 * each, "height": tall}
        parts.append(_shape("rect", f"bar c{colour}", said, **size))
        if place % every == 0:
            parts.append(_text("tick small", label, x + each / 2, height - 8, "middle"))
    return Chart(name, title, _svg(name, title, width, height, parts))


def lives_chart(
    name: str, title: str, end: float, lives: Sequence[tuple[int, float, float | None, str]]
) -> Chart:
    """A row for each worker with its stays, in seconds from 0 to `end`; a death is a cross with its cause."""
    workers = sorted({worker for worker, _, _, _ in lives})
    heading, more = _block("name", title, 4, WIDTH - 4)
    left, right, top, row = 70, 14, 34 + more, 20
    height = top + row * len(workers) + 44
    end = end or 1.0

    def at(value: float) -> float:
        return left + (WIDTH - left - right) * min(value, end) / end

    parts = heading(18)
    marks = ticks(0.0, end)
    for value in marks:
        x = at(value)
        parts.append(_shape("line", "grid", x1=x, x2=x, y1=top - 4, y2=height - 40))
        parts.append(_text("tick", _tick(value, marks), x, height - 24, "middle"))
    for place, worker in enumerate(workers):
        y = top + row * place
        parts.append(_text("tick", f"worker {worker}", 4, y + 11))
        for who, began, ended, cause in lives:
            if who != worker:
                continue
            first, last = at(began), at(end if ended is None else ended)
            words = "stayed to the end" if ended is None else f"left at {number(ended)} s: {cause}"
            said = _title(f"worker {worker}, from {number(began)} s, {words}")
            wide = max(last - first, 1.5)
            parts.append(
                _shape("rect", "life", said, x=first, y=y + 2, width=wide, height=12, rx=2)
            )
            if ended is not None:
                cross = f"M{last - 4:.1f} {y + 4}l8 8m0 -8l-8 8"
                parts.append(_shape("path", "death", _title(words), d=cross))
    parts.append(_text("label", "seconds", (left + WIDTH - right) / 2, height - 6, "middle"))
    return Chart(name, title, _svg(name, title, WIDTH, height, parts))


def _svg(name: str, label: str, width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg id="{name}" class="chart" role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height:g}">'
        f"{''.join(parts)}</svg>"
    )


def _shape(tag: str, kind: str, content: str = "", /, **attributes: float | str) -> str:
    """An element of a class; `content` is markup already, and a name's underscore is a hyphen."""
    said = "".join(
        f' {name.replace("_", "-")}="{value if isinstance(value, str) else f"{value:.1f}"}"'
        for name, value in attributes.items()
    )
    opened = f"<{tag}{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}{said}"
    return f"{opened}>{content}</{tag}>" if content else f"{opened}/>"


def _text(kind: str, text: str, x: float, y: float, anchor: str = "start") -> str:
    return _shape("text", kind, escape(text), x=x, y=y, text_anchor=anchor)


def _block(
    kind: str, text: str, x: float, wide: float
) -> tuple[Callable[[float], list[str]], float]:
    """A text in lines that fit: what makes it from the y of its first line, and how much taller than one line it is."""
    lines = wrap(text, int(wide / LETTERS[kind]), max_lines=MOST_LINES, placeholder=" ...") or [""]

    def at(y: float) -> list[str]:
        return [_text(kind, line, x, y + LINE * place) for place, line in enumerate(lines)]

    return at, LINE * (len(lines) - 1.0)


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _tick(value: float, among: Sequence[float]) -> str:
    """With as many digits as its neighbours need to differ."""
    step = min((after - before for before, after in pairwise(among)), default=abs(value) or 1.0)
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if abs(round(step, digits) - step) > 1e-9 * step:
        digits += 1  # a step of 2.5 or 0.25
    return f"{value if value else 0.0:,.{digits}f}"


def _short(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
