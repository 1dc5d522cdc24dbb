"""The same figures as one picture, for a document."""

from __future__ import annotations

from typing import IO, Any, Final

from speedo.system.remedies import lacking
from speedo.watch.report.charts import Line
from speedo.watch.report.figures import Figures
from speedo.watch.report.panels import Panels, staleness_shares
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
    rows = 5 + bool(bars)
    figure = pyplot.figure(figsize=(max(5.0 * columns, 7.0), 3.4 * rows), layout="constrained")
    try:
        figure.suptitle(title)
        grid = figure.add_gridspec(rows, columns)
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
                    (panels.rates(panel), "images/s", "seconds of training", 0.0),
                )
            ):
                axis = figure.add_subplot(grid[row, column])
                axis.set_title(f"{up.capitalize()}{suffix}", fontsize=10, loc="left")
                _draw_lines(axis, lines, quiet)
                _label(axis, across, up)
                if row == 0 and column == 0 and lines:
                    axis.legend(fontsize=8, frameon=False)
        axis = figure.add_subplot(grid[4, :])
        axis.set_title("Staleness of the merged results", fontsize=10, loc="left")
        for one in figures.series:
            shares = staleness_shares(one)
            ink = panels.ink(one)
            style = {"color": INKS[ink.colour], "linestyle": DASHES[ink.dash]}
            places = [int(place) for place, _ in shares]
            axis.plot(places, [share for _, share in shares], marker="o", markersize=4, **style)
        _label(axis, "results in between", "share of the results")
        if bars:
            axis = figure.add_subplot(grid[5, :])
            _draw_bars(axis, bars, panels)
            axis.set_title(
                f"Speed-up to equal loss, {figures.reference.label} is 1", fontsize=10, loc="left"
            )
        figure.savefig(file, dpi=120, format=form)
    finally:
        pyplot.close(figure)


def _label(axis: Any, across: str, up: str) -> None:
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    axis.locator_params(nbins=5)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_lines(axis: Any, lines: list[Line], quiet: float) -> None:
    right = max((max(line.xs) for line in lines), default=1.0)
    late: list[float] = []
    for line in lines:
        style = {"color": INKS[line.colour], "linestyle": DASHES[line.dash], "linewidth": 1.6}
        marker = "o" if line.dots or len(line.xs) == 1 else None
        axis.plot(line.xs, line.ys, label=line.label, marker=marker, markersize=4, **style)
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


def _draw_bars(axis: Any, bars: list[Any], panels: Panels) -> None:
    for place, one in enumerate(bars):
        ink, found = INKS[panels.ink(one).colour], one.speedup
        axis.barh(place, found.mean, color=ink, alpha=0.4 if one.predicted else 1.0, height=0.6)
        if found.count > 1:
            axis.plot([found.least, found.most], [place, place], color="black", linewidth=1.2)
        words = f" {found.mean:.2f}" + (" predicted" if one.predicted else "")
        axis.text(max(found.mean, found.most), place, words, va="center", fontsize=9)
    axis.set_yticks(range(len(bars)), [one.label for one in bars])
    axis.invert_yaxis()
    axis.axvline(1.0, color="grey", linestyle=":")
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.15)
