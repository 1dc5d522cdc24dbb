"""Shows the progress of a run: live on a terminal, as plain lines elsewhere; always logged in the run directory."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.status import Status as RichStatus
from rich.table import Table
from rich.text import Text

from speedo.run_dir.directory import LOG
from speedo.run_dir.process_logs import STAMP
from speedo.system.daemon_thread import DaemonThread
from speedo.system.foreign_text import MOST_NAME, MOST_TEXT, clean_text
from speedo.system.line_file import LineFile
from speedo.system.standard_streams import unread
from speedo.watch.scores import short_scores
from speedo.watch.status import ENDED, Status, WorkerStatus, where_in_words

LINE_S: Final = 5.0  # seconds between plain lines
SAME_LINE_S: Final = 30.0  # seconds until a line is said again that has not changed
CLOSE_S: Final = 10.0  # for the last lines to be written; a disk that hangs is not waited for
LEFT: Final = ("host", "state", "last death")  # columns of text
KEPT_BYTES: Final = 1 << 20  # of lines that the disk does not take, at most


class Watch(Protocol):
    """Receives notes and states during a run."""

    def note(self, text: str) -> None: ...

    def begin(self, run_dir: Path) -> None: ...

    def show(self, status: Status) -> None: ...


class ErrorConsole(Console):
    """Standard error; if it is closed (`| head`, a closed terminal), the command continues without it."""

    def __init__(self) -> None:
        super().__init__(file=cast(TextIO, _Lasting(sys.stderr)))


def shown(text: object, style: str = "", limit: int = MOST_TEXT) -> Text:
    """Text for a cell or a title: nothing in it is markup, an emoji's name or a control character."""
    return Text(clean_text(text, limit), style)


def put_line(console: Console, text: str) -> None:
    """One line, which the terminal may wrap."""
    console.print(shown(text), soft_wrap=True)


class _Lasting:
    """A stream that discards what cannot be written any more; otherwise like the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            unread(2)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            unread(2)


class StatusLine:
    """Notes as lines of standard error. A state is a line that is written over on a terminal.

    Elsewhere it is a line of its own at most every `every_s` seconds; left out, it is not shown there.
    """

    def __init__(self, every_s: float = math.inf) -> None:
        self._console, self._every_s = ErrorConsole(), every_s
        self._said = time.monotonic()
        self._status: RichStatus | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def note(self, text: str) -> None:
        put_line(self._console, text)

    def show(self, text: str) -> None:
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status("")
                self._status.start()
            self._status.update(shown(text))
        elif time.monotonic() - self._said >= self._every_s:
            self._said = time.monotonic()
            put_line(self._console, text)


class Quiet:
    """A watcher that shows nothing; for use from Python."""

    def note(self, text: str) -> None:
        """Nothing is shown."""

    def begin(self, run_dir: Path) -> None:
        """Nothing is written."""

    def show(self, status: Status) -> None:
        """Nothing is shown."""


class ConsoleProgress:
    """Shows notes and states on a console, and writes both to `train.log` in the run directory."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self.run_dir: Path | None = None
        self._log: LineFile | None = None
        self._kept: list[str] = []
        self._next_line = 0.0
        self._said = ("", -SAME_LINE_S)  # the last line, and when
        self._last_tested: tuple[int, int] = (-1, -1)
        self._away: dict[int, str] = {}
        self._processes: dict[int, int] = {}
        self._noticed: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_live()
        if self._log is not None:
            log, self._log = self._log, None
            closing = self._writer.submit(lambda: log.close().count(b"\n") + log.lines_lost)
            self._writer.end()
            if not wait([closing], CLOSE_S).done:
                self.note(f"warning: the last lines of {log.path} are not written: its disk hangs")
            elif lost := closing.result():
                self.note(
                    f"warning: {lost} lines of {log.path} could not be written: {log.problem}"
                )

    def begin(self, run_dir: Path) -> None:
        """From now on everything is logged in this directory too; notices are shown from the first on."""
        self.run_dir, self._noticed = run_dir, 0
        if self._log is not None:  # another master of the same run
            return
        self._writer: DaemonThread[int | None] = DaemonThread(LOG)  # its disk may hang
        self._log = LineFile(run_dir / LOG, kept_bytes=KEPT_BYTES, lost=_gap)
        kept, self._kept = self._kept, []
        for text in kept:
            self._write(text)

    def note(self, text: str) -> None:
        put_line(self._console, text)
        self._write(text)

    def show(self, status: Status) -> None:
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, refresh_per_second=4, transient=False)
                self._live.start()
            self._live.update(_panel(status))
        tested = (status.tested_iteration, len(status.metrics))
        new_test = bool(status.metrics) and tested != self._last_tested
        self._tell_absences(status)
        self._tell_notices(status)
        now = time.monotonic()
        if now >= self._next_line or new_test or status.over:
            self._next_line = now + LINE_S
            self._last_tested = tested if new_test else self._last_tested
            self._say(plain_line(status), now)
        if status.over:
            self._end_live()

    def _tell_absences(self, status: Status) -> None:
        """A line for every worker that has joined, left or returned since the last state."""
        away = {one.worker: one.state for one in status.workers if one.is_away}
        for one in status.workers:
            before, now = self._away.get(one.worker), away.get(one.worker)
            joined = one.process not in (0, self._processes.get(one.worker))
            if one.process:
                self._processes[one.worker] = one.process
            if now != before or joined:
                what = "has joined" if before is None else "is back"
                where = where_in_words(one.process, one.threads, one.cores, one.device)
                what += f": {where}" if where else ""
                if now:
                    what = "has done its part" if now == ENDED else f"is {now}"
                self.note(f"worker {one.worker} on {one.host} {what}")
        self._away = away

    def _tell_notices(self, status: Status) -> None:
        """The notices since the last state; at the first state, the present problems."""
        if self._noticed is None:
            wrong = (status.store_trouble, status.checkpoint_problem)
            fresh = [f"warning: {problem}" for problem in wrong if problem]
        else:
            new = status.noticed - self._noticed
            fresh = list(status.notices[-new:]) if new > 0 else []
        self._noticed = status.noticed
        for text in fresh:
            self.note(text)

    def _say(self, text: str, now: float) -> None:
        """Write the line, unless it was written recently."""
        last, said = self._said
        if text == last and now - said < SAME_LINE_S:
            return
        self._said = (text, now)
        self._write(text)
        if not self._console.is_terminal:
            put_line(self._console, text)

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _write(self, text: str) -> None:
        if self._log is None:
            self._kept.append(text)
        else:
            line = f"{time.strftime(STAMP)} {clean_text(text)}\n".encode()
            self._writer.submit(partial(self._log.write, line))


