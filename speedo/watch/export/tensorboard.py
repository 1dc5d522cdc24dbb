"""TensorBoard's event files in the run directory: scalars by iteration, and histograms of the weights if asked.

A file is a sequence of records: length, its checksum, an `Event`, its checksum (TensorFlow: core/lib/io/record_writer).
The protocol buffers are tensorboardX's; the file is written as the run log is, so that a full disk loses nothing.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from speedo.exchange.vector import Layout
from speedo.messages import Evaluate, Finish, Merge, Tested, Train
from speedo.run_dir.checkpoint_file import Counters
from speedo.system.bounds import Option
from speedo.system.line_file import LineFile
from speedo.watch.export.base import CenterCopy, Export, ExportedRun, Told
from speedo.watch.export.means import Means, TestedIterations

PREFIX: Final = "events.out.tfevents."
LEAST_S: Final = 0.2  # between two points of a curve, at least
# Then this many until time has grown by a factor of e: what TensorBoard shows of a curve.
POINTS: Final = 1000
BINS: Final = 60  # of a histogram


class TensorBoardFile:
    """An exporter; each master of a run writes a file of its own, the name of which begins with the time.

    `rate` is the learning rate at an iteration, if the run knows it; `layout` names the blobs of a `CenterCopy`. With
    `resumed` points that come after this iteration are taken back. `wall_s` is the wall clock's time when the driver's
    clock was 0.
    """

    name = "TensorBoard's file"

    def __init__(
        self,
        folder: Path,
        rate: Callable[[int], float] | None,
        layout: Layout,
        *,
        resumed: Counters | None = None,
        wall_s: float = 0.0,
        histograms: bool = False,
    ) -> None:
        # They take 0.3 s to import, and most runs do without.
        from tensorboardX import summary
        from tensorboardX.proto import event_pb2
        from tensorboardX.record_writer import masked_crc32c

        self.wants_weights = histograms
        self._event, self._summary, self._crc = event_pb2, summary, masked_crc32c
        self._rate, self._layout, self._wall_s = rate, layout, wall_s
        place = f"{PREFIX}{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = LineFile(folder / place)
        version, iteration = (0, 0) if resumed is None else (resumed.version, resumed.iteration)
        self._means, self._tests = Means(iteration), TestedIterations((version, iteration))
        self._first: float | None = None
        self._write(time.time(), file_version="brain.Event:2")
        if resumed is not None:
            log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(time.time(), step=iteration + 1, session_log=log)

    @property
    def problem(self) -> str:
        if not self._file.problem:
            return ""
        return f"{self._file.path} cannot be written ({self._file.problem}): make room there or make it writable"

    def take(self, told: Told, now: float) -> None:
        match told:
            case Train():
                self._means.begin(told, now)
                self._first = now if self._first is None else self._first
            case Merge():
                self._tests.last = (told.version, told.iteration)
                self._means.add(told, now)
                lasted = now - (now if self._first is None else self._first)
                if self._means.since(now) >= max(LEAST_S, lasted / POINTS):
                    self._point(now)
            case Evaluate():
                self._tests.ask(told.version, told.iteration)
            case Tested():
                iteration = self._tests.of(told.version)
                known = {name: one for name, one in told.metrics.items() if not math.isnan(one)}
                self._scalars(now, iteration, {f"test/{name}": one for name, one in known.items()})
            case Finish() if self._means.results:
                self._point(now)
            case CenterCopy():
                self._histograms(told, now)
            case _:
                pass

    def close(self) -> None:
        """Try once more what waits."""
        self._file.close()

    def _point(self, now: float) -> None:
        point = self._means.take(now)
        values = {
            "train/loss": point.loss,
            "train/images_per_second": point.images_per_s,
            "train/staleness": point.staleness,
        }
        if self._rate is not None:
            values["train/learning_rate"] = self._rate(point.iteration)
        self._scalars(now, point.iteration, values)

    def _scalars(self, now: float, iteration: int, values: dict[str, float]) -> None:
        if values:
            merged = self._event.Event().summary
            for name, value in values.items():
                merged.value.extend(self._summary.scalar(name, value).value)
            self._write(now + self._wall_s, step=iteration, summary=merged)

    def _histograms(self, copy: CenterCopy, now: float) -> None:
        for blob, place in self._layout.slices():
            values = copy.weights[place]
            if values.size and np.isfinite(values).all():
                made = self._summary.histogram(f"weights/{blob.name}", values, BINS)
                self._write(now + self._wall_s, step=copy.iteration, summary=made)

    def _write(self, wall: float, **fields: Any) -> None:
        body = self._event.Event(wall_time=wall, **fields).SerializeToString()
        length = struct.pack("<Q", len(body))
        parts = (length, self._checksum(length), body, self._checksum(body))
        self._file.write(b"".join(parts))

    def _checksum(self, data: bytes) -> bytes:
        return struct.pack("<I", self._crc(data))


def _make(
    run: ExportedRun,
    tensorboard: Annotated[
        bool,
        Option(
            "Write an event file for TensorBoard into the run directory: loss, learning rate, images/s and staleness "
            "by iteration, and the outputs of each test."
        ),
    ] = False,
    tensorboard_histograms: Annotated[
        bool, Option("The same, and histograms of the weights at each test.")
    ] = False,
) -> TensorBoardFile | None:
    if not (tensorboard or tensorboard_histograms):
        return None
    return TensorBoardFile(
        run.folder,
        None if run.solver is None else run.solver.lr_policy.rate,
        run.layout,
        resumed=run.resumed,
        wall_s=run.wall_s,
        histograms=tensorboard_histograms,
    )


def _conflicts(config: Any) -> list[str]:
    if not (config.tensorboard_histograms and config.serves):
        return []
    problem = (
        f"tensorboard_histograms is given together with servers {config.servers}, with which the master has no "
        "weights; leave one of the two out"
    )
    return [problem]


EXPORT: Final = Export(_make, conflicts=_conflicts, of_solvers=("tensorboard_histograms",))
