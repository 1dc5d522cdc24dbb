"""The system's limits for a user or a container: open files and threads."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from speedo.study.doctor.base import Check, Finding, NodeRequest, fail, graded, ok
from speedo.system.cores import AUTO

# Measured with 2 and with 8 workers: the master's process, the busiest, had at most 61 and 94 files open.
FILES: Final = 52
FILES_PER_WORKER: Final = 6
SPARE_FILES: Final = 1024  # the usual limit: what is below it may end a run that lasts long enough
SPARE_FILES_PER_WORKER: Final = 32
# Measured too: at most 191 and 328 threads of all processes; 86 of them are Ray's head, the master and the tester.
THREADS: Final = 150
THREADS_OF_A_HOST: Final = 64
THREADS_PER_WORKER: Final = 23
ENOUGH_THREADS: Final = 20_000  # below a limit of more nobody's threads are counted
REDIS_FILES: Final = 32  # that Redis keeps for itself: CONFIG_MIN_RESERVED_FDS of its source
_UNLIMITED: Final = resource.RLIM_INFINITY


def limits(request: NodeRequest) -> Iterator[Finding]:
    """Open files per process, and threads of this user and of this container, against what a run needs."""
    yield open_files(request)
    yield _threads(request)


def open_files(request: NodeRequest) -> Finding:
    """Open files per process against the number of workers.

    A master's Redis raises its own limit as far as allowed (for root without bound), and accepts fewer clients if the
    limit is still too low.
    """
    workers = request.workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = FILES + FILES_PER_WORKER * workers
    wanted = max(SPARE_FILES, SPARE_FILES_PER_WORKER * workers)
    text = f"{soft} open files allowed" if soft != _UNLIMITED else "no limit of open files"
    remedy = f"raise the limit: ulimit -n {wanted}"
    if hard != _UNLIMITED and hard < wanted:
        remedy += (
            f", for which root must raise the hard limit of {hard}, as in /etc/security/limits.conf"
        )
    starts_redis = request.master is None and request.redis is None
    if starts_redis and hard != _UNLIMITED and hard < wanted and os.geteuid() != 0:
        text += f"; the master's Redis would take {max(hard - REDIS_FILES, 0)} connections"
    limited = soft != _UNLIMITED
    fails = limited and soft < least
    text += f", {workers} workers need {least}" if fails else ""
    return graded("files", text, remedy, fails=fails, warns=limited and soft < wanted)


def _threads(request: NodeRequest) -> Finding:
    need = THREADS if request.master is None else THREADS_OF_A_HOST
    # Of BLAS; auto takes no more than cores.
    each = 1 if request.threads == AUTO else int(request.threads)
    need += (THREADS_PER_WORKER + each - 1) * request.workers
    allowed = [one for one in (_of_user(), _of_container()) if one is not None]
    for used, limit, whose, remedy in allowed:
        if used + need > limit:
            text = (
                f"{limit} threads allowed to {whose}, {used} are there, the run takes some {need}"
            )
            return fail("threads", text, remedy)
    return ok("threads", f"a run takes some {need}")


def _of_user() -> tuple[int, int, str, str] | None:
    """Threads of this user, their limit, whose that is, and what to do; None where it does not matter."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    user = os.getuid()
    if soft == _UNLIMITED or soft >= ENOUGH_THREADS or user == 0:  # root is not bound by it
        return None
    used = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if process.stat().st_uid == user:
                    used += len(os.listdir(process / "task"))
    return (
        used,
        soft,
        "this user",
        "end other programs of this user, or raise the limit: ulimit -u 4096",
    )


def _of_container() -> tuple[int, int, str, str] | None:
    remedy = "give the container more, as in --pids-limit=2048"
    for folder in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids")):
        with suppress(OSError, ValueError):
            limit = int((folder / "pids.max").read_text())  # or the word max
            used = int((folder / "pids.current").read_text())
            return used, limit, "this container", remedy
    return None


CHECKS: Final = (Check(limits, quick=True),)
