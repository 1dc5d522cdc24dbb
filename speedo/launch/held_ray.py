"""Workers on a Ray cluster for run after run: places are held between runs, and given to each run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final

from speedo.errors import ConfigError
from speedo.launch.places import Failure, Needs, PlacedWorker, Report
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


class HeldRay:
    """The Ray cluster at an address as of `--ray`. All workers have the same needs."""

    def __init__(self, address: str) -> None:
        self._address = address
        make_config({"ray": address})
        self._count = 0
        self._needs = Needs()
        self._holder: subprocess.Popen[bytes] | None = None
        self._places: Connection | None = None  # to it
        self._asked = False

    def launch(self, count: int, needs: Needs) -> None:
        """Begin to make this many workers ready. Raises `ConfigError` for what this kind of cluster cannot do."""
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
        """What is known once each worker is ready or has failed, or after this many seconds."""
        if not self._count:
            return Report()
        if self._holder is None or (not self._asked and self._holder.poll() is not None):
            self._release()
            self._hold()
        assert self._places is not None
        try:
            if not self._asked:
                self._ask()
            if not self._places.poll(timeout_s):
                return self._failed(
                    f"the cluster has not answered after {timeout_s:g} s; it may do so later"
                )
            told = clean_values(self._places.recv())
        except (EOFError, OSError):
            self._release()
            return self._failed("the process that holds its places has ended")
        self._asked = False
        return Report(
            tuple(PlacedWorker(**one) for one in told["workers"]),
            tuple(Failure(**one) for one in told["failures"]),
        )

    def _failed(self, why: str) -> Report:
        return Report(failures=(Failure(self._address, why, self._count),))

    def run(self, options: Mapping[str, Any], workers: int) -> RunResult:
        """Train with this many of the workers that are ready. Raises `SpeedoError`."""
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
        self._places, theirs = Pipe()
        with theirs:
            self._holder = subprocess.Popen(
                [sys.executable, "-P", "-m", "speedo.actors.fleet.reserve", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._tell((self._address, self._options["resources"], self._count))
        self._ask()

    def _ask(self) -> None:
        self._asked = True
        self._tell(None)

    def _tell(self, what: object) -> None:
        assert self._places is not None
        with suppress(OSError):  # it has ended; who waits for its answer will know
            self._places.send(what)

    def _release(self) -> None:
        """Free the places."""
        holder, self._holder = self._holder, None
        self._asked = False
        if holder is None:
            return
        assert self._places is not None
        self._places.close()
        try:
            holder.wait(END_S)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()
