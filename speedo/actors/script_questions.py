"""What the scripts of a run ask its master while they train: records, tests, and each other's places."""

from __future__ import annotations

from speedo.errors import SpeedoError, TeamBrokenError
from speedo.leases.lease import DealRequest, LeaseRequest
from speedo.master.leases import Leases
from speedo.master.meeting import Meeting
from speedo.master.script_tests import ScriptTests
from speedo.master.slots import Assignment
from speedo.messages import Tested
from speedo.run.script_link import Failed, Meet, Met, Missing, TestPoint, TestTurn, ToScript
from speedo.transport.channel import first_line

Question = LeaseRequest | DealRequest | TestPoint | Tested | Meet | Missing


class ScriptQuestions:
    """Asked from any thread of the master."""

    def __init__(
        self, leases: Leases, tests: ScriptTests, meeting: Meeting, timeout_s: float
    ) -> None:
        self._leases, self._tests, self._meeting = leases, tests, meeting
        self._timeout_s = timeout_s

    def answer(self, place: Assignment, question: Question) -> ToScript | None:
        """The answer for the script of this worker; None for what needs none."""
        who = place.worker, place.incarnation
        try:
            match question:
                case LeaseRequest():
                    return self._leases.lease(*who, question)
                case DealRequest():
                    return self._leases.deal(*who, question)
                case TestPoint(number, pauses=False):
                    return TestTurn(self._tests.claim(*who, number))
                case TestPoint():
                    version = self._tests.version(*who, self._timeout_s)
                    return TestTurn(False) if version is None else TestTurn(True, version)
                case Meet(where):
                    return Met(self._meeting.meet(*who, where))
                case Missing(members):
                    return Met((), self._meeting.missing(members))
                case Tested():
                    self._tests.tested(*who, question)
        except TeamBrokenError as error:
            return Met((), str(error))
        except SpeedoError as error:
            return Failed(first_line(error))
        return None
