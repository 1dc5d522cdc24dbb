"""Keeps the control service (GCS) of a Ray head alive: it is started again, with what it has kept in a folder.

Meanwhile actors work on, and their calls go from process to process; nodes and drivers connect again by themselves.
Source: https://docs.ray.io/en/master/core/fault-tolerance/gcs.html (embedded RocksDB, since Ray 2.57).
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Final

import psutil

from speedo.system.background_process import start_in_background

GCS: Final = "gcs_server"
FOLDER: Final = "gcs"
_SINCE: Final = (2, 57)
LOOK_S: Final = 0.05
HEALTHY_S: Final = 10.0  # one that lived so long died of something new
DEATHS: Final = 3  # in a row, each sooner than that


def keeps_state() -> bool:
    """Whether the GCS of the Ray that is installed here can keep what it knows in a folder."""
    first, second, *_ = version("ray").split(".")
    return (int(first), int(second)) >= _SINCE


def environment_for(folder: str) -> dict[str, str]:
    """The environment of a head whose GCS keeps its state in a folder of this one."""
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": f"{folder}/{FOLDER}"}


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or would be once its parent looked.

    While other threads than the first are still being killed, they hold its port and its files.
    """
    try:
        is_zombie = process.is_running() and process.status() == psutil.STATUS_ZOMBIE
        return process.num_threads() <= 1 if is_zombie else not process.is_running()
    except psutil.Error:
        return True


class KeptGcs:
    """Starts the GCS again whenever it dies, until `close`; `process` is the present one, `note` is told each time.

    `failed` once it has died too often in a row.
    """

    def __init__(
        self, process: psutil.Process, environment: Mapping[str, str], note: Callable[[str], None]
    ) -> None:
        self.failed = False
        self._command: list[str] = []
        self.process = process
        with suppress(psutil.Error):
            self._command = process.cmdline()
        self._environment, self._note = environment, note
        self._child: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="ray-gcs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it for good."""
        self._closing.set()
        self._thread.join()
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _keep(self) -> None:
        began, deaths = time.monotonic(), 0
        while not self._closing.wait(LOOK_S):
            if not has_ended(self.process):
                continue
            if self._child is not None:
                self._child.wait()
            lived = time.monotonic() - began
            deaths = 1 if lived >= HEALTHY_S else deaths + 1
            if deaths > DEATHS or not self._command:
                self.failed = True
                return
            try:
                self._child = start_in_background(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                self.process = psutil.Process(self._child.pid)
            except (OSError, psutil.Error):
                self.failed = True
                return
            began = time.monotonic()
            self._note("warning: Ray's control service (GCS) died; it was started again")
