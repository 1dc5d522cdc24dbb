"""Makes this process a driver of a Ray cluster."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from typing import TextIO

from speedo.actors.ray_node.lean_import import import_ray
from speedo.actors.ray_node.private_names import leave_addons_out


@contextmanager
def driver(address: str, namespace: str) -> Iterator[None]:
    """Join the cluster at `address` through a node of it on this machine; raises what Ray raises if that fails.

    Actors import what their node's Python finds: Ray has them search the driver's working folder, too, and first, so
    that is one without modules for a moment.
    """
    # Else Ray warns that a later version will do as this says.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = import_ray()
    leave_addons_out()
    with chdir("/"):
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
        )
    try:
        with redirect_stdout(_WithoutRay(sys.stdout)):
            yield
    finally:
        with redirect_stdout(io.StringIO()):  # Ray's last words, of the same kind
            ray.shutdown()


class _WithoutRay(io.TextIOBase):
    """A stream less what Ray's own threads print: each death of a worker, which we report with its cause."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()
