"""Another user of the machine, who takes all that can be had: `python -m tests.hosts.neighbour PLACE...`.

Walks the places and what runs over and over until its standard input is closed, and tries on each thing that is there
what an attacker would: list, read, overwrite, put another in its place, connect. Prints a line of JSON: what succeeded,
with the path. The places themselves may be listed, as /tmp may be; and everybody sees the arguments of every process.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MINE = ".neighbour"  # ends the names of what this program makes
OF_A_PROCESS = ("environ", "cwd", "exe", "root", "fd", "mem", "maps")


class Neighbour:
    """`taken` has what could be done, `seen` the arguments of all processes that there were."""

    def __init__(self) -> None:
        self.taken: set[tuple[str, str]] = set()
        self.seen: set[str] = set()

    def walk(self, folder: str, *, is_place: bool = False) -> None:
        with suppress(OSError):
            entries = list(os.scandir(folder))
            if not is_place:
                self.taken.add(("list", folder))
            self._put_into(folder, is_place)
            for entry in entries:
                if not entry.name.endswith(MINE):
                    self._try(Path(entry.path))

    def look_at_processes(self) -> None:
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with suppress(OSError):
                self.seen.add(Path("/proc", name, "cmdline").read_bytes().decode(errors="replace"))
                for part in OF_A_PROCESS:
                    with suppress(OSError):
                        _open_up(Path("/proc", name, part))
                        self.taken.add((part, f"/proc/{name}/{part}"))

    def connect(self) -> None:
        """To every unix socket that the kernel tells of, by name or abstract, and is one of SpeeDO's or Ray's."""
        with suppress(OSError):
            for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
                name = line.split()[-1]
                if re.search("speedo|ray|plasma|redis", name):
                    self._connect(name.replace("@", "\0", 1))

    def _try(self, path: Path) -> None:
        facts = path.lstat()
        if stat.S_ISDIR(facts.st_mode):
            self.walk(str(path))
        elif stat.S_ISSOCK(facts.st_mode):
            self._connect(str(path))
        elif stat.S_ISREG(facts.st_mode):
            for what, mode in (("read", "rb"), ("overwrite", "r+b")):
                with suppress(OSError), path.open(mode):
                    self.taken.add((what, str(path)))
        with suppress(OSError):
            aside = path.with_name(path.name + MINE)
            path.rename(aside)
            self.taken.add(("replace", str(path)))
            aside.rename(path)

    def _put_into(self, folder: str, is_place: bool) -> None:
        if is_place:  # anybody may put things into /tmp
            return
        link = os.path.join(folder, f"link{MINE}")
        with suppress(OSError):
            os.symlink("/etc/passwd", link)
            self.taken.add(("link", folder))
            os.unlink(link)

    def _connect(self, name: str) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(0.2)
            sock.connect(name)
            self.taken.add(("connect", name))


def _open_up(path: Path) -> None:
    """Raises `OSError` if this thing of a process is closed to us."""
    if path.is_symlink() or path.name in ("cwd", "exe", "root"):
        os.readlink(path)
    elif path.is_dir():
        os.listdir(path)
    else:
        with path.open("rb") as file:
            if not file.read(1):
                raise OSError("nothing is told")


def rounds() -> Iterator[int]:
    number = 0
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        yield number
        number += 1


def main() -> None:
    neighbour = Neighbour()
    for number in rounds():
        for place in sys.argv[1:]:
            neighbour.walk(place, is_place=True)
        if number % 10 == 0:
            neighbour.look_at_processes()
            neighbour.connect()
    print(json.dumps({"taken": sorted(neighbour.taken), "seen": sorted(neighbour.seen)}))


if __name__ == "__main__":
    main()
