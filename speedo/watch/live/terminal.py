"""The live view of a run in a terminal, and its lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from speedo.system.foreign_text import MOST_NAME
from speedo.watch.console import (
    bare_table,
    progress_parts,
    put_line,
    scores_parts,
    shown,
    workers_in_words,
)
from speedo.watch.live.live_run import LiveRun
from speedo.watch.status_text import in_words

HEIGHT: Final = 7  # lines of a plot
LABEL: Final = 9  # columns of its numbers
# Of a braille cell, by column and row.
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_COLOURS: Final = {"training": "green", "finished": "blue", "no master": "red", "no answer": "red"}

Curve = Sequence[tuple[int, float, float]]


def watch(live: LiveRun, console: Console, interval_s: float) -> None:
    """Show the run until it has ended, or its master is gone; at least once, with its whole log."""
    if not console.is_terminal:
        _lines(live, console, interval_s)
        return
    with Live(console=console, refresh_per_second=4, transient=False) as shown:
        while True:
            more = live.look()
            shown.update(view(live, console.width))
            if not more:
                if not live.is_live:
                    return
                time.sleep(interval_s)


def _lines(live: LiveRun, console: Console, interval_s: float) -> None:
    before = ""
    while True:
        while live.look():
            pass
        line = one_line(live.now())
        if line != before:
            put_line(console, line)
        before = line
        if not live.is_live:
            return
        time.sleep(interval_s)


def one_line(now: dict[str, Any]) -> str:
    """A state as one line of text."""
    there = sum(1 for one in now["workers"] if not one["away"])
    away = [
        f"worker {one['worker']}: {one['cause']}"
        for one in now["workers"]
        if one["away"] and one["cause"]
    ]
    parts = [
        f"{now['name']}: {now['state']}",
        *_parts(now),
        *([workers_in_words(there, now["wanted"])] if now["live"] else []),
        *scores_parts(now["metrics"], now["tested_iteration"]),
        *([f"about {in_words(now['remaining_s'])} left"] if now["remaining_s"] is not None else []),
        *(away if now["live"] else []),
        *([now["reason"]] if now["reason"] else []),
    ]
    return ", ".join(parts)


def _parts(now: dict[str, Any]) -> list[str]:
    names = ("iteration", "max_iter", "epoch", "loss", "images_per_s", "counted")
    return progress_parts(*(now[name] for name in names))


def view(live: LiveRun, width: int) -> RenderableType:
    """The whole view for a terminal of this width."""
    now, curves = live.now(), live.curves()
    head = Text.assemble(
        (now["name"], "bold"),
        "  ",
        (now["state"], _COLOURS.get(now["state"], "yellow")),
        f"  {now['mode']}",
    )
    share = now["iteration"] / now["max_iter"] if now["max_iter"] else 0.0
    left = f", about {in_words(now['remaining_s'])} left" if now["remaining_s"] is not None else ""
    known = 1 if now["epoch"] is None else 2
    far, figures = (parts := _parts(now))[:known], parts[known:]
    progress = Table.grid(padding=(0, 1))
    progress.add_row(
        ProgressBar(total=1.0, completed=min(share, 1.0), width=40),
        shown(f"{', '.join(far)}{left}"),
    )
    tests = [name for name in curves if name.startswith("test/")]
    score = next((name for name in tests if "acc" in name.lower()), next(iter(tests), ""))
    wide = max((width - 8) // (2 if score and width >= 90 else 1), 24)
    panels = [_panel("training loss", curves["loss"], wide)]
    if score:
        panels.append(_panel(score, curves[score], wide))
    figures += scores_parts(now["metrics"], now["tested_iteration"])
    figures += [f"{count:,} {name}" for name, count in now["decisions"].items()]
    troubles = [shown(one, "red") for one in now["troubles"]]
    if now["reason"]:
        troubles.append(shown(now["reason"], "dim" if now["state"] == "finished" else "red"))
    return Group(
        head,
        *troubles,
        progress,
        shown("   ".join(figures)),
        Columns(panels),
        _workers(now["workers"], now["counted"]),
        *([_servers(now["servers"])] if now["servers"] else []),
        *(shown(one, "dim") for one in now["notices"][-3:]),
    )


def _panel(title: str, curve: Curve, width: int) -> Panel:
    rows = plot([(one[0], one[2]) for one in curve], width - 4 - LABEL, HEIGHT)
    return Panel(
        Text("\n".join(rows)),
        title=shown(title),
        title_align="left",
        width=width,
        border_style="dim",
    )


def plot(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """A curve in braille, this many cells wide and high, with its least and its largest value at the left."""
    if not points:
        return ["nothing yet", *[""] * (height - 1)]
    (least_x, most_x), (least, most) = ((min(one), max(one)) for one in zip(*points, strict=True))
    cells = [[0] * width for _ in range(height)]
    before: tuple[int, int] | None = None
    for x, y in points:
        column = round((x - least_x) / ((most_x - least_x) or 1.0) * (2 * width - 1))
        row = round((most - y) / ((most - least) or 1.0) * (4 * height - 1))
        for at, level in _between(before, (column, row)):
            cells[level // 4][at // 2] |= _DOTS[at % 2][level % 4]
        before = (column, row)
    labels = {height - 1: f"{least:.4g}", 0: f"{most:.4g}"}
    return [
        labels.get(number, "").rjust(LABEL - 1) + " " + "".join(chr(0x2800 + cell) for cell in row)
        for number, row in enumerate(cells)
    ]


def _between(before: tuple[int, int] | None, now: tuple[int, int]) -> Iterable[tuple[int, int]]:
    """The dots of a line from the former point to this one."""
    if before is None:
        return [now]
    steps = max(abs(now[0] - before[0]), abs(now[1] - before[1]), 1)
    return [
        (
            round(before[0] + (now[0] - before[0]) * step / steps),
            round(before[1] + (now[1] - before[1]) * step / steps),
        )
        for step in range(steps + 1)
    ]


def _workers(workers: list[dict[str, Any]], counted: str) -> Table:
    table = bare_table(
        "worker", "host", "team", "merged", "dropped", "loss", f"{counted}/s", "stale", "state", "last death"
    )  # fmt: skip
    for one in workers:
        death = ""
        if one["deaths"]:
            death = f"{one['cause']} ({in_words(one['died_s_ago'])} ago)"
        state = str(one["state"])
        if one["away"]:  # the cause has a column of its own
            state = state.removesuffix(f": {one['cause']}")
        table.add_row(
            str(one["worker"]), shown(one["host"], limit=MOST_NAME),
            "" if one["team"] is None else str(one["team"]), str(one["merged"]),
            str(one["dropped"]), "" if one["loss"] is None else f"{one['loss']:.4f}",
            "" if one["images_per_s"] is None else f"{one['images_per_s']:,.0f}",
            "" if one["staleness"] is None else f"{one['staleness']:.1f}",
            shown(state, _colour(one)), shown(death, "red"),
        )  # fmt: skip
    return table


def _colour(worker: dict[str, Any]) -> str:
    if worker["state"] == "ended":
        return "dim"
    return "red" if worker["away"] else "green"


def _servers(servers: list[dict[str, Any]]) -> Table:
    table = bare_table("server", "host", "MB", "state")
    for one in servers:
        size = f"{one['bytes'] / 1e6:,.1f}"
        table.add_row(*map(shown, (one["server"], one["host"], size, one["state"])))
    return table
