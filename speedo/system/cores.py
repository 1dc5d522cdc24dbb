"""The cores of a host: which there are, how workers share them, and binding a process to some of them.

A core here is a physical one; the CPUs of the kernel are its hardware threads. Cores are numbered within their socket,
as in an Open MPI rank file: `1:0-3` are the first four cores of the second socket.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from speedo.errors import MachineError

Bind = Literal["core", "socket", "none"]
AUTO: Final = "auto"
CPUS: Final = Path("/sys/devices/system/cpu")
CGROUP: Final = Path("/sys/fs/cgroup")

Core = tuple[int, int]  # the number of its socket, and its own in there


@dataclass(frozen=True, slots=True)
class Machine:
    """The cores that a process may use: for each socket its cores, for each core its CPUs.

    `quota` is how many cores the container may keep busy, if that is fewer.
    """

    sockets: tuple[tuple[tuple[int, ...], ...], ...]
    quota: float | None = None

    @property
    def cores(self) -> tuple[Core, ...]:
        """All of them, socket by socket."""
        return tuple(
            (socket, core)
            for socket, cores in enumerate(self.sockets)
            for core in range(len(cores))
        )

    @property
    def usable(self) -> int:
        """How many cores can be busy at once; at least 1."""
        count = len(self.cores)
        return max(1, count if self.quota is None else min(count, int(self.quota)))

    def cpus(self, cores: Iterable[Core]) -> tuple[int, ...]:
        """The CPUs of these cores, ascending."""
        return tuple(sorted(cpu for socket, core in cores for cpu in self.sockets[socket][core]))


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """What a run asks for: BLAS threads of each worker, a number or `auto`, and how its process is bound.

    `cores`, if there are any, are those of each worker of the host, by its number; then `bind` says nothing.
    """

    threads: str = "1"
    bind: Bind = "none"
    cores: tuple[tuple[Core, ...], ...] = ()

    def problem_on(self, machine: Machine) -> str:
        """Which of `cores` this machine lacks, as a sentence; empty if none."""
        there = set(machine.cores)
        for number, cores in enumerate(self.cores):
            if missing := [core for core in cores if core not in there]:
                sizes = "+".join(str(len(one)) for one in machine.sockets)
                return (
                    f"worker {number} of this host is to be bound to {slots_of(missing)}, but the host has {sizes} "
                    "cores that it may use: correct --cores, or the rank file"
                )
        return ""


@dataclass(frozen=True, slots=True)
class CoreShare:
    """What one worker of a host gets: BLAS threads, and the CPUs that it is bound to; none of these if it is not.

    `number` says which of the host's `workers` it is, from 0 on.
    """

    host: str = ""
    threads: int = 1
    cpus: tuple[int, ...] = ()
    number: int = 0
    workers: int = 1

    def bind(self) -> None:
        """Bind every thread of this process; those that they start later inherit it. Raises `MachineError`."""
        for thread in os.listdir("/proc/self/task") if self.cpus else ():
            try:
                with suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(int(thread), self.cpus)
            except OSError as error:
                where = f"the CPUs {list_of(self.cpus)} ({error.strerror})"
                problem = f"a worker cannot be bound to {where}: use --threads bind=none"
                raise MachineError([problem]) from None


USUAL: Final = CoreOptions()
UNBOUND: Final = CoreShare()


def this_machine(
    root: Path = CPUS, allowed: Collection[int] | None = None, cgroup: Path = CGROUP
) -> Machine:
    """The cores of this host that this process may use, by sched_getaffinity and /sys.

    Where /sys does not say, each CPU is a core of the first socket.
    """
    sockets: dict[int, dict[int, list[int]]] = {}
    for cpu in sorted(os.sched_getaffinity(0) if allowed is None else allowed):
        folder = root / f"cpu{cpu}" / "topology"
        socket = max(_number(folder / "physical_package_id", 0), 0)  # -1 where it is not known
        siblings = _text(folder / "core_cpus_list") or _text(folder / "thread_siblings_list")
        core = min(numbers_in(siblings), default=cpu) if siblings else cpu
        sockets.setdefault(socket, {}).setdefault(core, []).append(cpu)
    return Machine(
        tuple(
            tuple(tuple(cpus) for _, cpus in sorted(cores.items()))
            for _, cores in sorted(sockets.items())
        ),
        quota_of(cgroup),
    )


def quota_of(cgroup: Path = CGROUP) -> float | None:
    """Cores that the container may keep busy, by cgroup v2 (`max 100000`, `200000 100000`); None without a limit."""
    words = _text(cgroup / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
        return round(int(words[0]) / int(words[1]), 1)
    return None


def threads_of(options: CoreOptions, machine: Machine, workers: int) -> int:
    """BLAS threads of each of this many workers; `auto`: the usable cores over the workers, at least 1."""
    if options.threads != AUTO:
        return int(options.threads)
    return max(1, machine.usable // max(workers, 1))


def deal(machine: Machine, workers: int, threads: int, bind: Bind) -> list[tuple[Core, ...]]:
    """The cores of each worker of a host; empty tuples with `none`.

    `core`: as many as it has threads, of the socket with most cores left if that has enough; when no core is left,
    they are dealt once more. So two workers share a core only if there are fewer cores than threads, and what a
    worker gets does not depend on how many come after it. `socket`: all of one, round robin.
    """
    if bind == "none":
        return [()] * workers
    if bind == "socket":
        whole = [
            tuple((socket, core) for core in range(len(cores)))
            for socket, cores in enumerate(machine.sockets)
        ]
        return [whole[worker % len(whole)] for worker in range(workers)]
    dealt: list[tuple[Core, ...]] = []
    left: list[Core] = []
    for _ in range(workers):
        if len(left) < min(threads, len(machine.cores)):
            left = list(machine.cores)
        by_socket = {socket: [one for one in left if one[0] == socket] for socket, _ in left}
        most = max(by_socket.values(), key=len)
        mine = (most if len(most) >= threads else left)[:threads]
        left = [one for one in left if one not in mine]
        dealt.append(tuple(mine))
    return dealt


def share_of(
    host: str, options: CoreOptions, machine: Machine, workers: int, number: int
) -> CoreShare:
    """What the worker with this number, from 0 on, gets among this many of its host."""
    threads = threads_of(options, machine, workers)
    if options.cores:  # a worker more than they are for shares those of another
        cores = options.cores[number % len(options.cores)]
    else:
        cores = deal(machine, number + 1, threads, options.bind)[number]
    return CoreShare(host, threads, machine.cpus(cores), number, workers)


def list_of(numbers: Iterable[int]) -> str:
    """`0-2,5` for 0, 1, 2 and 5, as the kernel writes lists of CPUs."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def numbers_in(text: str) -> list[int]:
    """What `list_of` writes, read back; raises `ValueError` for any other text, or numbers above 65,535."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdigit() and len(end) <= 5 for end in ends):
            raise ValueError(f"{part!r} is no number or range of numbers")
        if int(ends[1]) < int(ends[0]) or int(ends[1]) > 65_535:
            raise ValueError(f"{part!r} is no range")
        found += range(int(ends[0]), int(ends[1]) + 1)
    return found


def slots_of(cores: Iterable[Core]) -> str:
    """Cores as a rank file has them: `0:0-3,1:0-1`."""
    by_socket: dict[int, list[int]] = {}
    for socket, core in cores:
        by_socket.setdefault(socket, []).append(core)
    return ",".join(
        f"{socket}:{part}"
        for socket, numbers in sorted(by_socket.items())
        for part in list_of(numbers).split(",")
    )


def cores_in(text: str) -> tuple[Core, ...]:
    """What `slots_of` writes, read back; raises `ValueError`.

    A part without a socket is of the one before it, at first of socket 0.
    """
    found: set[Core] = set()
    socket = "0"
    for part in text.split(",") if text else ():
        before, colon, after = part.rpartition(":")
        socket = before if colon else socket
        (number,) = numbers_in(socket)
        if number >= 64:
            raise ValueError("no machine has so many sockets")
        found |= {(number, core) for core in numbers_in(after)}
    return tuple(sorted(found))


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return otherwise


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
