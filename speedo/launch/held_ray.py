"""Workers on a Ray cluster for run after run: places are held between runs, and given to each run."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from speedo.errors import ConfigError
from speedo.launch.places import Failure, Needs, Report
from speedo.run.config.run_config import make_config
from speedo.run.result import RunResult
from speedo.study.doctor import require_for
from speedo.system.foreign_text import clean_values
from speedo.watch.console import Quiet

END_S: Final = 8.0  # then it is killed, and the cluster frees the places
_OWN: Final = {
    "resources": "give cpus, memory_gb and device to launch_workers",
    "ray": "it is the cluster's",
    "host": "the cluster knows this machine",
    "port": "the workers of a Ray cluster need none",
}

_REPORT: Final = TypeAdapter(Report)
MOST_LINE: Final = 1 << 20


class HeldRay:
    """The Ray cluster at an address as of `--ray`. All workers have the same needs."""

    def __init__(self, address: str) -> None:
        self._address = address
        make_config({"ray": address})
        self._count = 0
        self._needs = Needs()
        self._holder: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._asked = False

    def launch(self, count: int, needs: Needs) -> None:
        if self._count and needs != self._needs:
            raise ConfigError(
                "cpus, memory_gb or device differ from those of the workers that are there; a Ray cluster has one size "
                "of a worker: give the same"
            )
        self._needs = needs
        self._count += count
        make_config(self._options)
        self._release()
        self._hold()

    @property
    def _options(self) -> dict[str, Any]:
        """The options of a run that the needs are."""
        needs = self._needs
        parts = [f"cpu={1 if needs.cpus is None else needs.cpus:g}"]
        parts += [f"memory={int(needs.memory_gb * 1e9)}"] if needs.memory_gb is not None else []
        parts += ["gpu=1"] if needs.device == "gpu" else []
        options: dict[str, Any] = {"ray": self._address, "resources": ",".join(parts)}
        if needs.cpus is not None:
            options["threads"] = str(max(1, int(needs.cpus)))
        if needs.device == "cpu":
            options["cpu"] = True
        return options

    def report(self, timeout_s: float) -> Report:
        if not self._count:
            return Report()
        if self._holder is None or (not self._asked and self._holder.poll() is not None):
            self._release()
            self._hold()
        if not self._asked:
            self._ask()
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            why = f"the cluster has not answered after {timeout_s:g} s; it may do so later"
            return Report(failures=(Failure(self._address, why, self._count),))
        self._asked = False
        if line is None:
            self._release()
            why = "the process that holds its places has ended"
            return Report(failures=(Failure(self._address, why, self._count),))
        try:
            return _REPORT.validate_python(clean_values(json.loads(line)))
        except (ValueError, RecursionError):
            why = "the process that holds its places has said what cannot be read"
            return Report(failures=(Failure(self._address, why, self._count),))

    def run(self, options: Mapping[str, Any], workers: int) -> RunResult:
        from speedo.actors.launch import train_on_ray

        if problems := [
            f"{name} is no option of a run on a Ray cluster: {why}"
            for name, why in _OWN.items()
            if options.get(name) is not None
        ]:
            raise ConfigError(problems)
        given = {name: value for name, value in options.items() if value is not None}
        config = make_config({**self._options, **given, "workers": workers})
        require_for(config)
        self._release()
        result = train_on_ray(config, Quiet())
        self._hold()
        return result

    def close(self) -> None:
        self._count = 0
        self._release()

    # ---------------------------------------------------------------- the process that holds the places

    def _hold(self) -> None:
        """Start it, and ask at once."""
        words = [self._address, str(self._options["resources"]), str(self._count)]
        self._answers = queue.Queue()
        self._holder = subprocess.Popen(
            [sys.executable, "-P", "-m", "speedo.actors.fleet.reserve", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        threading.Thread(
            target=_read, args=(self._holder, self._answers), name="places", daemon=True
        ).start()
        self._ask()

    def _ask(self) -> None:
        assert self._holder is not None
        assert self._holder.stdin is not None
        self._asked = True
        with contextlib.suppress(OSError):  # it has ended; the reader says so
            self._holder.stdin.write("\n")
            self._holder.stdin.flush()

    def _release(self) -> None:
        """Free the places."""
        holder, self._holder = self._holder, None
        self._asked = False
        if holder is None:
            return
        assert holder.stdin is not None
        with contextlib.suppress(OSError):
            holder.stdin.close()
        deadline = time.monotonic() + END_S
        while holder.poll() is None:
            if time.monotonic() > deadline:
                holder.kill()
            time.sleep(0.05)


def _read(holder: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
    assert holder.stdout is not None
    try:
        for line in iter(lambda: holder.stdout.readline(MOST_LINE), ""):  # type: ignore[union-attr]
            if line.startswith("{"):
                answers.put(line)
    finally:  # whoever waits for an answer must hear that there will be none
        answers.put(None)
        holder.stdout.close()
    holder.wait()
