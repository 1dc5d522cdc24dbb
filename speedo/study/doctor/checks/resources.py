"""Estimates whether memory and disk of this node suffice for a net and its workers, on the safe side."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from speedo.storage.shared_memory.folder import MEMORY, room_for
from speedo.study.doctor.base import Check, Finding, Request, fail, graded, ok, size
from speedo.system.free_memory import free_memory

RAY_BYTES: Final = 400_000_000  # Ray's own processes on a node, and the command's: 164 MB of their own, the rest shared
TORCH_BYTES: Final = 210_000_000  # PyTorch more than Caffe, measured with 2.13 for the CPU
STORED_MODELS: Final = 2  # the center's present version and the next, while both are read
TIGHT: Final = 0.8
LEAST_DISK_BYTES: Final = 1_000_000  # to begin with
DISK_BYTES: Final = 50_000_000  # logs and metrics of some hours


def memory(request: Request) -> Iterator[Finding]:
    """Free memory against what the workers need, and on a master's node also master, tester and Redis."""
    if request.own:
        return
    net, free = request.net, free_memory()
    if net is None:
        yield ok("memory", f"{size(free)} free; not compared, for the net could not be built")
        return
    need = RAY_BYTES + request.workers * net.worker_bytes
    text = f"{request.workers} workers with {size(net.worker_bytes)} each"
    if request.master is None:
        store = (STORED_MODELS + request.workers) * net.nbytes
        # The tester's nets hold what a worker's hold, or more; the master's engine computes no pass.
        need += 2 * net.worker_bytes + (0 if request.redis else store)
        text += ", master and tester" + ("" if request.redis else f", Redis with {size(store)}")
    text += f": about {size(need)} of {size(free)} free"
    remedy = "use fewer --workers here or a smaller --batch, or end what else takes memory"
    yield graded("memory", text, remedy, fails=need > free, warns=need > TIGHT * free)


def exchange(request: Request) -> Iterator[Finding]:
    """On a master's node: whether its own workers can use shared memory."""
    net = request.net
    if request.master is not None or net is None:
        return
    need = room_for(request.workers, net.nbytes)
    free = shutil.disk_usage(MEMORY).free if MEMORY.is_dir() else 0
    text = f"{size(free)} free in {MEMORY}, the vectors of {request.workers} workers take {size(need)} at most"
    remedy = f"give {MEMORY} more room; without it they go through Redis, slower"
    yield graded("exchange", text, remedy, fails=False, warns=free < need)


def _place_of_run(request: Request) -> Path:
    """The run directory, or its nearest parent that exists."""
    folder = (request.run_dir or Path("runs")).absolute()
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def _can_be_written(place: Path) -> bool:
    """Whether files and folders can be created there."""
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)


def run_dir(request: Request) -> Iterator[Finding]:
    """On a master's node: whether the run directory can be made. A run itself says so of its option."""
    place = _place_of_run(request)
    if request.master is None and not _can_be_written(place):
        yield fail("disk", f"{place} cannot be written", "give another --run-dir")


def disk(request: Request) -> Iterator[Finding]:
    """On a master's node: disk space for the model, its snapshots and the logs at the run directory."""
    place, net = _place_of_run(request), request.net
    if request.master is not None or not _can_be_written(place):
        return
    free = shutil.disk_usage(place).free
    models = 2 + (net.snapshots if net else 0)  # one is written beside the one that it replaces
    outputs = models * (net.nbytes if net else 0)
    need = DISK_BYTES + outputs
    text = f"{size(free)} free in {place}, the run leaves about {size(need)}"
    too_little = free < LEAST_DISK_BYTES + outputs
    remedy = "make room, or give another --run-dir"
    yield graded("disk", text, remedy, fails=too_little, warns=free < need)


CHECKS: Final = (
    Check(memory),
    Check(exchange),
    Check(run_dir),
    Check(disk, quick=True),
)
