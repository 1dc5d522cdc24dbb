"""Checks what is installed on a node, and its free memory and disk, for any solver."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from speedo.actors.ray_node.folder import OBJECT_STORE_BYTES, place_for_sockets
from speedo.study.doctor.base import Check, Finding, NodeRequest, fail, ok, size, warn
from speedo.system.private_folders import unsafe
from speedo.system.remedies import in_checkout
from speedo.version import VERSION

PYTHONS: Final = ((3, 11), (3, 12), (3, 13))  # pyproject.toml: requires-python
LOOPBACK: Final = "127.0.0.1"  # where a run listens that takes no other machines
LEAST_REDIS: Final = 6  # speedo.storage.redis.store
REDIS_WITH_USERS: Final = 7  # speedo.storage.redis.users
# The longest name of a socket of ours under the temporary folder, and what a socket's name may have.
OUR_SOCKET: Final = "/speedo-redis-12345678/a.sock"
LONGEST_SOCKET: Final = 107
# Of a short run: 0.3 MB for logs and small files, and some to spare.
LEAST_TEMPORARY_BYTES: Final = 10_000_000
TEMPORARY_BYTES: Final = 200_000_000  # with the logs of Ray and Redis in a run of weeks
SHARED: Final = Path("/dev/shm")


def installed(request: NodeRequest) -> Iterator[Finding]:
    """What a run starts with, whatever it trains."""
    yield _python()
    yield _ray()
    yield redis(request)


def _python() -> Finding:
    """The interpreter, and the SpeeDO that it imports."""
    text = f"{platform.python_version()} at {sys.executable}, SpeeDO {VERSION}"
    if sys.version_info[:2] not in PYTHONS:
        return fail("python", text, "use Python 3.11, 3.12 or 3.13")
    return ok("python", text)


def _ray() -> Finding:
    """Ray's version, as it is installed."""
    try:
        return ok("ray", metadata.version("ray"))
    except metadata.PackageNotFoundError:
        return fail(
            "ray",
            "Ray is not installed",
            "run `make setup`" if in_checkout() else "pip install ray",
        )


def redis(request: NodeRequest) -> Finding:
    """The program redis-server, which a master's node needs unless the run uses the user's own Redis.

    A run on one machine goes without it.
    """
    program = shutil.which("redis-server")
    needed = request.master is None and request.redis is None
    if program is None:
        if needed and request.host == LOOPBACK:
            return warn(
                "redis", "redis-server is not installed: `speedo train` goes without it, by shared memory alone; "
                "`speedo master`, `speedo plan` and --servers need it",
                "apt-get install redis-server, or your system's package of Redis",
            )  # fmt: skip
        if needed:
            return fail(
                "redis", "redis-server is not installed",
                "apt-get install redis-server, or give `--redis URL` to the run",
            )  # fmt: skip
        return ok("redis", "redis-server is not installed, and not needed on this node")
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    version = re.search(r"v=(\d+)\.([\w.]+)", said)
    if version is None:
        return warn(
            "redis",
            f"{program} does not report its version",
            "run `redis-server --version` by hand",
        )
    text = f"{version[1]}.{version[2]} at {program}"
    if int(version[1]) < LEAST_REDIS:
        return fail("redis", text, f"install Redis {LEAST_REDIS}.0 or later")
    if needed and int(version[1]) < REDIS_WITH_USERS:
        return warn(
            "redis", f"{text}: workers would all share the master's password",
            f"install Redis {REDIS_WITH_USERS}.0 or later, for a user per worker",
        )  # fmt: skip
    return ok("redis", text)


def temporary(request: NodeRequest) -> Iterator[Finding]:
    """Free space and path length for Ray's session, which uses the temporary folder and shared memory."""
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError:
        text = "no folder takes temporary files: TMPDIR, /tmp and /var/tmp are full, read-only or missing"
        yield fail("temporary", text, "make room, or set TMPDIR to a folder that has room")
        return
    room = shutil.disk_usage(folder).free
    danger = unsafe(folder)
    longest = len(os.fsencode(folder)) + len(OUR_SOCKET)
    if danger is not None:
        yield fail("temporary", danger, "")
    elif longest > LONGEST_SOCKET or place_for_sockets() is None:
        yield fail(
            "temporary", f"{folder} is too long a name for sockets: 78 characters are possible, 21 where neither /tmp, "
            "/var/tmp nor /dev/shm can be used by Ray",
            "set TMPDIR to a folder with a shorter name, as in TMPDIR=/tmp",
        )  # fmt: skip
    elif room < TEMPORARY_BYTES:
        too_little = room < LEAST_TEMPORARY_BYTES
        need = LEAST_TEMPORARY_BYTES if too_little else TEMPORARY_BYTES
        yield (fail if too_little else warn)(
            "temporary", f"{size(room)} free in {folder}, a {'' if too_little else 'long '}run needs some {size(need)}",
            "make room, or set TMPDIR to a folder with more",
        )  # fmt: skip
    else:
        yield ok("temporary", f"{size(room)} free in {folder}")
    shared = shutil.disk_usage(SHARED).free if SHARED.is_dir() else 0
    if shared < 1.1 * OBJECT_STORE_BYTES:
        yield warn(
            "shared-memory",
            f"{size(shared)} free in {SHARED}, Ray wants {size(OBJECT_STORE_BYTES)} and takes a file instead",
            "give the container more, as in --shm-size=256m",
        )  # fmt: skip
    else:
        yield ok("shared-memory", f"{size(shared)} free in {SHARED}")


CHECKS: Final = (Check(installed, "installed"), Check(temporary, quick=True))
