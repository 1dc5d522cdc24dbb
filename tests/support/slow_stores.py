"""What is wrong with one answer of a simulated Redis: it is late, or an error that a Redis, a proxy or TLS has."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from redis import exceptions

from speedo.errors import StoreTimeoutError
from speedo.storage.conditional import Guard
from speedo.storage.memory_store import MemoryStore
from speedo.storage.redis.errors import store_error
from speedo.storage.redis.resp import ProtocolError, ReplyError
from tests.support.conditional_memory import Answer, ConditionalMemory
from tests.support.machines import Link, Process

REDIS_CLASSES: Final = {
    name: found
    for name, found in sorted(vars(exceptions).items())
    if isinstance(found, type) and issubclass(found, Exception)
}
"""Every class of redis-py's errors."""
REFUSALS: Final = (
    "ERR", "NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "OOM", "MISCONF", "READONLY", "LOADING", "BUSY", "MASTERDOWN",
    "NOREPLICAS", "NOMASTERLINK", "NOGOODSLAVE", "INPROG", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "CROSSSLOT",
    "WRONGTYPE", "EXECABORT", "NOPROTO", "NOSCRIPT", "BUSYKEY", "IOERR", "UNBLOCKED", "UNKILLABLE", "NOTBUSY",
    "STALE",
)  # fmt: skip
"""The codes with which a Redis refuses a command, and one that no Redis has."""
OF_THE_NETWORK: Final = {
    "connection refused": ConnectionRefusedError(111, "Connection refused"),
    "connection reset": ConnectionResetError(104, "Connection reset by peer"),
    "broken pipe": BrokenPipeError(32, "Broken pipe"),
    "no route": OSError(113, "No route to host"),
    "network unreachable": OSError(101, "Network is unreachable"),
    "too many files": OSError(24, "Too many open files"),
    "timeout": TimeoutError("timed out"),
    "socket not there": FileNotFoundError(2, "No such file or directory"),
    "socket of another user": PermissionError(13, "Permission denied"),
    "name server away": socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    "name not known": socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    "TLS ended": ssl.SSLEOFError("EOF occurred in violation of protocol"),
    "TLS ended with a word": ssl.SSLZeroReturnError("TLS/SSL connection has been closed (EOF)"),
    "certificate": ssl.SSLCertVerificationError("certificate verify failed"),
    "no RESP": ProtocolError("b'HTTP/1.1 503' begins no reply"),
}


def failures() -> list[Exception]:
    """One error of each kind."""
    return [
        *(kind("1 10.0.0.9:6379") for kind in REDIS_CLASSES.values()),  # as MOVED has it
        *(ReplyError(f"{code} as a Redis says it") for code in REFUSALS),
        ReplyError("ERR max number of clients reached"),
        *OF_THE_NETWORK.values(),
    ]


@dataclass
class Fault:
    """The answer number `at` of the processes of this `role` is late by `late_s` seconds, or fails.

    `before`: it is the request that is late, or that is not carried out. `stalls`: so is every other answer until then,
    of all processes. `slows_s`: for so long every answer to this role takes that time. Answers are counted once
    `counts` is set.
    """

    role: str
    at: int
    late_s: float = 0.0
    error: Exception | None = None
    before: bool = False
    stalls: bool = False
    slows_s: float = 0.0
    counts: bool = False
    count: int = 0
    until: float = 0.0  # of what is wrong with all answers

    def strikes(self, role: str, now: float) -> bool:
        """Whether it is this answer."""
        if now < self.until:
            return self.stalls or role == self.role
        if not self.counts or role != self.role:
            return False
        self.count += 1
        if self.count == self.at and self.error is None:
            self.until = now + (self.late_s if self.stalls else self.slows_s)
        return self.count == self.at


def drawn_fault(chance: random.Random, roles: tuple[str, ...]) -> Fault:
    """Late by 0.5 to 30 s, or failing with any error."""
    role, at = chance.choice(roles), chance.choice((1, 1, 2, 3, 4, 6, 8, 12, 30))
    before = chance.random() < 0.5
    if chance.random() < 0.3:
        return Fault(role, at, error=chance.choice(failures()), before=before)
    late_s = chance.choice((0.6, 1.5, 4.0, 6.0, 12.0, 30.0)) * chance.uniform(0.9, 1.0)
    if late_s < 2.0 and chance.random() < 0.5:
        # The copy of the files is given up at the end of a run, which is no worse for that.
        lasts = (5.0, 30.0) if role in ("copy", "mirror") else (5.0, 30.0, 1e6)
        return Fault(role, at, late_s, slows_s=chance.choice(lasts))
    return Fault(role, at, late_s, before=before, stalls=chance.random() < 0.5)


class SlowLink(Link):
    """A connection whose process has this `role` in a run with a `fault`."""

    def __init__(
        self,
        server: ConditionalMemory,
        process: Process,
        timeout_s: float,
        guard: Guard | None = None,
        *,
        role: str,
        fault: Fault,
        **options: object,
    ) -> None:
        super().__init__(server, process, timeout_s, guard, **options)  # type: ignore[arg-type]
        self._role, self._fault = role, fault

    def _carry(self, step: Callable[[], Answer], *, may_be_late: bool) -> Answer:
        process, fault = self._process, self._fault
        process.hazard()
        process.works.turn(process)
        if not fault.strikes(self._role, process.now):
            return super()._carry(step, may_be_late=may_be_late)
        process.works.counts["struck"] += 1
        if fault.error is not None:
            if not fault.before:
                step()
            raise store_error(fault.error, "redis", "asking", self._timeout_s)
        late_s = fault.until - process.now if fault.stalls else fault.late_s
        before = fault.before or fault.stalls
        if late_s < self._timeout_s and before:
            process.sleep(late_s)
            return step()
        if not before:
            answer = step()
            if late_s < self._timeout_s:
                process.sleep(late_s)
                return answer
        elif may_be_late:
            process.works.later(process.now + late_s, step)
        process.sleep(self._timeout_s)
        raise StoreTimeoutError("Redis did not answer in time")

    def write(
        self, key: str, head: bytes, body: memoryview, *, expire_s: float | None = None
    ) -> None:
        if self.guard is not None:
            return super().write(key, head, body, expire_s=expire_s)
        self._carry(
            lambda: MemoryStore.write(self, key, head, body, expire_s=expire_s), may_be_late=False
        )
        return None
