"""The charts of a page, section by section, with the text above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from speedo.watch.report import charts
from speedo.watch.report.charts import Bar, Chart
from speedo.watch.report.equal_loss import SeedRange
from speedo.watch.report.figures import SEQUENTIAL, Figures, Series, target_for
from speedo.watch.report.panels import Axis, Ink, Panels, staleness_shares
from speedo.watch.report.words import has_published

AXES: Final[tuple[Axis, ...]] = ("epochs", "seconds")
STEEP: Final = 0.3  # of a chart of losses, from its left: what is above its frame there says little
MOST_LIVES: Final = 12  # charts of workers' lives; of more runs only those in which a worker left
# Parts of a turn: name in the log, name here, colour.
PARTS: Final = (
    ("compute", "computing", 0),
    ("fetch", "fetching the center", 1),
    ("publish", "publishing the result", 2),
    ("team", "summing in the team", 3),
    ("merge", "merging", 4),
    ("rest", "messages and waiting", 5),
)


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under a heading."""

    name: str
    title: str
    text: str
    charts: Sequence[Chart]
    legend: Sequence[Ink] = ()
    swatches: Sequence[tuple[str, int]] = ()
    small: bool = False


def sections_of(figures: Figures, panels: Panels) -> list[Section]:
    """All sections, in the order of the page; one without charts is left out."""
    found = [
        _speedups(figures, panels),
        _losses(figures, panels),
        _accuracies(figures, panels),
        _rates(figures, panels),
        _turns(figures),
        _staleness(figures, panels),
        _lives(figures),
    ]
    return [one for one in found if one.charts]


