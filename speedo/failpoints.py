"""Named points at which a test can kill a process: `SPEEDO_FAILPOINT=worker-pushed:1@3`.

That kills (SIGKILL) the process of worker 1 when it reaches `worker-pushed` for the third time; without `:1` any
process that reaches it. It happens once in a run if `SPEEDO_FAILPOINT_DONE` names a file, which is created then.
Without the variable a call of `reached` costs one comparison.
"""

from __future__ import annotations

import os
import signal
from typing import Final

POINTS: Final = (
    "worker-fetched",  # before it computes
    "worker-pushing",  # chunks are in the store, their record is not
    "team-summed",  # its stretch of a round is summed, the others may not have theirs
    "worker-pushed",  # the payload is in the store, the master does not know yet
    "master-merging",  # a result is taken, nothing is merged
    "master-merged",  # merged, and not published
    "master-published",  # published, and nobody told
    "server-merging",  # the same of a server, which has a range of it
    "server-merged",
    "server-published",
    "tester-starting",  # the run goes on beside it
    "master-checkpointing",  # a part of the checkpoint is on the disk
)
_name, _, _times = os.environ.get("SPEEDO_FAILPOINT", "").partition("@")
_name, _, _slot = _name.partition(":")
_left = int(_times or 1)
_my_slot = ""


def i_am_worker(slot: int) -> None:
    """Set the number of this process's worker."""
    global _my_slot
    _my_slot = str(slot)


def reached(point: str) -> None:
    """Marks a point of the program; the process may be killed here."""
    global _left
    if point != _name or (_slot and _slot != _my_slot):
        return
    _left -= 1
    if _left > 0 or not _is_first():
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _is_first() -> bool:
    mark = os.environ.get("SPEEDO_FAILPOINT_DONE")
    if not mark:
        return True
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
