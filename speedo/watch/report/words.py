"""What a page says of its figures: how they were measured, and what is not as it should be."""

from __future__ import annotations

from speedo.watch.report.figures import PUBLISHED, SEQUENTIAL, Figures
from speedo.watch.status_text import times


def has_published(figures: Figures) -> bool:
    """Whether the original's table has figures for these modes and numbers of workers."""
    return figures.reference.mode == SEQUENTIAL and any(one.published for one in figures.series)


def figures_text(figures: Figures) -> str:
    """What stands above the table."""
    name, text = figures.reference.label, ""
    if figures.targets and figures.compares:
        text = (
            f"Epoch factor: {figures.unit} of {name} over those of the run, to the same loss. Throughput "
            f"factor: {figures.counted}/s of the run over those of {name}. Speed-up to equal loss: their product. "
        )
    if any(len(one.runs) > 1 for one in figures.series):
        text += "Figures are means over seeds; below them stand the least and the most. "
    if any(one.predicted for one in figures.series):
        text += (
            "Where workers outnumber the cores of this machine, throughput is predicted by a simulator "
            "that was calibrated here; epochs are measured with real workers everywhere. "
        )
    return text.strip()


def warnings(figures: Figures) -> list[str]:
    """Runs that are not complete or whose master was restarted, and what the figures lack."""
    found = []
    for one in figures.series:
        for run in one.runs:
            if not run.complete:
                found.append(f"{one.label}, run {run.name}, is not complete: {run.reason}.")
            if causes := run.master_restarts:
                often = times(len(causes))
                found.append(
                    f"{one.label}, run {run.name}: its master was restarted {often}, the last time: {causes[-1]}."
                )
    if figures.records is None:
        found.append(
            f"The number of training records is not known, so runs are drawn against {figures.counted}; give "
            "--records to see epochs."
        )
    return found


def facts(figures: Figures) -> list[tuple[str, str]]:
    """How each figure is defined: name and text."""
    reference = figures.reference.label
    found = [("loss", _loss(figures))]
    if figures.targets:
        text = "A run reaches a loss where its curve is at or below it for the first time, interpolated."
        found.append(("to a loss", text))
    if figures.targets and not figures.target_given:
        text = (
            f"The loss that {reference} has at its end, with the same seed where there is one; it counts "
            "as reached within a thousandth."
        )
        found.append(("target", text))
    if figures.records:
        text = f"{figures.records:,} merged {figures.counted}. Results that were not merged do not count."
        found.append(("epoch", text))
    text = "Of training, from the moment when the last of the first workers had joined."
    if figures.reference.mode == SEQUENTIAL:
        text += " The tests of a run are made during its training; those of sequential Caffe are not counted."
    found.append(("seconds", text))
    text = f"Merged {figures.counted} over time, without the first tenth of a run and pauses before a resume."
    found.append((f"{figures.counted}/s", text))
    if has_published(figures):
        found.append(("the original's table", _published()))
    return found


def _loss(figures: Figures) -> str:
    if figures.measure == "test":
        return "The loss of the test net at each test, and between two tests the line through both."
    last = f"{figures.window:,.0f} {figures.counted}"
    if figures.records:
        last += f" ({figures.window / figures.records:.2g} epochs)"
    return (
        f"The training loss: the mean over the last {last}, so that the noise of single batches is gone; "
        "before that, over all. It is the loss that workers see at their own weights, which in easgd "
        "are not the center's."
    )


def _published() -> str:
    modes = [
        f"{mode} {', '.join(PUBLISHED[mode][count] for count in (2, 3, 4))}"
        for mode in ("easgd", "sync")
    ]
    return (
        "Speed-up to equal loss with 2, 3 and 4 workers on CIFAR-10, as published with SpeeDO in 2016: "
        f"{'; '.join(modes)}; asynchronous modes 1.24 to 0.98. In the bars it is the mark beside ours."
    )