def _mark(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    ends = [float(end) for end in text.split(" to ")]
    return ends[0], ends[-1]


def _speedups(figures: Figures, panels: Panels) -> Section:
    published, made = has_published(figures), []
    for attribute, title in (
        ("speedup", "Speed-up to equal loss"),
        ("epoch_factor", "Epoch factor"),
        ("throughput_factor", "Throughput factor"),
    ):
        bars = [
            _factor(one, attribute, panels, published)
            for one in figures.series
            if one is not figures.reference
        ]
        if any(bar.value is not None for bar in bars):
            name = attribute.replace("_", "-")
            made.append(charts.bar_chart(name, title, bars, level=(1.0, figures.reference.label)))
    text = f"The dotted line is {figures.reference.label}, which is 1. "
    if any(len(one.runs) > 1 for one in figures.series):
        text += "Thin lines span the seeds. "
    if any(one.predicted for one in figures.series):
        text += "Pale bars with a dashed edge rest on predicted throughput. "
    if published:
        text += "The mark beside a bar of speed-up is what the original published for CIFAR-10."
    return Section("speed-up", "Against " + figures.reference.label, text.strip(), made)


def _factor(one: Series, attribute: str, panels: Panels, published: bool) -> Bar:
    value: SeedRange | None = getattr(one, attribute)
    predicted = one.predicted and attribute != "epoch_factor"
    if value is None:
        factor = one.at_most
        if factor is not None and attribute == "speedup" and one.throughput_factor is not None:
            factor *= one.throughput_factor.mean
        text = "loss not reached" if factor is None else f"at most {factor:.2f}"
    else:
        text = f"{value.mean:.2f}" + (" predicted" if predicted else "")
    mark = _mark(one.published) if published and attribute == "speedup" else None
    words = f"{one.label}: {text}" + (f"; the original: {one.published}" if mark else "")
    several = value is not None and value.count > 1
    return Bar(
        one.label, panels.ink(one).colour, None if value is None else value.mean, text,
        value.least if several and value else None, value.most if several and value else None,
        predicted, mark, words,
    )  # fmt: skip


def _across(figures: Figures, axis: Axis) -> str:
    return figures.unit if axis == "epochs" else "seconds of training"


def _titled(title: str, panel_title: str) -> str:
    return f"{title}, {panel_title}" if panel_title else title


def _losses(figures: Figures, panels: Panels) -> Section:
    made, kind = [], "training loss" if figures.measure == "train" else "test loss"
    level = None
    if figures.targets:
        targets = [target_for(figures, run) for run in figures.reference.runs]
        level = (sum(targets) / len(targets), "loss to reach")
    for axis in AXES:
        for place, panel in enumerate(panels.all):
            if lines := panels.losses(panel, axis):
                title, across = _titled(kind.capitalize(), panel.title), _across(figures, axis)
                name = f"loss-{axis}-{place}"
                made.append(
                    charts.line_chart(name, title, across, kind, lines, level=level, quiet=STEEP)
                )
    text = "The loss by which runs are compared" if figures.compares else "The loss of the run"
    text += "; its steep beginning may be above the frame. "
    if any(len(run.runs) > 1 for run in figures.series):
        text += "Bands span the seeds. "
    return Section("loss", "Loss", text + _predicted_seconds(figures), made, panels.legend())


def _accuracies(figures: Figures, panels: Panels) -> Section:
    made, score = [], figures.score
    for axis in AXES:
        for place, panel in enumerate(panels.all):
            if lines := panels.accuracies(panel, axis):
                title, across = _titled(f"Test {score}", panel.title), _across(figures, axis)
                name = f"accuracy-{axis}-{place}"
                made.append(charts.line_chart(name, title, across, score, lines))
    text = "Each point is a test of the center. " + _predicted_seconds(figures)
    return Section("accuracy", score.capitalize(), text, made, panels.legend())


def _predicted_seconds(figures: Figures) -> str:
    some = any(one.predicted for one in figures.series)
    return "Where throughput is predicted, so are the seconds." if some else ""


def _rates(figures: Figures, panels: Panels) -> Section:
    bars = []
    for one in figures.series:
        rate, colour = one.images_per_s, panels.ink(one).colour
        if one.forecast is not None:
            value = one.forecast.images_per_s
            bars.append(Bar(one.label, colour, value, f"{value:,.0f} predicted", predicted=True))
        elif rate is not None:
            several = rate.count > 1
            bars.append(
                Bar(one.label, colour, rate.mean, f"{rate.mean:,.0f}",
                    rate.least if several else None, rate.most if several else None)
            )  # fmt: skip
    title = f"{figures.counted} per second"
    made = [charts.bar_chart("rates", title.capitalize(), bars)] if bars else []
    return Section("throughput", "Throughput", f"Merged {title} of training.", made)


def _turns(figures: Figures) -> Section:
    rows, seen = [], set()
    for one in figures.series:
        turn = one.turn
        whole = sum(turn.get(name, 0.0) for name, _, _ in PARTS)
        if whole > 0:
            parts = [(words, colour, turn.get(name, 0.0) / whole) for name, words, colour in PARTS]
            seen |= {words for words, _, share in parts if share > 0}
            rows.append((one.label, parts, f"{1000 * turn.get('turn', whole):,.3g} ms"))
    made = [charts.stacked_chart("turns", "Parts of a turn", rows)] if rows else []
    return Section(
        "turns", "Where a turn's time goes",
        "From one result of a worker to its next, means over all turns. The workers measure what they do, "
        "the master its merges; the rest are messages and waiting: for the master, other workers, a core.",
        made, swatches=[(words, colour) for _, words, colour in PARTS if words in seen],
    )  # fmt: skip


def _staleness(figures: Figures, panels: Panels) -> Section:
    made = []
    for place, one in enumerate(figures.series):
        shares = staleness_shares(one)
        if shares and one.mode != SEQUENTIAL:
            made.append(
                charts.histogram(f"staleness-{place}", one.label, panels.ink(one).colour, shares)
            )
    return Section(
        "staleness", "Staleness",
        "Shares of the merged results, by the number of results that the master received while they were made.",
        made, small=True,
    )  # fmt: skip


def _lives(figures: Figures) -> Section:
    runs = [
        (one, run)
        for one in figures.series
        for run in one.runs
        if run.lives and one.mode != SEQUENTIAL
    ]
    eventful = [
        (one, run) for one, run in runs if any(life.ended is not None for life in run.lives)
    ]
    shown = runs if len(runs) <= MOST_LIVES else eventful
    made = [
        charts.lives_chart(
            f"lives-{place}", one.label if len(one.runs) == 1 else f"{one.label}, {run.name}", run.last_second,
            [(life.worker, life.began, life.ended, life.cause) for life in run.lives],
        )
        for place, (one, run) in enumerate(shown)
    ]  # fmt: skip
    text = "When each worker was there. A cross is where it left; its cause is shown under the pointer."
    if len(shown) < len(runs):
        text += f" The {len(runs) - len(shown)} runs that are not shown kept all their workers to the end."
    text += "".join(
        f" In {one.label} at {charts.number(divided.seconds)} s {divided.reason}."
        for one, run in shown
        for divided in run.divisions
    )
    return Section("workers", "Workers' lives", text, made)
