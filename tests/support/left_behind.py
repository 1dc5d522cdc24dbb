"""A killed test run leaves nothing: a process beside pytest ends what it had started, and removes what it had made.

What a test starts inherits `SPEEDO_TEST_RUN` with its environment. The keeper waits for the end of its input, which
only pytest writes; where pytest did not say that all is well, it kills what has this mark, deletes the network
namespaces, mounts and folders, and those of xdist's workers, whose own marks begin with that of their controller.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "SPEEDO_TEST_RUN"
PREFIX: Final = "speedo-test"  # of network namespaces, then the process that made them
# Shells of the product that remove what the others leave, once those are gone; their fifth word is the folder.
KEEPERS: Final = {"speedo-memory", "speedo-redis", "speedo-ray"}
MODULE: Final = "tests.support.left_behind"
TIDY_S: Final = 6.0
_WELL: Final = b"well\n"

_keeper: subprocess.Popen[bytes] | None = None
_temporary: Path | None = None


# ---------------------------------------------------------------- in pytest


def start() -> None:
    """Mark what this process starts from now on, and start the keeper."""
    global _keeper
    os.environ[MARK] = f"{os.environ.get(MARK, '')}/{uuid.uuid4().hex[:12]}"
    _keeper = subprocess.Popen(
        [sys.executable, "-m", MODULE, os.environ[MARK], str(os.getpid())],
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name != MARK},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def remove_at_the_end(folder: Path) -> None:
    """If the tests are killed. Otherwise it goes, or stays, as whoever made it says."""
    if _keeper is not None and _keeper.stdin is not None:
        _keeper.stdin.write(f"{folder}\n".encode())
        _keeper.stdin.flush()


def short_folder(prefix: str) -> Path:
    """A new folder whose name is short enough for the sockets in it; that of a killed test goes, too."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    remove_at_the_end(folder)
    return folder


def have_own_temporary_folder() -> None:
    """For what processes of the product, and Chromium, leave where they are killed; it goes with this process."""
    global _temporary
    _temporary = short_folder("st-")
    os.environ["TMPDIR"] = tempfile.tempdir = str(_temporary)


def all_is_well() -> None:
    """Every test has tidied up after itself: the keeper has nothing to do."""
    global _keeper
    if _temporary is not None:  # tempfile.tempdir is everybody's where no test began
        shutil.rmtree(_temporary, ignore_errors=True)
    if _keeper is not None:
        _keeper.communicate(_WELL)
        _keeper = None


# ---------------------------------------------------------------- in the keeper


class Process:
    """What /proc says of one that has the mark, or descends from one that has."""

    def __init__(self, number: int, words: list[str], where: dict[str, str]) -> None:
        self.number, self.words, self.where = number, words, where

    @property
    def is_keeper(self) -> bool:
        return bool(KEEPERS & set(self.words))


def left_of(mark: str) -> list[Process]:
    """Redis writes its title over its environment, and a test may give a process another: parents tell of those."""
    marked: dict[int, Process] = {}
    parents: dict[int, tuple[int, int, list[str]]] = {}
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        with suppress(OSError):
            state, parent, _, session = (place / "stat").read_text().rpartition(")")[2].split()[:4]
            words = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if state in "ZX" or MODULE in words:  # each of these looks after its own
                continue
            parents[int(place.name)] = (int(parent), int(session), words)
            texts = (place / "environ").read_bytes().decode(errors="replace").split("\0")
            where = dict(text.split("=", 1) for text in texts if "=" in text)
            if f"{where.get(MARK, '')}/".startswith(f"{mark}/"):
                marked[int(place.name)] = Process(int(place.name), words, where)
    before = -1
    while before != len(marked):
        before = len(marked)
        for number, (parent, session, words) in parents.items():
            if number not in marked and (parent in marked or session in marked):
                marked[number] = Process(number, words, {})
    return list(marked.values())


def kill(processes: list[Process]) -> None:
    for one in processes:
        with suppress(OSError):
            os.kill(one.number, signal.SIGKILL)


def end(mark: str, owner: str, folders: set[Path]) -> None:
    """Kill, let the product's own shells tidy up for a while, kill those too, and remove what is there."""
    owners = {owner}
    deadline = time.monotonic() + TIDY_S
    while left := left_of(mark):
        folders |= {Path(word) for one in left if one.is_keeper for word in one.words[4:5] if word}
        owners |= {str(one.number) for one in left}
        kill([one for one in left if not one.is_keeper or time.monotonic() > deadline])
        time.sleep(0.1)
    for name in namespaces():
        if name.removeprefix(f"{PREFIX}-").partition("-")[0] in owners:
            remove_namespace(name)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed(mounts):
        if any(Path(mount).is_relative_to(folder) for folder in folders):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def namespaces() -> list[str]:
    """Those of tests, of all that run now or have left some."""
    place = Path("/run/netns")
    found = [one.name for one in place.iterdir()] if place.is_dir() else []
    return [name for name in found if name.startswith(f"{PREFIX}-")]


def remove_namespace(name: str) -> None:
    """With all that runs in it."""
    found = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True)
    for process in found.stdout.split():
        with suppress(OSError):
            os.kill(int(process), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def main(mark: str, owner: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told = sys.stdin.buffer.read()
    if not told.endswith(_WELL):
        end(mark, owner, {Path(line) for line in told.decode().splitlines()})


if __name__ == "__main__":
    main(*sys.argv[1:])
