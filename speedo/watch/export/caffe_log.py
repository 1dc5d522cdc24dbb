"""A log in the form of Caffe's own, for the tools that read that: Caffe's tools/extra/parse_log.py and others."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

from caffenets.files import check_path
from speedo.errors import ConfigError
from speedo.messages import Evaluate, Finish, Merge, Snapshotted, Tested, Train
from speedo.run_dir.checkpoint_file import Counters
from speedo.run_dir.directory import CAFFE_LOG
from speedo.system.bounds import Option
from speedo.system.foreign_text import clean_text
from speedo.system.line_file import LineFile
from speedo.watch.export.base import Export, ExportedRun, Told
from speedo.watch.export.means import Means, TestedIterations

AUTO: Final = "auto"  # the option without a file
DISPLAY: Final = 20  # iterations between two lines, where the solver has no `display`
_OF_NET: Final = re.compile(r"test(\d+)/(.*)")


def display_of(solver: str) -> int:
    """The iterations between two lines that this SolverParameter asks for."""
    found = re.search(r"^display: *(\d+)", solver, re.MULTILINE)
    return int(found[1]) or DISPLAY if found else DISPLAY


class CaffeLog:
    """An exporter. A line stands for the results since the last one: its loss is their mean.

    `rate` is the learning rate at an iteration; `wall_s` is the wall clock's time when the driver's clock was 0.
    """

    name = "the log for Caffe's tools"
    wants_weights = False

    def __init__(
        self,
        path: Path,
        net: str,
        display: int,
        rate: Callable[[int], float],
        policy: str,
        *,
        resumed: Counters | None = None,
        wall_s: float = 0.0,
    ) -> None:
        self._file = LineFile(path)
        self._display, self._rate, self._wall_s = display, rate, wall_s
        version, iteration = (0, 0) if resumed is None else (resumed.version, resumed.iteration)
        self._means, self._tests = Means(iteration), TestedIterations((version, iteration))
        self._due = iteration - iteration % display + display if iteration else 0
        now = time.time() - wall_s
        self._line(now, f"Solving {net or 'net'}")
        self._line(now, f"Learning Rate Policy: {policy}")
        if resumed is not None:
            self._line(now, f"Restoring previous solver status, iteration {iteration}")

    @property
    def problem(self) -> str:
        if not self._file.problem:
            return ""
        return f"{self._file.path} cannot be written ({self._file.problem}): make room there or make it writable"

    def take(self, told: Told, now: float) -> None:
        match told:
            case Train():
                self._means.begin(told, now)
            case Merge():
                self._tests.last = (told.version, told.iteration)
                self._means.add(told, now)
                if told.iteration >= self._due:
                    self._trained(now)
            case Evaluate():
                self._tests.ask(told.version, told.iteration)
            case Tested() if told.metrics:
                self._tested(told, now)
            case Snapshotted() if not told.problem:
                self._line(now, f"Snapshotting to binary proto file, iteration {told.iteration}")
            case Finish():
                if self._means.results:
                    self._trained(now)
                self._line(now, f"Optimization Done: {told.reason}")
            case _:
                pass

    def close(self) -> None:
        """Try once more what waits."""
        self._file.close()

    def _trained(self, now: float) -> None:
        point = self._means.take(now)
        self._due = point.iteration - point.iteration % self._display + self._display
        speed = (
            f"{point.iterations_per_s:.6g} iter/s, {point.seconds:.6g}s/{point.iterations} iters"
        )
        loss = f"{point.loss:.6g}"
        self._line(now, f"Iteration {point.iteration} ({speed}), loss = {loss}")
        self._line(now, f"    Train net output #0: loss = {loss} (* 1 = {loss} loss)")
        self._line(now, f"Iteration {point.iteration}, lr = {self._rate(point.iteration):.6g}")

    def _tested(self, tested: Tested, now: float) -> None:
        iteration = self._tests.of(tested.version)
        for net, outputs in by_net(tested.metrics):
            self._line(now, f"Iteration {iteration}, Testing net (#{net})")
            for place, (name, value) in enumerate(outputs):
                self._line(now, f"    Test net output #{place}: {name} = {value:.6g}")

    def _line(self, now: float, text: str) -> None:
        stamp = datetime.fromtimestamp(now + self._wall_s).strftime("%m%d %H:%M:%S.%f")
        self._file.write(f"I{stamp} {os.getpid():5d} solver.cpp:1] {clean_text(text)}\n".encode())


def by_net(metrics: Mapping[str, float]) -> Iterator[tuple[int, list[tuple[str, float]]]]:
    """Each test net's number from 0, and its outputs."""
    nets: dict[int, list[tuple[str, float]]] = {}
    for name, value in metrics.items():
        found = _OF_NET.fullmatch(name)
        net, own = (int(found[1]), found[2]) if found else (0, name)
        nets.setdefault(net, []).append((own.replace(" ", "_"), value))
    yield from sorted(nets.items())


def _check_option(name: str, value: str) -> list[str]:
    """A file to write, or auto; `--caffe-log SOLVER` would take the solver for it."""
    if value.endswith(".prototxt"):
        return [
            f"{name} names {value}, a prototxt; write --caffe-log=FILE, or put --caffe-log after the solver"
        ]
    if not value:
        return [f"{name} is empty; give a file, or auto"]
    return check_path(name, Path(value))


def _make(
    run: ExportedRun,
    caffe_log: Annotated[
        str | None,
        Option(
            "Write a log in Caffe's format, for tools that read it; without FILE, caffe.log in the run directory.",
            _check_option,
            metavar="[FILE]",
            bare=AUTO,
            place=True,
        ),
    ] = None,
) -> CaffeLog | None:
    if caffe_log is None:
        return None
    assert run.solver is not None
    return CaffeLog(
        run.folder / CAFFE_LOG if caffe_log == AUTO else Path(caffe_log),
        run.solver.net_name,
        display_of(run.solver.text),
        run.solver.lr_policy.rate,
        run.solver.lr_policy.policy,
        resumed=run.resumed,
        wall_s=run.wall_s,
    )


def _check(resumed: bool, caffe_log: str | None) -> dict[str, Any]:
    """The whole path; raises `ConfigError` if it cannot be written."""
    if caffe_log is None or caffe_log == AUTO:
        return {}
    path = Path(os.path.abspath(caffe_log))
    if path.exists() and not resumed:
        raise ConfigError(
            f"caffe_log {path} is there already: give another file, or move that away; "
            "a tool would take both logs for one run"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK) or path.is_dir():
        raise ConfigError(f"caffe_log {path} cannot be written: give a file in a folder of yours")
    return {"caffe_log": str(path)}


EXPORT: Final = Export(_make, _check, of_solvers=("caffe_log",))
