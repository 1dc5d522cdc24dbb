"""`speedo report`: one page of runs."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal

import click

from speedo.cli.control import run_dir_of
from speedo.cli.run_options import FILE, PATH
from speedo.cli.say import complain, say
from speedo.errors import ConfigError
from speedo.system.bounds import LARGEST_INT32
from speedo.system.foreign_text import clean_text


@click.command()
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option(
    "--output", "-o", type=FILE, metavar="FILE.html",
    help="The page to write, with its picture (.png) and table (.csv) beside it.  [default: RUN/report.html]",
)  # fmt: skip
@click.option(
    "--target-loss", type=click.FloatRange(0, 1e9, min_open=True), metavar="L",
    help="Loss at which runs are compared.  [default: the final loss of sequential Caffe, or of the first run]",
)  # fmt: skip
@click.option(
    "--loss", "measure", type=click.Choice(("train", "test")), default="train", show_default=True,
    help="Compare by the training loss, averaged over an epoch, or by the test net's loss.",
)  # fmt: skip
@click.option(
    "--records", type=click.IntRange(1, LARGEST_INT32), metavar="N",
    help="Training records of an epoch.  [default: those of the first run]",
)  # fmt: skip
@click.option("--title", metavar="TEXT", help="Title of the page.")
@click.option(
    "--png", is_flag=True,
    help="Draw only the picture, into a FILE.png, .pdf or .svg.  [default: RUN/report.png]",
)  # fmt: skip
def report(
    runs: tuple[Path, ...],
    output: Path | None,
    target_loss: float | None,
    measure: Literal["train", "test"],
    records: int | None,
    title: str | None,
    png: bool,
) -> None:
    """Make one page of RUNS, which may be finished, running or failed.

    RUNS are run directories, or the first characters of the ids of runs in progress. Prints the paths of the files.

    The page shows loss and accuracy by epoch and by time, images/s, epochs and seconds to a loss, the speed-up to equal
    loss, staleness, the parts of a turn's time, results that were not merged, and when each worker lived. Runs that
    differ only in their seed are one series, with the range over the seeds. The page is one file and needs no network.
    """
    from speedo.watch.report.picture import FORMS, why_none

    if png and (words := why_none()):
        raise ConfigError(words)
    from speedo.watch.first_failure import kept_failure
    from speedo.watch.report.figures import figures_of
    from speedo.watch.report.files import write_picture, write_report
    from speedo.watch.report.page import Heading
    from speedo.watch.report.run_history import read_history

    if target_loss is not None and math.isnan(target_loss):
        raise ConfigError("--target-loss is nan; use a number above 0")
    ends, what = (FORMS, "picture") if png else (("html", "htm"), "page")
    folders = [run if os.path.lexists(run) else run_dir_of(run) for run in runs]
    target = output or folders[0] / f"report.{ends[0]}"
    if target.suffix.lower().removeprefix(".") not in ends:
        names = " or ".join(f".{end}" for end in ends)
        raise ConfigError(f"--output {target} is no {what}: give a name that ends in {names}")
    histories = [read_history(folder) for folder in folders]
    if not any(run.ends for run in histories):
        where = f"{runs[0]} holds" if len(runs) == 1 else "these runs hold"
        raise ConfigError(f"{where} no merged result yet: there is nothing to report")
    if records is None:
        records = next((run.records for run in histories if run.records), None)
    figures = figures_of(histories, records=records, target=target_loss, measure=measure)
    without = not any(len(curve.loss) for curve in figures.reference.curves)
    if measure == "test" and without and target_loss is None:
        raise ConfigError(
            f"--loss test: {figures.reference.label} has no test with a loss; use --loss train, or give --target-loss"
        )
    several = f"{len(runs)} runs" if len(runs) > 1 else histories[0].name
    subtitle = ", ".join(run.name for run in histories[:6]) + (" and more" if len(runs) > 6 else "")
    facts = [(run.name, clean_text(run.folder.resolve())) for run in histories]
    failures = [(run.name, kept_failure(run.folder)) for run in histories]
    facts += [
        (f"{name}, first failure", "; ".join(map(str.strip, one.lines())))
        for name, one in failures
        if one
    ]
    heading = Heading(title or f"Report of {several}", subtitle, facts)
    if png:
        write_picture(figures, heading.title, target)
        say(target)
        return
    for path in write_report(figures, heading, target):
        say(path)
    if words := why_none():
        complain(words)
