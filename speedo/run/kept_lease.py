"""The lease of a run as the master's command keeps it: renewed in a thread while the command watches its master.

The command has it, and not the master: a master that dies or hangs is replaced on its machine, with its workers, which
costs less than a standby. A standby takes over when the command is gone, stopped or cut off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from speedo.errors import FencedError, StoreError
from speedo.storage.lease import RENEW_S, MasterLease

SILENT_S: Final = 60.0
"""A command that has not passed its loop for so long hangs itself, and its lease is not renewed: above what it takes to
find a master hung, to end it and to start another one."""


class KeptLease:
    """Renews a claimed lease until `end`. `note` gets a line when Redis cannot be reached, and when it can again."""

    def __init__(self, lease: MasterLease, note: Callable[[str], None]) -> None:
        self._lease, self._note = lease, note
        self._lost: FencedError | None = None
        self._passed = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    @property
    def epoch(self) -> int:
        """That of the present master."""
        assert self._lease.epoch is not None
        return self._lease.epoch

    def told_of_standby(self) -> None:
        """From now on a standby may take over."""
        self._lease.has_standby = True

    def check(self) -> None:
        """The command watches its master. Raises `FencedError` if another one has the run."""
        self._passed = time.monotonic()
        if self._lost is not None:
            raise self._lost

    def next_epoch(self) -> int:
        """For another master of this command, which has ended the present one. Raises `FencedError`, `StoreError`."""
        self.check()
        with self._lock:
            return self._lease.claim(self._lease.epoch, ours=True)

    def end(self, *, over: bool) -> None:
        """The run is over, or goes on elsewhere. Raises `FencedError`, `StoreError`."""
        self._ended.set()
        with self._lock:
            self._lease.end(over=over)

    def _renew(self) -> None:
        troubled = False
        while not self._ended.wait(RENEW_S):
            if time.monotonic() - self._passed > SILENT_S:
                continue
            try:
                with self._lock:
                    if not self._ended.is_set():
                        self._lease.renew()
            except FencedError as error:
                self._lost = error
                return
            except StoreError as error:
                if not troubled:
                    self._note(f"warning: the lease of the run cannot be renewed: {error}")
                troubled = True
                continue
            if troubled:
                self._note("the lease of the run is renewed again")
                troubled = False
