"""Predictions as text for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from speedo.study.planning.calibration import Calibration
from speedo.study.planning.predict import HYBRID, Prediction, Way, best_of, way_of
from speedo.study.planning.site import Site
from speedo.system.foreign_text import aligned

NEARLY: Final = 0.95  # of the best, at which fewer workers are worth a line
LIMITS: Final = {
    "compute": "the workers' own arithmetic, which more workers share",
    "link": "the busiest link, which more local steps relieve, a faster one, or more servers",
    "store": "Redis, whose one thread has less to do with more local steps",
    "master": "the master, which takes one result after another; more local steps relieve it",
    "server": "the busiest server, which does one thing after another; more local steps relieve it",
}
UNKNOWN: Final = (
    "not known from a run, or a file of an earlier version: which inner products go as factors, and what leaves while "
    "earlier layers compute; give SOLVER to measure both"
)
REMARK: Final = "Images/s are not learning: a faster mode may need more of them. Tests and checkpoints are not counted."


def as_text(calibration: Calibration, site: Site, predictions: Sequence[Prediction]) -> str:
    """The whole answer."""
    net = f"{calibration.net}, batch {calibration.batch}, {calibration.nbytes / 1e6:.1f} MB of parameters"
    if calibration.compression != "none":
        sent, fetched = calibration.payload_bytes / 1e6, calibration.center_bytes / 1e6
        net += f" ({calibration.compression}: {sent:.2g} MB sent, {fetched:.2g} MB fetched)"
    plain = "one plain Caffe"
    if calibration.offloaded:
        plain = "one worker alone"
    elif calibration.threads > 1:
        plain += f" with {calibration.threads} threads"
    lines = [
        f"{net}; {plain}: {calibration.images_per_s:,.0f} images/s",
        site.describe(),
        "",
        *_table("images/s", predictions, lambda one: f"{one.images_per_s:,.0f}"),
        "",
        *_table(
            "times one Caffe (efficiency)",
            predictions,
            lambda one: f"{one.speedup:.2f} ({one.efficiency:.0%})",
        ),
        "",
        *_best(predictions),
        *_ways(calibration, site, predictions),
        "",
        *(f"{name}: {told}" for name, told in calibration.origin.items()),
        REMARK,
    ]
    if any(one.mode == "hybrid" for one in predictions):
        lines.append(f"hybrid means here phases of {' and '.join(HYBRID)} of equal length.")
    most = max(one.workers for one in predictions)
    if site.link is None and most > site.cores:
        lines.append(
            f"More than {site.cores} workers share the cores of this machine; --link plans for several machines."
        )
    return "\n".join(lines)


def as_json(
    calibration: Calibration, site: Site, predictions: Sequence[Prediction]
) -> dict[str, Any]:
    """The same as plain values; rates in bits per second, times in seconds."""
    return {
        "calibration": calibration.model_dump(mode="json"),
        "site": asdict(site),
        "images_per_s": calibration.images_per_s,
        "predictions": [asdict(one) for one in predictions],
        "best": asdict(best_of(predictions)),
    }


def _table(
    title: str, predictions: Sequence[Prediction], cell: Callable[[Prediction], str]
) -> list[str]:
    """A row for each mode and number of local steps, a column for each number of workers."""
    counts = sorted({one.workers for one in predictions})
    several = len({one.local_steps for one in predictions}) > 1
    rows = [[title, *(str(count) for count in counts)]]
    for key in dict.fromkeys((one.mode, one.local_steps) for one in predictions):
        cells = {
            one.workers: cell(one) for one in predictions if (one.mode, one.local_steps) == key
        }
        steps = f", {key[1]} local step{'s' * (key[1] > 1)}" if several or key[1] > 1 else ""
        rows.append([key[0] + steps, *(cells.get(count, "-") for count in counts)])
    return aligned(rows)


def _best(predictions: Sequence[Prediction]) -> list[str]:
    best = best_of(predictions)
    lines = [f"best: {_sentence(best)}", f"  limit: {LIMITS[best.limit]} ({_shares(best)})"]
    fewer = [
        one
        for one in predictions
        if (one.mode, one.local_steps) == (best.mode, best.local_steps)
        and one.workers < best.workers
        and one.images_per_s >= NEARLY * best.images_per_s
    ]
    if fewer:
        least = min(fewer, key=lambda one: one.workers)
        share = least.images_per_s / best.images_per_s
        lines.append(f"  {_workers(least)} give {share:.0%} of it")
    for steps in dict.fromkeys(one.local_steps for one in predictions):
        of_steps = best_of(one for one in predictions if one.local_steps == steps)
        if of_steps != best:
            lines.append(f"best with {_steps(of_steps)}: {_sentence(of_steps)}")
            lines.append(f"  limit: {LIMITS[of_steps.limit]} ({_shares(of_steps)})")
    return lines


def _ways(calibration: Calibration, site: Site, predictions: Sequence[Prediction]) -> list[str]:
    """Which way results take with the most workers, and why."""
    most = max(one.workers for one in predictions)
    modes: dict[Way, list[str]] = {}
    for mode in dict.fromkeys(one.mode for one in predictions):
        modes.setdefault(way_of(calibration, site, mode, most), []).append(mode)
    lines = [f"{', '.join(names)}: {way.words} ({way.why})" for way, names in modes.items()]
    spread = [one for one in predictions if one.workers == most and one.ring_bytes]
    for local_steps in dict.fromkeys(one.local_steps for one in spread):
        one = next(one for one in spread if one.local_steps == local_steps)
        moved = f"each machine sends {one.ring_bytes / 1e6:,.2f} MB on the ring"
        if one.as_factors:
            names = ", ".join(one.as_factors)
            moved += f", and {one.factor_bytes / 1e6:,.2f} MB as factors of {names}"
        lines.append(f"  a round with {_steps(one)} and {_workers(one)}: {moved}")
    if spread and calibration.over_hosts is None:
        lines.append(f"  {UNKNOWN}")
    return lines


def _sentence(one: Prediction) -> str:
    return (
        f"{one.mode}, {_steps(one)}, {_workers(one)}: {one.images_per_s:,.0f} images/s, "
        f"{one.speedup:.2f} times one Caffe, efficiency {one.efficiency:.0%}"
    )


def _steps(one: Prediction) -> str:
    return "1 local step" if one.local_steps == 1 else f"{one.local_steps} local steps"


def _workers(one: Prediction) -> str:
    return "1 worker" if one.workers == 1 else f"{one.workers} workers"


def _shares(one: Prediction) -> str:
    shares = one.shares
    parts = [f"workers compute {shares['compute']:.0%} of the time"]
    parts += [
        f"{name} busy {shares[name]:.0%}"
        for name in ("link", "store", "master", "server")
        if shares.get(name, 0.0) >= 0.005
    ]
    return ", ".join(parts)
