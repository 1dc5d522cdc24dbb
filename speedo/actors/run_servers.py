"""What a run has while it trains: Redis and Ray, its lease, and the copies of its directory elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from speedo.actors.attempts import PASSING, way_on
from speedo.actors.ray_node import session
from speedo.data.remote.run_copy import RunCopy
from speedo.engines.record_watch import RecordWatch
from speedo.errors import FencedError, RunInterrupted, StoreError
from speedo.run.kept_lease import KeptLease
from speedo.run.prepare import PreparedRun
from speedo.run.result import RunResult
from speedo.run.settings import RunSettings
from speedo.run.standby_mirror import RunMirror
from speedo.storage.redis.store import RedisStore

FAREWELL_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class RunningServices:
    """A run whose Redis and Ray are up; `head` is our own Ray's. The processes of `master` and `workers` load.

    `scratch` is a folder for small files, which goes with the command; `records` notices bad records.
    """

    prepared: PreparedRun
    settings: RunSettings
    head: session.Head | None
    master: Any
    workers: list[Any]
    scratch: Path
    records: RecordWatch
    keep_redis: Callable[[], None]
    copy: RunCopy | None = None
    mirror: RunMirror | None = None
    lease: KeptLease | None = None
    show_output: Callable[[], None] = lambda: None  # of a script, as far as there is any

    def lost(self) -> str | None:
        """What this machine needs for the run and has lost."""
        if self.head is not None and (kind := self.head.dead()):
            return f"Ray's {kind} process on this machine died"
        try:
            self.keep_redis()
        except StoreError as error:
            return str(error)
        return None

    def require(self) -> None:
        """Raises `RunInterrupted` if something is lost, `FencedError` if the run is another command's."""
        if self.lease is not None:
            self.lease.check()
        if lost := self.lost():
            raise RunInterrupted(lost, way_on(self.prepared.run_dir))

    def has_standby(self) -> bool:
        """Whether a standby followed the run, when that was last seen."""
        return self.mirror is not None and bool(self.mirror.standby)

    def hand_over(self) -> None:
        """Let the standby go on with the run, if there is one: raises `FencedError` then, as it is that machine's."""
        if self.mirror is None or self.lease is None or not (address := self.mirror.standby):
            return
        lacks = self.mirror.finish(FAREWELL_S, over=False)
        with suppress(StoreError):  # it expires
            self.lease.end(over=False)
        raise FencedError(
            f"SIGTERM: the standby at {address} goes on with this run{lacks and f'; {lacks}'}"
        )

    def kept_elsewhere(self, result: RunResult) -> RunResult:
        """The result once the run directory is copied to `--copy-to`, and the standby has it, and knows that the run is
        over; what could not be is one of its problems."""
        told, patience_s = list(result.problems), self.prepared.config.timeout
        if self.copy is not None and (problem := self.copy.finish(patience_s)):
            told.append(
                f"{self.copy.uri} lacks a part of the run: {problem}; {result.run_dir} has all of it"
            )
        if self.mirror is not None and (problem := self.mirror.finish(patience_s)):
            told.append(problem)
        if self.lease is not None:
            try:
                self.lease.end(over=True)
            except StoreError as error:
                told.append(f"a standby may take this run for one that goes on: {error}")
        return replace(result, problems=tuple(told))


def with_mirror(
    servers: RunningServices,
    lease: KeptLease,
    master: Callable[[], Any],
    note: Callable[[str], None],
    stack: ExitStack,
) -> RunningServices:
    """The same with what sends the run to a standby, if one comes, until the `stack` ends."""
    settings = servers.settings
    store = RedisStore(settings.redis_url, ca_pem=settings.redis_ca)
    told: list[object] = ["", False, None]  # the last is the actor of the `master` that knows it

    def tell(address: str, may_come: bool) -> None:
        lease.expect_standby(may_come)
        if told != [address, may_come, master()]:
            told[:] = address, may_come, master()
            master().tell_standby.remote(address, may_come)

    run_dir, standbys = servers.prepared.run_dir, lease.standbys
    mirror = RunMirror(store, settings.run, run_dir, note, tell, may_come=standbys)
    stack.push(partial(_end_mirror, mirror))
    mirror.start()
    return replace(servers, mirror=mirror)


def _end_mirror(mirror: RunMirror, kind: object, error: object, trace: object) -> None:
    """A standby goes on with a run that this command could not, but not where a mistake or a person has ended it."""
    if error is not None and not isinstance(error, (*PASSING, FencedError)):
        mirror.finish(FAREWELL_S, str(error) or "it was interrupted")
    mirror.close()
