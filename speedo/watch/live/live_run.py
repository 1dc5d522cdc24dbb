"""A run as it is now: what its log says, and what its master answers while there is one."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from speedo.errors import ClusterError
from speedo.run_dir.directory import RESULT
from speedo.run_dir.read_back import counted_for, read_result
from speedo.system.foreign_text import clean_values
from speedo.system.json_lines import plain
from speedo.watch.control_socket import RunGone, RunSocket, leader_of
from speedo.watch.live.curves import MeanCurve, RateCurve, Sent
from speedo.watch.live.history import LogReader, WorkerHistory

LOOK_S: Final = 1.0  # between two looks at the run
ASK_S: Final = 5.0  # for the master's answer
SCALE_S: Final = 180.0
NO_ANSWER: Final = "the master does not answer"
Worker = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Live:
    """What the socket said at the last look; `status` is None without an answer, `problem` says why."""

    status: Mapping[str, Any] | None
    problem: str = ""


class LiveRun:
    """Looks at a run directory every second, in a thread while it is used as a context.

    It finds the master of the run whenever there is one: also a new one that resumes it. Methods may be called from any
    thread.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.realpath(folder))
        self._reader = LogReader(self.folder)
        self._socket: RunSocket | None = None
        self._live = Live(None)
        self._last: Mapping[str, Any] = {}  # the last answer that there was
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.looks = 0

    def __enter__(self) -> LiveRun:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(2 * LOOK_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            more = self.look()
            self._closing.wait(0.0 if more else LOOK_S)

    def look(self) -> bool:
        """Look once; returns whether more of the log waits to be read."""
        live = self._ask()
        with self._lock:
            more = self._reader.read()
            self._live = live
            self._last = live.status or self._last
            self.looks += 1
        return more

    # ------------------------------------------------------------ the master

    def _ask(self) -> Live:
        socket = self._socket
        try:
            socket = socket or leader_of(self.folder)
            if socket is None:
                return Live(None)
            status = socket.ask("status", timeout_s=ASK_S)
        except RunGone:
            self._socket = None
            return Live(None)
        except ClusterError as error:
            self._socket = socket
            return Live(None, f"{NO_ANSWER}: {error}")
        self._socket = socket
        return Live(status)

    def stop(self) -> str:
        """End the run early; returns what was done. Raises `ClusterError`."""
        self._master().ask("stop")
        return "the run is stopping: its model is tested and exported"

    def scale(self, workers: int) -> str:
        """Change the number of workers; returns what was done. Raises `ClusterError`."""
        return str(self._master().ask("scale", timeout_s=SCALE_S, workers=workers)["said"])

    def _master(self) -> RunSocket:
        socket = self._socket
        if socket is None:
            raise ClusterError("the run has no master on this machine now")
        return socket

    # ------------------------------------------------------------ what there is to see

    def news(self, sent: Sent) -> dict[str, dict[str, object]]:
        """The points of the curves that this reader has not got."""
        with self._lock:
            return dict(plain(sent.news(self._reader.history.curves())))

    def curves(self) -> dict[str, list[tuple[int, float, float]]]:
        """All curves, whole."""
        with self._lock:
            made: list[tuple[str, MeanCurve | RateCurve]] = self._reader.history.curves()
            return {name: curve.points() for name, curve in made}

    def now(self) -> dict[str, Any]:
        """The state of the run as plain data, for a page or a terminal; a number that is not known is None."""
        with self._lock:
            return dict(clean_values(plain(self._now())))

    @property
    def is_live(self) -> bool:
        """Whether a master answers, or may do so again."""
        return self._live.status is not None or bool(self._live.problem)

    def _now(self) -> dict[str, Any]:
        log, status, last = self._reader.history, self._live.status, self._last
        there: Mapping[str, Any] = status or {}
        iteration = int(there.get("iteration") or log.iteration)
        result = (None if status else read_result(self.folder / RESULT)) or {}
        most = there.get("max_iter") or last.get("max_iter")
        if result.get("complete") and log.finished:
            most = iteration
        pace = log.iterations_per_s
        left = (most - iteration) / pace if status and most and pace > 0 else None
        state, reason = self._state(result)
        workers = self._workers(there)
        return {
            "name": self.folder.name,
            "run_dir": self.folder,
            "run": last.get("run"),
            "mode": last.get("mode") or result.get("mode") or "",
            "live": status is not None,
            "state": state,
            "reason": reason,
            "reading": self._reader.fraction if self._reader.fraction < 1 else None,
            "iteration": iteration,
            "max_iter": most,
            "epoch": there.get("epoch"),
            "remaining_s": max(left, 0.0) if left is not None else None,
            "version": there.get("version") or log.version,
            "loss": _last_value(log.loss) if there.get("loss") is None else there["loss"],
            "images_per_s": there.get("images_per_s") if status else None,
            "counted": there.get("counted") or counted_for(result.get("model")),
            "seconds": log.time,
            "metrics": log.metrics or there.get("metrics") or {},
            "tested_iteration": log.tested_iteration,
            "wanted": there.get("wanted") or there.get("expected_workers") or len(workers),
            "workers": workers,
            "servers": list(there.get("servers") or ()),
            "decisions": dict(log.decisions),
            "staleness": [log.staleness[one] for one in range(max(log.staleness, default=-1) + 1)],
            "checkpoint_iteration": there.get("checkpoint_iteration") or None,
            "troubles": [
                there[name]
                for name in ("store_trouble", "checkpoint_problem", "log_problem")
                if there.get(name)
            ],
            "notices": list(there.get("notices") or last.get("notices") or ()),
            "resumed": log.resumed,
        }

    def _state(self, result: Mapping[str, Any]) -> tuple[str, str]:
        """A word or two, and what there is to say on it; `result` is that of an earlier or the present end."""
        log = self._reader.history
        if self._live.status is not None:  # a master that has ended the run answers a little longer
            return str(self._live.status["state"]), log.finished
        if self._live.problem:
            return "no answer", self._live.problem
        if log.finished:
            return "finished", str(result.get("reason") or log.finished)
        if not log.time:
            return "not begun", "there is no line in its log yet"
        return "no master", (
            f"its master has ended, or runs on another machine; `speedo train --resume {self.folder}` continues it"
        )

    def _workers(self, status: Mapping[str, Any]) -> list[Worker]:
        """Each worker with what its master says of it, and the log."""
        log = self._reader.history
        lines = {int(one["worker"]): one for one in status.get("workers") or ()}
        found = []
        for number in sorted({*log.workers, *lines}):
            past, line = log.workers.get(number, WorkerHistory()), lines.get(number, {})
            state = line.get("state") or ("ended" if log.finished else "away")
            away = bool(line.get("away", True))
            found.append(
                {
                    "worker": number,
                    "host": line.get("host") or past.host,
                    "state": state,
                    "away": away,
                    "team": line.get("team"),
                    "process": line.get("process") or None,
                    "merged": past.merged,
                    "dropped": past.dropped,
                    "loss": past.loss,
                    "staleness": past.staleness,
                    "images_per_s": line.get("images_per_s"),
                    "deaths": past.deaths,
                    "cause": past.cause,
                    "died_s_ago": self._reader.seconds_ago(past.died) if past.deaths else None,
                }
            )
        return found


def _last_value(curve: MeanCurve) -> float:
    points = curve.points(max(len(curve) - 1, 0))
    return points[-1][2] if points else math.nan
