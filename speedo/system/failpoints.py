"""Named points at which a test can kill a process: `SPEEDO_FAILPOINT=worker-pushed:1@3`.

That kills (SIGKILL) the process of worker 1 when it reaches `worker-pushed` for the third time; without `:1` any
process that reaches it. It happens once in a run if `SPEEDO_FAILPOINT_DONE` names a file, which is created then.
Several points are separated by spaces; the second's file has `.1` behind the name, and so on. Without the variable a
call of `reached` costs one comparison.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

POINTS: Final = (
    "worker-fetched",  # before it computes
    "worker-pushing",  # chunks are in the store, their record is not
    "team-summed",  # its stretch of a round is summed, the others may not have theirs
    "ring-adds",  # a piece of the sum over hosts: those before it have added theirs, others have not
    "ring-has",  # a piece of the sum is whole here, others may not have it
    "team-dealt",  # the leader has the records of all, the others do not have theirs
    "worker-pushed",  # the payload is in the store, the master does not know yet
    "master-merging",  # a result is taken, nothing is merged
    "master-merged",  # merged, and not published
    "master-published",  # published, and no worker notified
    "master-finished",  # the run has come to its end, of which nothing is done
    "master-testing",  # its last test is asked for
    "master-tested",  # and made, and its last checkpoint written
    "master-exported",  # the model is there, the result is not
    "master-ended",  # both are there, and its command does not know
    "server-merging",  # the same of a server, which has a range of it
    "server-merged",
    "server-published",
    "tester-starting",  # the run continues beside it
    "master-checkpointing",  # a part of the checkpoint is on the disk
)


class _Point:
    def __init__(self, text: str, mark: str) -> None:
        self.name, _, times = text.partition("@")
        self.name, _, self.slot = self.name.partition(":")
        self.left = int(times or 1)
        self.mark = mark

    def is_due(self, point: str) -> bool:
        if point != self.name or (self.slot and self.slot != _my_slot):
            return False
        self.left -= 1
        return self.left <= 0 and self._is_first()

    def _is_first(self) -> bool:
        if not self.mark:
            return True
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def _points() -> list[_Point]:
    done = os.environ.get("SPEEDO_FAILPOINT_DONE", "")
    texts = os.environ.get("SPEEDO_FAILPOINT", "").split()
    return [
        _Point(text, f"{done}.{number}" if done and number else done)
        for number, text in enumerate(texts)
    ]


_armed = _points()
_one = threading.Lock()
_my_slot = ""


def i_am_worker(slot: int) -> None:
    """Set the number of this process's worker."""
    global _my_slot
    _my_slot = str(slot)


def reached(point: str) -> None:
    """Marks a point of the program; the process may be killed here."""
    if _armed:
        # A thread at another point would mark it as done, too, and the process dies once
        with _one:
            if any(one.is_due(point) for one in _armed):
                os.kill(os.getpid(), signal.SIGKILL)
