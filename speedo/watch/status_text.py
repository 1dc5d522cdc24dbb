"""Formats a run's answer to `speedo status` as text, and the result of a finished run as a sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from speedo.run_dir.directory import LOG, RESULT
from speedo.run_dir.read_back import read_result
from speedo.sgd_modes.conditions import name_of_score
from speedo.system.foreign_text import aligned, clean_values
from speedo.watch.control_socket import OTHER
from speedo.watch.first_failure import first_failure, kept_failure
from speedo.watch.scores import short_scores

COLUMNS: Final = (
    "worker", "host", "process", "threads", "cores", "device", "merged", "dropped", "rate", "state",
)  # fmt: skip
LEFT: Final = ("host", "cores", "device", "state")  # columns of text
SERVER_COLUMNS: Final = ("server", "host", "MB", "state")
# Told in a place of their own, or of no use to people; whatever else a run answers is shown as it is.
TOLD: Final = frozenset(
    (
        "run", "run_dir", "address", "pid", "speedo", "solver", "expected_workers", "min_workers", "remaining_s",
        "state", "mode", "iteration", "max_iter", "epoch", "version", "loss", "images_per_s", "seconds",
        "tested_iteration", "metrics", "dropped", "workers", "over", "wanted", "checkpoint_iteration",
        "checkpoint_problem", "store_trouble", "log_problem", "notices", "noticed", "servers", "owed",
        "heard_s", "master_restarts", "counted",
    )
)  # fmt: skip


def lines_of(run: Mapping[str, Any]) -> list[str]:
    """One run as lines of text; a run of another version may lack some of the fields."""
    known = clean_values(run)
    try:
        return _lines_of(known)
    except (KeyError, TypeError, ValueError, AttributeError):
        return [f"run {known.get('run', '?')}: its answer cannot be read: {OTHER}"]


def _lines_of(run: Mapping[str, Any]) -> list[str]:
    if "problem" in run:
        return [f"run {run['run']}: {run['problem']}"]
    workers = run["workers"]
    there = sum(1 for worker in workers if not worker["away"])
    lines = [
        f"run {run['run']}, mode {run['mode']}: {run['state']}",
        f"  directory  {run['run_dir']}",
        *([f"  address    {run['address']}"] if run["address"] else []),
        f"  iteration  {run['iteration']}"
        + (f" of {run['max_iter']}" if run["max_iter"] else "")
        + _or_nothing(run["epoch"], ", epoch {:.2f}")
        + (_or_nothing(run["remaining_s"], "; about {} left", in_words) if not run["over"] else ""),
        f"  training   version {run['version']}"
        + _or_nothing(run["loss"], ", loss {:.4f}")
        + f", {run['images_per_s'] or 0:,.0f} {run.get('counted', 'images')}/s",
    ]
    if run["metrics"]:
        scores = ", ".join(
            f"{name} {value:.4f}" for name, value in short_scores(run["metrics"]).items()
        )
        lines.append(f"  last test  at {run['tested_iteration']}: {scores}")
    dropped = run.get("dropped")
    if dropped:
        causes = ", ".join(f"{count} {cause}" for cause, count in dropped.items())
        lines.append(f"  dropped    {causes}")
    if run["checkpoint_iteration"]:
        lines.append(f"  checkpoint at {run['checkpoint_iteration']}")
    if restarts := run.get("master_restarts"):
        lines.append(
            f"  master     restarted {times(len(restarts))}, the last time: {restarts[-1]}"
        )
    lines += [
        f"  trouble    {run[name]}"
        for name in ("store_trouble", "checkpoint_problem", "log_problem")
        if run.get(name)
    ]
    for name, value in run.items():
        if name not in TOLD and value not in (None, "", [], {}, False):
            lines.append(f"  {name.replace('_', ' '):<10} {value}")
    wanted = run["wanted"] or run["expected_workers"]
    count = f"{there} of {wanted}" if there <= wanted else f"{there}, {wanted} wanted"
    lines.append(f"  workers    {count}")
    lines += [f"    {row}" for row in table(workers, run.get("counted", "images"))]
    if there < len(workers) and (failure := first_failure(Path(run["run_dir"]))) is not None:
        lines += [f"  {line}" for line in failure.lines()]
    if servers := run.get("servers"):
        lines.append(f"  servers    {len(servers)}")
        lines += [f"    {row}" for row in table_of_servers(servers)]
    return lines


def table(workers: list[Mapping[str, Any]], counted: str = "images") -> list[str]:
    """A row per worker under a row of headings, aligned; nothing without workers."""
    if not workers:
        return []
    rows: list[tuple[str, ...]] = [
        tuple(f"{counted}/s" if name == "rate" else name for name in COLUMNS),
        *(
            (
                str(one["worker"]), one["host"], str(one["process"] or ""), str(one["threads"] or ""), one["cores"],
                one.get("device", ""), str(one["merged"]), str(one["dropped"]),
                f"{one['images_per_s'] or 0:,.0f}", one["state"],
            )
            for one in workers
        ),
    ]  # fmt: skip
    if not any(one.get("device") for one in workers):  # Caffe's are not known
        at = COLUMNS.index("device")
        rows = [(*row[:at], *row[at + 1 :]) for row in rows]
    return aligned(rows, [place for place, name in enumerate(rows[0]) if name in LEFT])


def table_of_servers(servers: list[Mapping[str, Any]]) -> list[str]:
    """The same of the servers of the center, with the megabytes of their ranges."""
    found = [
        (str(one["server"]), one["host"], f"{one['bytes'] / 1e6:,.1f}", one["state"])
        for one in servers
    ]
    return aligned([SERVER_COLUMNS, *found], left=(1, 3))


def times(count: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def in_words(seconds: float) -> str:
    """A duration as text."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def outcome_of(run_dir: Path) -> tuple[dict[str, Any] | None, str]:
    """The content of `result.json`, None without one, and the same as a sentence."""
    result = read_result(run_dir / RESULT)
    failure = kept_failure(run_dir) if os.path.isdir(run_dir) else None
    told = "\n".join(["", *failure.lines()]) if failure is not None and failure.ended else ""
    if result is None:
        return None, f"the run has ended without a result; {run_dir / LOG} says why{told}"
    accuracy = result.get("accuracy")
    metrics = result.get("metrics")
    name = name_of_score(metrics if isinstance(metrics, dict) else ())
    tested = "" if accuracy is None else f", test {name} {accuracy:.4f}"
    return result, (
        f"it ended at iteration {result['iteration']} ({result['reason']}){tested}\n{result['model']}{told}"
    )


def _or_nothing(value: float | None, words: str, form: Any = None) -> str:
    if value is None:
        return ""
    return words.format(form(value) if form else value)
