"""Between a worker's actor and the script that is its child: a unix socket in the worker's private folder.

The script gets its place, says what it trains, and gets the address of its turns. Later it asks for records and
tests, and says when it has done its part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from speedo.exchange.lease import Claim, DealRequest, Dealt, Lease, LeaseRequest, NoLease, NotDealt
from speedo.exchange.vector import Blob
from speedo.master.meeting import Group
from speedo.master.slots import Assignment, ServerAddress
from speedo.messages import Records, SaveState, StateSaved, Tested
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings

MISTAKE: Final = "a mistake in the script"  # that each worker would make again: it stops the run
VARIABLE: Final = "SPEEDO_WORKER"  # the worker's folder
PLACE: Final = "SPEEDO_PLACE"  # "rank/size", for what needs them before it joins
SOCKET: Final = "script"


@contextmanager
def address_in(folder: str | Path) -> Iterator[str]:
    """The address of the socket in that folder: short, however long the folder's name is."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{place}/{SOCKET}"
    finally:
        os.close(place)


@dataclass(frozen=True, slots=True)
class Start:
    """To the script: its place in the run, at first, and once another master has it.

    Of that the script hears when it asks for the turns or the records of the former one, and says `Hello` to it.
    """

    settings: RunSettings
    place: Assignment
    in_rounds: bool  # whether all workers' steps are merged at once, as one batch
    run_dir: str = ""  # the run's directory; empty on a machine that is not its master's

    @property
    def job(self) -> ScriptJob:
        """What is trained."""
        assert isinstance(self.settings.spec, ScriptJob)
        return self.settings.spec


@dataclass(frozen=True, slots=True)
class Hello:
    """Of the script: what it trains, whose first weights are in the store; `batch` is the records of one step.

    With `gradients` it exchanges them before each step, with the other workers.
    """

    blobs: tuple[Blob, ...]
    batch: int
    gradients: bool = False


@dataclass(frozen=True, slots=True)
class TurnsEnded:
    """Of the script: its channel has ended. The answer is `RunOver`, or `Start` of another master."""


@dataclass(frozen=True, slots=True)
class Serve:
    """To the script: its turns come from the channel in this folder; `servers` have the center, if there are any."""

    folder: str
    servers: tuple[ServerAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the script: what is the same for all that share this data, by name."""

    data: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AtTest:
    """Of the script: it has come to its test of this number. Once it pauses for that, it asks again.

    `records` are those of the data set that all workers test together; 0 without one.
    """

    __test__ = False  # pytest takes the name for a test's

    number: int
    records: int = 0
    pauses: bool = False


@dataclass(frozen=True, slots=True)
class TestTurn:
    """To the script: whether it takes part in the test, whether it `begins` it, and, when it pauses, of which version.

    Without a `version` that is not known yet: it asks again. After a part of a test: whether there are more records
    for it; if not, others test the rest.
    """

    __test__ = False

    takes_part: bool
    begins: bool = False
    version: int | None = None


@dataclass(frozen=True, slots=True)
class TestLease:
    """Of the script: it can test some of these records."""

    __test__ = False

    request: LeaseRequest


@dataclass(frozen=True, slots=True)
class TestPart:
    """Of the script: the metrics of these records; without any it asks how far the test is.

    The answer is `Tested` once all are tested, else a `TestTurn`.
    """

    __test__ = False

    metrics: Mapping[str, float]
    records: Records


@dataclass(frozen=True, slots=True)
class Done:
    """Of the script: it trains no more. Until the run is over it waits, and saves its state when it is asked."""


@dataclass(frozen=True, slots=True)
class StopRun:
    """Of the script: the run is to end, and export its model; `cause` completes "stopped by"."""

    cause: str


@dataclass(frozen=True, slots=True)
class MeetScripts:
    """Of the script: it is at a collective call, and needs a group after that of the number `after`; 0 is none.

    Workers of one `place` share memory. Without a `call` it asks how that group is.
    """

    after: int
    place: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """Of the script: whether one of these workers and incarnations is gone; it waits for them in a team."""

    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Met:
    """To the script: the group, once it has formed; or whose end has `broken` it, or whether others wait for it.

    A worker that is `late` waits for a group until the others make the same call.
    """

    group: Group | None = None
    broken: str = ""
    others_wait: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class Raised:
    """Of the script: it leaves its part of the run by this exception, and has not ended yet."""

    problem: str


@dataclass(frozen=True, slots=True)
class RunOver:
    """To the script: the run is over, and this version of the center is what it came to."""

    version: int


@dataclass(frozen=True, slots=True)
class Failed:
    """To the script: why what it asked for cannot be."""

    problem: str


Question = (
    LeaseRequest
    | Claim
    | DealRequest
    | NotDealt
    | Shares
    | AtTest
    | TestLease
    | TestPart
    | Tested
    | MeetScripts
    | Missing
)
FromScript = Question | Hello | TurnsEnded | StateSaved | StopRun | Raised | Done
ToScript = (
    Start
    | Serve
    | Lease
    | NoLease
    | Claim
    | Dealt
    | TestTurn
    | Tested
    | Met
    | SaveState
    | RunOver
    | Failed
)