def _gap(lines: int) -> bytes:
    return f"{time.strftime(STAMP)} ({lines} lines are missing here: the disk was full)\n".encode()


def workers_in_words(there: int, wanted: int) -> str:
    """`1 of 2 workers`; `2 workers, 1 wanted` while there are more than wanted. `wanted` is 0 if it is not known."""
    if wanted <= 0 or wanted == there:
        return f"{there} workers"
    return f"{there} of {wanted} workers" if there < wanted else f"{there} workers, {wanted} wanted"


def plain_line(status: Status) -> str:
    """A state as one line of text."""
    training = sum(1 for worker in status.workers if not worker.is_away)
    epoch, loss = (None if math.isnan(x) else x for x in (status.epoch, status.loss))
    rate = None if status.over else status.images_per_s
    parts = [
        *progress_parts(status.iteration, status.max_iter, epoch, loss, rate, status.counted),
        *([] if status.over else [workers_in_words(training, status.wanted)]),
        *scores_parts(status.metrics, status.tested_iteration),
    ]
    if status.testing:
        parts.append(f"testing: {status.testing}")
    if status.store_trouble:
        parts.append("waiting for the store")
    if status.state != "training":
        parts.append(status.state)
    return ", ".join(parts)


def progress_parts(
    iteration: int,
    max_iter: int | None,
    epoch: float | None,
    loss: float | None,
    per_s: float | None,
    counted: str,
) -> list[str]:
    """How far a run is and how it goes, in words; what is not known is left out."""
    return [
        f"iteration {iteration}{f'/{max_iter}' if max_iter else ''}",
        *([] if epoch is None else [f"epoch {epoch:.2f}"]),
        *([] if loss is None else [f"loss {loss:.4f}"]),
        *([] if per_s is None else [f"{per_s:,.0f} {counted}/s"]),
    ]


def scores_parts(metrics: Mapping[str, float | None], iteration: int) -> list[str]:
    """The last test in words, if there was one."""
    scores = ", ".join(f"{name} {value:.4f}" for name, value in short_scores(metrics).items())
    return [f"test at {iteration}: {scores}"] if metrics else []


def bare_table(*names: str) -> Table:
    """A table without lines; the columns whose names are in `LEFT` begin at the left."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="left" if name in LEFT else "right")
    return table


def _panel(status: Status) -> Group:
    """The live view: a bar, a line, and a row per worker."""
    rate = f"{status.counted}/s"
    workers = bare_table("worker", "host", "merged", "dropped", "loss", rate, "state")
    for worker in status.workers:
        workers.add_row(*_row(worker))
    bar = ProgressBar(total=max(status.max_iter, 1), completed=status.iteration, width=40)
    return Group(bar, shown(plain_line(status)), workers)


def _row(worker: WorkerStatus) -> tuple[Text, ...]:
    loss = "" if math.isnan(worker.loss) else f"{worker.loss:.4f}"
    cells = (
        worker.worker,
        worker.host,
        worker.merged,
        worker.dropped,
        loss,
        f"{worker.images_per_s:,.0f}",
        worker.state,
    )
    return tuple(shown(one, limit=MOST_NAME) for one in cells)
