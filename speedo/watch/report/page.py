"""The page: one HTML file that needs nothing else, whose Content-Security-Policy lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from speedo.watch.report.charts import number
from speedo.watch.report.equal_loss import SeedRange
from speedo.watch.report.figures import Figures
from speedo.watch.report.panels import Panels
from speedo.watch.report.sections import sections_of
from speedo.watch.report.words import facts, figures_text, has_published, warnings


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the table; `notes` are smaller and below, a line each."""

    text: str
    notes: Sequence[str] = ()
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """What a page says that is not in its figures. `facts` are name and text of what was measured and how."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()


def page(figures: Figures, heading: Heading) -> str:
    """The HTML of a page."""
    panels = Panels(figures)
    sections = sections_of(figures, panels)
    css, script = (_part(name) for name in ("page.css", "page.js"))
    values = {one.name: one.data for section in sections for one in section.charts if one.data}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_part("page.html")).render(
        policy=(
            f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(script)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        ),
        title=heading.title,
        subtitle=heading.subtitle,
        warnings=[*heading.warnings, *warnings(figures)],
        css=Markup(css),
        script=Markup(script),
        values=json.dumps(values).replace("<", "\\u003c"),
        tiles=_tiles(figures),
        columns=_columns(figures),
        table=_table(figures),
        figures_text=figures_text(figures),
        sections=sections,
        refused=_refused(figures),
        facts=[*heading.facts, *facts(figures)],
    )


def _part(name: str) -> str:
    return resources.files("speedo.watch.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---------------------------------------------------------------- figures


def _range(interval: SeedRange, form: str) -> str:
    """The least and the most; nothing where they look alike."""
    least, most = format(interval.least, form), format(interval.most, form)
    return "" if least == most else f"{least} to {most}"


def _cell(interval: SeedRange | None, form: str, *notes: str, strong: bool = False) -> Cell:
    if interval is None:
        return Cell("", tuple(filter(None, notes)))
    below = (_range(interval, form), *notes)
    return Cell(format(interval.mean, form), tuple(filter(None, below)), strong)


def _columns(figures: Figures) -> list[str]:
    shown = _shown(figures)
    names = {
        "epochs": f"{figures.unit} to the loss", "epoch_factor": "epoch factor", "rate": f"{figures.counted}/s",
        "throughput_factor": "throughput factor", "speedup": "speed-up to equal loss",
        "published": "original's speed-up, CIFAR-10", "seconds": "seconds to the loss", "score": figures.score,
        "refused": "not merged",
    }  # fmt: skip
    return ["run", *(text for name, text in names.items() if name in shown)]


def _shown(figures: Figures) -> set[str]:
    """The columns that say something of these runs."""
    shown = {"rate", "score", "refused"}
    if figures.targets:
        shown |= {"epochs", "seconds"}
    if figures.targets and figures.compares:
        shown |= {"epoch_factor", "throughput_factor", "speedup"}
    return shown | ({"published"} if has_published(figures) else set())


def _table(figures: Figures) -> list[list[Cell]]:
    rows, shown = [], _shown(figures)
    for one in figures.series:
        seeds = f"{len(one.runs)} seeds" if len(one.runs) > 1 else ""
        predicted = "predicted" if one.predicted else ""
        missed, bound, bound_of_both = "", "", ""
        if one.not_reached:
            missed = f"{one.not_reached} of {len(one.runs)} never there"
        if one.at_most is not None:
            bound = f"at most {one.at_most:.2f}"
            if one.throughput_factor is not None:
                bound_of_both = f"at most {one.at_most * one.throughput_factor.mean:.2f}"
        rate = _cell(one.images_per_s, ",.0f")
        if one.forecast is not None:
            rate = Cell(f"{one.forecast.images_per_s:,.0f}", ("predicted", f"{rate.text} here"))
        cells = {
            "epochs": _cell(one.epochs, ".2f", missed),
            "epoch_factor": _cell(one.epoch_factor, ".2f", bound),
            "rate": rate,
            "throughput_factor": _cell(one.throughput_factor, ".2f", predicted),
            "speedup": _cell(one.speedup, ".2f", bound_of_both, predicted, strong=True),
            "published": Cell(one.published),
            "seconds": _cell(one.seconds, ",.1f", predicted),
            "score": _cell(one.accuracy, ".4f"),
            "refused": Cell("" if one.refused_share is None else f"{one.refused_share:.1%}"),
        }
        own = [cell for name, cell in cells.items() if name in shown]
        rows.append([Cell(one.label, (seeds,) if seeds else ()), *own])
    return rows


def _tiles(figures: Figures) -> list[tuple[str, str, str]]:
    """The figures at the top: what stands above each, the figure, and what stands below."""
    found = []
    targets = [loss for seed, loss in figures.targets.items() if seed is not None] or list(
        figures.targets.values()
    )
    kind = "training loss" if figures.measure == "train" else "test loss"
    if targets:
        whose = "given" if figures.target_given else f"that of {figures.reference.label} at its end"
        found.append((f"{kind} to reach", number(sum(targets) / len(targets)), whose))
    elif ends := [float(curve.loss[-1]) for curve in figures.reference.curves if len(curve.loss)]:
        found.append((f"{kind} at the end", number(sum(ends) / len(ends)), figures.reference.label))
    others = [one for one in figures.series if one is not figures.reference]
    for above, attribute, among in (
        ("largest speed-up to equal loss", "speedup", others),
        ("best epoch factor", "epoch_factor", others),
        (
            f"best {figures.score}" if figures.compares else figures.score,
            "accuracy",
            figures.series,
        ),
    ):
        known = [one for one in among if getattr(one, attribute) is not None]
        if known:
            best = max(known, key=lambda one: getattr(one, attribute).mean)
            value = getattr(best, attribute).mean
            predicted = (
                " (throughput predicted)" if attribute == "speedup" and best.predicted else ""
            )
            said = f"{value:.4f}" if attribute == "accuracy" else f"{value:.2f}"
            found.append((above, said, best.label + predicted))
    count = sum(len(one.runs) for one in figures.series)
    done = sum(run.complete for one in figures.series for run in one.runs)
    found.append(("runs", str(count), "all complete" if done == count else f"{done} complete"))
    return found


def _refused(figures: Figures) -> list[tuple[str, str, str, str, str]]:
    """Of each series: its name, results that were merged, that were not, their share, and why."""
    found = []
    for one in figures.series:
        why = Counter[str]()
        for run in one.runs:
            for part in run.refused:
                why[f"{part.decision}: {part.reason}".removesuffix(": ")] += part.count
        if why:
            merged = sum(run.merged for run in one.runs)
            words = "; ".join(f"{text} ({count:,})" for text, count in why.most_common(4))
            share = f"{one.refused_share:.1%}"
            found.append((one.label, f"{merged:,}", f"{why.total():,}", share, words))
    return found
