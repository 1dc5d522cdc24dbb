"""Members of a team meet: unix sockets between all of them, a byte for each meeting, and memory that they share.

Each worker listens in a private folder of its host. The leader makes the memory, without a name (memfd), and hands it
to the others with the first bytes of the connection; it goes with the last process that has it. A member that dies
closes its sockets, so the others know within a moment. One that hangs is noticed by `patience_s`.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from speedo.errors import TeamBrokenError
from speedo.messages import Team
from speedo.system.json_lines import line_of, values_of

BACKLOG: Final = 128
GATHER_S: Final = 10.0  # for all members to connect, once each has its command
MOST_GREETING: Final = 200  # bytes
HERE: Final = b"."
MOST_REASON: Final = 1000  # bytes


class TeamMeeting:
    """The way of worker `worker`, in this incarnation, to the other members of its team, for one thread.

    `folder` is the same for all workers of a host, and closed to other users.
    """

    def __init__(self, folder: Path, worker: int, incarnation: int) -> None:
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._worker, self._incarnation = worker, incarnation
        self._name = _name(worker, incarnation)
        self._listener = socket.socket(socket.AF_UNIX)
        self._formed = 0
        self._others: dict[int, socket.socket] = {}  # by worker, in the order of the team
        self._memory: mmap.mmap | None = None
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._folder)
        self._listener.bind(self._address(self._name))
        self._listener.listen(BACKLOG)

    def gather(self, team: Team, size: int) -> memoryview:
        """The memory of `size` bytes that all members share. Connections of the same gathering are used again.

        Raises `TeamBrokenError`.
        """
        if team.formed != self._formed:
            self.part()
            deadline = time.monotonic() + min(GATHER_S, team.patience_s)
            try:
                self._connect(team, deadline)
                self._memory = self._share(team, size, deadline)
            except OSError as error:
                raise TeamBrokenError(f"a member of the team cannot be reached: {error}") from None
            self._formed = team.formed
        assert self._memory is not None
        return memoryview(self._memory)

    def meet(self, patience_s: float, come: Collection[int] | None = None, until: str = "") -> None:
        """Return once all members have come here, or the workers of `come`, who are the same for all members.

        Raises `TeamBrokenError`, with what was to hold after the meeting."""
        awaited = {
            worker: other
            for worker, other in self._others.items()
            if come is None or worker in come
        }
        for worker, other in self._others.items():
            if come is not None and self._worker not in come:
                break
            try:
                other.send(HERE)
            except OSError:
                raise TeamBrokenError(_why_left(worker, other)) from None
        deadline = None
        for worker, other in awaited.items():
            try:
                came = other.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                deadline = deadline or time.monotonic() + patience_s
                came = self._wait_for(worker, other, deadline, until)
            except OSError:
                came = b""
            if came != HERE:
                raise TeamBrokenError(_why_left(worker, other, came))

    def part(self, why: str = "") -> None:
        """Close all connections, which tells the others, after `why`; the next `gather` makes new ones."""
        self._formed, self._memory = 0, None
        while self._others:
            other = self._others.popitem()[1]
            with suppress(OSError):
                other.send(why.encode()[:MOST_REASON], socket.MSG_DONTWAIT)
            other.close()

    def close(self) -> None:
        """No member of any team any more."""
        self.part()
        self._listener.close()
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder)
        os.close(self._folder)

    def _wait_for(self, worker: int, other: socket.socket, deadline: float, until: str) -> bytes:
        waits = f": the others wait until {until}" if until else ""
        _wait(other, deadline, f"worker {worker} does not come{waits}")
        try:
            return other.recv(1)
        except OSError:
            return b""

    # ------------------------------------------------------------ gathering

    def _connect(self, team: Team, deadline: float) -> None:
        """Each connects to the members before it, and waits for those after it."""
        at = team.workers.index(self._worker)
        found: dict[int, socket.socket] = {}
        greeting = line_of({"formed": team.formed, "worker": self._worker})
        try:
            for worker, incarnation, _ in team.members[:at]:
                other = found[worker] = socket.socket(socket.AF_UNIX)
                other.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    other.connect(self._address(_name(worker, incarnation)))
                    other.sendall(greeting)
                except OSError as error:
                    raise TeamBrokenError(f"worker {worker} cannot be reached: {error}") from None
            awaited = {worker for worker, _, _ in team.members[at + 1 :]}
            while awaited:
                _wait(self._listener, deadline, f"worker {min(awaited)} does not come")
                other, _ = self._listener.accept()
                came = _greeted(other, team.formed, deadline)
                if came in awaited:
                    awaited.discard(came)
                    found[came] = other
                else:
                    other.close()  # of an earlier gathering
        except BaseException:
            for other in found.values():
                other.close()
            raise
        for other in found.values():
            other.settimeout(None)
        self._others = {worker: found[worker] for worker in team.workers if worker in found}

    def _share(self, team: Team, size: int, deadline: float) -> mmap.mmap:
        """The leader makes the memory; the others are given it."""
        leader = self._others.get(team.leader)
        if leader is None:
            file = os.memfd_create("speedo-team", os.MFD_CLOEXEC)
            try:
                _make_room(file, size)
                for other in self._others.values():
                    socket.send_fds(other, [HERE], [file])
                return mmap.mmap(file, size)
            finally:
                os.close(file)
        _wait(leader, deadline, f"worker {team.leader} does not share its memory")
        data, files, _, _ = socket.recv_fds(leader, 1, 1)
        if data != HERE or len(files) != 1:
            raise TeamBrokenError(f"worker {team.leader} has left the team")
        try:
            return mmap.mmap(files[0], size)
        except ValueError:
            raise TeamBrokenError(f"worker {team.leader} shares memory of another size") from None
        finally:
            os.close(files[0])

    def _address(self, name: str) -> str:
        return f"/proc/self/fd/{self._folder}/{name}"  # short, however long the folder's name is


def _make_room(file: int, size: int) -> None:
    """Without it, writing would end the process."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        raise TeamBrokenError(
            f"there is no room for the {size / 1e6:.0f} MB that the team shares ({error.strerror}); "
            "use --team off, or fewer workers on this host"
        ) from None


def _name(worker: int, incarnation: int) -> str:
    return f"team-{worker}.{incarnation}"


def _why_left(worker: int, other: socket.socket, begun: bytes = b"") -> str:
    """What this member said when it parted, so that all name the one who ended it; a dead one said nothing."""
    with suppress(OSError):
        begun += other.recv(BACKLOG + MOST_REASON, socket.MSG_DONTWAIT)
    return begun.lstrip(HERE).decode(errors="ignore") or f"worker {worker} has left the team"


def _wait(one: socket.socket, deadline: float, otherwise: str) -> None:
    """Return once there is something to read. Raises `TeamBrokenError` after the deadline."""
    ready = select.poll()
    ready.register(one, select.POLLIN)
    if not ready.poll(max(0.0, 1000.0 * (deadline - time.monotonic()))):
        raise TeamBrokenError(otherwise)


def _greeted(other: socket.socket, formed: int, deadline: float) -> int:
    """Which worker this is; -1 if it means another gathering, or says nothing."""
    try:
        other.settimeout(max(0.1, deadline - time.monotonic()))
        line = b""
        while not line.endswith(b"\n") and len(line) < MOST_GREETING:
            data = other.recv(1)
            if not data:
                return -1
            line += data
        said = values_of(line)
        return int(said["worker"]) if said["formed"] == formed else -1
    except (OSError, ValueError, TypeError, KeyError):
        return -1
