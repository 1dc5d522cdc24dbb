"""Estimates whether memory and disk of this node suffice for a net and its workers, on the safe side."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from speedo.storage.shared_memory.folder import MEMORY, room_for
from speedo.study.doctor.base import BuiltNet, Check, Finding, NodeRequest, fail, graded, ok, size
from speedo.system.cores import AUTO
from speedo.system.free_memory import free_memory

RAY_BYTES: Final = 400_000_000  # Ray's own processes on a node, and the command's: 164 MB of their own, the rest shared
STORED_MODELS: Final = 2  # the center's present version and the next, while both are read
TIGHT: Final = 0.8
LEAST_DISK_BYTES: Final = 1_000_000  # to begin with
DISK_BYTES: Final = 50_000_000  # logs and metrics of some hours


def memory(request: NodeRequest) -> Iterator[Finding]:
    """Free memory against what the workers need, and on a master's node also master, tester and Redis."""
    if request.own:
        return
    net, free = request.net, free_memory()
    if net is None:
        yield ok("memory", f"{size(free)} free; not compared, for the net could not be built")
        return
    engines, rest = request.workers, RAY_BYTES + request.workers * net.process_bytes
    others = ""
    if request.master is None:
        store = 0 if request.redis else (STORED_MODELS + request.workers) * net.nbytes
        # A tester is counted as a worker. The master's engine computes no pass.
        engines += 1
        rest += 2 * net.process_bytes + net.step.parameters + store
        others = ", master and tester" + (f", Redis with {size(store)}" if store else "")
    if net.devices:
        yield _of_devices(request.workers, net)
        steps = 0
    else:
        # With auto the workers share half of what is free.
        steps = engines * _step_bytes(net, free / 2 / max(1, request.workers))
    need = rest + steps
    text = (
        f"{request.workers} workers with {size(net.process_bytes + steps // engines)} each{others}"
    )
    text += f": about {size(need)} of {size(free)} free"
    remedy = f"{_smaller(net, (TIGHT * free - rest) / engines)}, or end what else takes memory"
    yield graded("memory", text, remedy, fails=need > free, warns=need > TIGHT * free)


def _of_devices(workers: int, net: BuiltNet) -> Finding:
    """The memory of the GPU that has the least, against the steps of its workers."""
    each, least = -(-workers // len(net.devices)), min(net.devices)
    need = each * _step_bytes(net, TIGHT * least / each)
    text = f"{each} worker{'s' * (each > 1)} on each GPU: about {size(need)} of {size(least)}"
    remedy = _smaller(net, TIGHT * least / each)
    return graded("gpu-memory", text, remedy, fails=need > least, warns=need > TIGHT * least)


def _step_bytes(net: BuiltNet, room: float) -> int:
    """What a step takes with the parts that were asked for; with auto, of the size that fits the room."""
    if not net.micro_batch:
        return net.step.total
    auto = net.micro_batch == AUTO
    return net.step.of_parts(net.step.largest_part(room) or 1 if auto else int(net.micro_batch))


def _smaller(net: BuiltNet, room: float) -> str:
    """What makes a step take no more than this room."""
    part = net.step.largest_part(room)
    fewer = "use fewer --workers here or a smaller --batch"
    if net.engine == "caffe":
        return f"{fewer}, or --engine torch,micro_batch=auto"
    return f"use --engine micro_batch={part}, or fewer --workers here" if part else fewer


def exchange(request: NodeRequest) -> Iterator[Finding]:
    """On a master's node: whether its own workers can use shared memory."""
    net = request.net
    if request.master is not None or net is None:
        return
    need = room_for(request.workers, net.nbytes)
    free = shutil.disk_usage(MEMORY).free if MEMORY.is_dir() else 0
    text = f"{size(free)} free in {MEMORY}, the vectors of {request.workers} workers take {size(need)} at most"
    remedy = f"give {MEMORY} more room; without it they go through Redis, slower"
    yield graded("exchange", text, remedy, fails=False, warns=free < need)


def _place_of_run(request: NodeRequest) -> Path:
    """The run directory, or its nearest parent that exists."""
    folder = (request.run_dir or Path("runs")).absolute()
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def _can_be_written(place: Path) -> bool:
    """Whether files and folders can be created there."""
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)


def run_dir(request: NodeRequest) -> Iterator[Finding]:
    """On a master's node: whether the run directory can be made. A run itself says so of its option."""
    place = _place_of_run(request)
    if request.master is None and not _can_be_written(place):
        yield fail("disk", f"{place} cannot be written", "give another --run-dir")


def disk(request: NodeRequest) -> Iterator[Finding]:
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


CHECKS: Final = (Check(memory), Check(exchange), Check(run_dir), Check(disk, quick=True))
