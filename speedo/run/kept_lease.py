"""The lease of a run as the master's command keeps it: renewed in a thread while the command watches its master.

The command has it, and not the master: a master that dies or hangs is replaced on its machine, with its workers, which
costs less than a standby. A standby takes over when the command is gone, stopped or cut off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from speedo.errors import FencedError, Meaning
from speedo.storage.lease import RENEW_S, MasterLease
from speedo.storage.meaning import meaning_of

SILENT_S: Final = 60.0
"""A command that has not passed its loop for so long hangs itself, and its lease is not renewed: above what it takes to
find a master hung, to end it and to start another one."""


class KeptLease:
    """Renews a claimed lease until `end`. `note` gets a line when Redis cannot be reached, and when it can again.

    A `thread` calls `renew` each second; without it that is for somebody else.
    """

    def __init__(
        self,
        lease: MasterLease,
        note: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        thread: bool = True,
    ) -> None:
        self._lease, self._note, self._clock = lease, note, clock
        self.standbys: set[str] = set()  # the names of those that may take over
        self._lost: FencedError | None = None
        self._passed = clock()
        self._troubled = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        if thread:
            threading.Thread(target=self._renew, name="lease", daemon=True).start()

    @property
    def epoch(self) -> int:
        """That of the present master."""
        assert self._lease.epoch is not None
        return self._lease.epoch

    def expect_standby(self, may_come: bool) -> None:
        """Whether a standby may take over from now on."""
        self._lease.has_standby = may_come

    def check(self) -> None:
        """The command watches its master. Raises `FencedError` if another one has the run."""
        self._passed = self._clock()
        if self._lost is not None:
            raise self._lost

    def next_epoch(self) -> int:
        """For another master of this command, which has ended the present one. Raises `FencedError`, `StoreError`."""
        self.check()
        with self._lock:
            epoch = self._lease.claim(self._lease.epoch, ours=True)
        self._passed = self._clock()  # Redis may have been waited for
        return epoch

    def end(self, *, over: bool) -> None:
        """The run is over, or goes on elsewhere. Raises `FencedError`, `StoreError`."""
        self._ended.set()
        with self._lock:
            self._lease.end(over=over)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S) and self._lost is None:
            self.renew()

    def renew(self) -> None:
        """Renew it, if this command does not hang; a claim that is under way does so by itself."""
        if self._clock() - self._passed > SILENT_S or not self._lock.acquire(blocking=False):
            return
        problem = ""
        try:
            if not self._ended.is_set():
                self._lease.renew()
        except Exception as error:  # whatever it is: without a renewal the run is lost
            if isinstance(error, FencedError):
                self._lost = error
                return
            bug = meaning_of(error) is Meaning.BUG
            problem = f"{type(error).__name__}: {error}" if bug else str(error)
        finally:
            self._lock.release()
        if problem and not self._troubled:
            self._note(f"warning: the lease of the run cannot be renewed: {problem}")
        if self._troubled and not problem:
            self._note("the lease of the run is renewed again")
        self._troubled = bool(problem)
