"""What a standby does once it knows the run: it follows, until the run is over or is its own.

Only Redis is asked. Where it does not answer, or refuses, it is asked again until the patience is over, and no sooner:
above all once the run is claimed, for then nobody else may go on with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from speedo.errors import (
    FencedError,
    SpeedoError,
    StoreError,
    StoreUnavailableError,
    TrainingStopped,
)
from speedo.run.kept_lease import KeptLease
from speedo.run.standby_copy import RunFollower
from speedo.storage.lease import LEASE_S, LeaseHolder, MasterLease
from speedo.storage.retrying_store import Patience, noting

LOOK_S: Final = 0.2
LAST_S: Final = 20.0  # for the files of a run that is over to come


class _Stopped(Exception):
    """Somebody ends this standby."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The lease of the run, which this machine has claimed, and why."""

    lease: KeptLease
    why: str


class StandbyWatch:
    """Follows a run into `run_dir`, by its `copy` there, until it is over or its `lease` has been claimed.

    `master` is the address of the one that is followed. Redis is waited for up to `timeout_s` seconds. `keep` begins to
    renew the lease.
    """

    def __init__(
        self,
        copy: RunFollower,
        lease: MasterLease,
        run_dir: Path,
        master: str,
        timeout_s: float,
        note: Callable[[str], None],
        *,
        keep: Callable[[MasterLease, Callable[[str], None]], KeptLease] = KeptLease,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._copy, self._lease, self._run_dir, self._master = copy, lease, run_dir, master
        self._note, self._keep, self._clock, self._sleep = note, keep, clock, sleep
        self._patience = Patience(
            timeout_s,
            on_trouble=noting(note),
            clock=clock,
            sleep=self._pause,
            has_worked=True,  # for the master
        )
        self._stopped: Sequence[str] = ()
        self._kept: KeptLease | None = None
        self._over_since: float | None = None
        self._lasts_until = -math.inf  # at least, the lease that was seen last

    def follow(self, stopped: Sequence[str]) -> Taken | None:
        """The run, once this machine has it; None once it is over, and its files are here, or `stopped` is not empty.

        Raises `SpeedoError`. Unless it has the run, or does not know whether it has, it says that it leaves.
        """
        self._stopped = stopped
        try:
            taken = self._follow()
        except (SpeedoError, _Stopped) as error:
            if not self._lease.in_doubt:
                with suppress(StoreError):
                    self._copy.leave()
            if isinstance(error, _Stopped):
                return None
            raise
        return taken

    def _follow(self) -> Taken | None:
        said = False
        while True:
            before, began = self._copy.taken, self._clock()
            holder = self._patience.call(self._look)
            if self._copy.over or self._is_over(holder):
                self._require_good_end()
                return None
            if before and self._copy.taken == before and not said:
                self._note("has all files of the run so far")
                said = True
            if not holder.is_expired:
                self._lasts_until = began + holder.left_s
            elif (taken := self._taken_over(holder)) is not None:
                return taken
            self._pause(LOOK_S)

    def _look(self) -> LeaseHolder:
        """Takes what has come, and sees who has the run. Raises `StoreError`, also if Redis does not know."""
        self._copy.follow()
        holder = self._lease.holder()
        if holder.epoch < 0:
            raise StoreUnavailableError(
                "the run's Redis was restarted and has lost which master has the run, so no other one can take over "
                "until that master has written it again"
            )
        return holder

    def _is_over(self, holder: LeaseHolder) -> bool:
        """Whether the run has ended without a word to this standby, which has waited for one."""
        if not holder.is_over:
            return False
        now = self._clock()
        self._over_since = self._over_since or now
        return now > self._over_since + LAST_S

    def _require_good_end(self) -> None:
        """Raises `TrainingStopped` for a run that is over, and not as it should be."""
        if not self._copy.over:
            raise TrainingStopped(
                f"the run is over, but its last files did not come: {self._run_dir} lacks a part of it"
            )
        if self._copy.why:
            raise TrainingStopped(
                f"the master at {self._master} has ended the run: {self._copy.why}"
            )

    def _taken_over(self, holder: LeaseHolder) -> Taken | None:
        """The run with its lease; None if its master, or another one, has it after all."""
        began = self._clock()
        is_ended = began < self._lasts_until  # by its holder
        try:
            self._lease.claim(holder.epoch)
        except FencedError:
            return None  # it, or another one, has renewed it meanwhile
        why = f"the master at {self._master} has not been heard of for {LEASE_S:.0f} s"
        if is_ended:
            why = f"the master at {self._master} has handed the run over"
        self._note(f"warning: {why}: this machine takes over")
        self._kept = self._keep(self._lease, self._note)
        try:
            self._patience.call(self._copy.take_rest)
        except FencedError:
            raise
        except SpeedoError as error:  # the center is in Redis: the run does not depend on these
            self._note(f"warning: goes on without the files that were on the way: {error}")
        else:
            waited_s = self._clock() - began
            self._note(f"all files that were on the way are here, after {waited_s:.1f} s")
        return Taken(self._kept, why)

    def _pause(self, seconds: float) -> None:
        """Raises `_Stopped` in a standby that is ended, but not in one that has the run."""
        self._sleep(min(seconds, LOOK_S))
        if self._kept is not None:
            self._kept.check()
        elif self._stopped:
            raise _Stopped
