"""The same figures as one picture, for a document."""

from __future__ import annotations

from textwrap import wrap
from typing import IO, Any, Final

from speedo.system.remedies import lacking
from speedo.watch.report.charts import PlottedLine
from speedo.watch.report.figures import Figures
from speedo.watch.report.panels import Ink, Panels, staleness_shares
from speedo.watch.report.sections import STEEP

# As `c0` to `c7` of the light page: they differ also for readers who do not see red or green.
INKS: Final = (
    "#23262b",
    "#0068b0",
    "#cc5200",
    "#007f5c",
    "#b0468a",
    "#9a7500",
    "#3b8ec2",
    "#7a5cc4",
)
DASHES: Final[tuple[Any, ...]] = ("-", (0, (6, 2)), (0, (2, 2)), (0, (7, 2, 2, 2)))
# Inches: of a chart with its margins, of a line of names at 8 points and of a letter in it, of a bar with its room.
CHART: Final = 3.4
LINE: Final = 0.16
LETTER: Final = 0.058
BAR: Final = 0.34
MOST_LINES: Final = 4  # of a name

FORMS: Final = ("png", "pdf", "svg")


def why_none() -> str:
    """The sentence that says why there can be no picture here; or nothing."""
    return lacking("matplotlib", "plot", "the report's picture (.png)")


def draw(figures: Figures, title: str, file: IO[bytes], form: str) -> None:
    """A picture in one of `FORMS`: loss, accuracy and images/s of each panel, staleness, and the speed-ups.

    Needs matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["text.parse_math"] = False  # `$` in a name is no formula
    from matplotlib import pyplot

    panels = Panels(figures)
    columns = max(len(panels.all), 1)
    bars = [
        one for one in figures.series if one.speedup is not None and one is not figures.reference
    ]
    width = max(5.0 * columns, 7.0)
    # Names are in lines of their own, so that a long one takes nothing from the charts.
    legend = [(ink, _lines(ink.label, width - 1.2)) for ink in panels.legend()]
    labels = [_lines(one.label, width - 1.2) for one in bars]
    heights = [
        LINE * (1 + sum(1 + lines.count("\n") for _, lines in legend)),
        *[CHART] * 5,
        *([1.0 + sum(map(_height, labels))] if bars else []),
    ]
    figure = pyplot.figure(figsize=(width, sum(heights)), layout="constrained")
    try:
        figure.suptitle(title)
        grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
        axis = figure.add_subplot(grid[0, :])
        axis.axis("off")
        handles = [axis.plot([], [], label=lines, **_style(ink))[0] for ink, lines in legend]
        axis.legend(handles=handles, loc="upper left", fontsize=8, frameon=False, borderpad=0)
        kind = "training loss" if figures.measure == "train" else "test loss"
        for column, panel in enumerate(panels.all):
            suffix = f", {panel.title}" if panel.title else ""
            for row, (lines, up, across, quiet) in enumerate(
                (
                    (panels.losses(panel, "epochs"), kind, figures.unit, STEEP),
                    (panels.losses(panel, "seconds"), kind, "seconds of training", STEEP),
                    (
                        panels.accuracies(panel, "epochs"),
                        f"test {figures.score}",
                        figures.unit,
                        0.1,
                    ),
                    (panels.rates(panel), f"{figures.counted}/s", "seconds of training", 0.0),
                )
            ):
                axis = figure.add_subplot(grid[row + 1, column])
                axis.set_title(f"{up.capitalize()}{suffix}", fontsize=10, loc="left")
                _draw_lines(axis, lines, quiet)
                _label(axis, across, up)
        axis = figure.add_subplot(grid[5, :])
        axis.set_title("Staleness of the merged results", fontsize=10, loc="left")
        for one in figures.series:
            shares = staleness_shares(one)
            places = [int(place) for place, _ in shares]
            style = _style(panels.ink(one))
            axis.plot(places, [share for _, share in shares], marker="o", markersize=4, **style)
        _label(axis, "results in between", "share of the results")
        if bars:
            axis = figure.add_subplot(grid[6, :])
            _draw_bars(axis, bars, labels, panels)
            level = f"Speed-up to equal loss, {figures.reference.label} is 1"
            axis.set_title(_lines(level, 0.8 * (width - 1.2)), fontsize=10, loc="left")
        figure.savefig(file, dpi=120, format=form)
    finally:
        pyplot.close(figure)


def _lines(name: str, inches: float) -> str:
    """A name in lines that are no wider than this."""
    most = int(inches / LETTER)
    return "\n".join(wrap(name, most, max_lines=MOST_LINES, placeholder=" ..."))


def _height(label: str) -> float:
    """Inches of a bar with its label above it."""
    return BAR + LINE * (1 + label.count("\n"))


def _style(ink: Ink | PlottedLine) -> dict[str, Any]:
    return {"color": INKS[ink.colour], "linestyle": DASHES[ink.dash], "linewidth": 1.6}


def _label(axis: Any, across: str, up: str) -> None:
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    axis.locator_params(nbins=5)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_lines(axis: Any, lines: list[PlottedLine], quiet: float) -> None:
    right = max((max(line.xs) for line in lines), default=1.0)
    late: list[float] = []
    for line in lines:
        marker = "o" if line.dots or len(line.xs) == 1 else None
        axis.plot(line.xs, line.ys, marker=marker, markersize=4, **_style(line))
        if line.lows and line.highs:
            axis.fill_between(
                line.xs, line.lows, line.highs, color=INKS[line.colour], alpha=0.15, linewidth=0
            )
        pairs = zip(line.xs, line.ys, strict=True)
        late += [y for x, y in pairs if x >= quiet * right and y == y]
    if late and max(late) > min(late):
        room = 0.06 * (max(late) - min(late))
        axis.set_ylim(min(late) - room, max(late) + room)
    axis.set_xlim(0, right * 1.02)


def _draw_bars(axis: Any, bars: list[Any], labels: list[str], panels: Panels) -> None:
    top = 0.0
    for one, label in zip(bars, labels, strict=True):
        place = top + _height(label) - BAR / 2
        ink, found = INKS[panels.ink(one).colour], one.speedup
        axis.barh(place, found.mean, color=ink, alpha=0.4 if one.predicted else 1.0, height=BAR / 2)
        if found.count > 1:
            axis.plot([found.least, found.most], [place, place], color="black", linewidth=1.2)
        words = f" {found.mean:.2f}" + (" predicted" if one.predicted else "")
        axis.text(max(found.mean, found.most), place, words, va="center", fontsize=9)
        axis.text(0, top, label, va="top", fontsize=8)
        top += _height(label)
    axis.set_ylim(top, 0)
    axis.set_yticks([])
    axis.axvline(1.0, color="grey", linestyle=":")
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.15)
