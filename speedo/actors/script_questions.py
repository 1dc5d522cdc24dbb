"""What the scripts of a run ask its master while they train: records, tests, and each other's places."""

from __future__ import annotations

from speedo.errors import SpeedoError, TeamBrokenError
from speedo.exchange.channel import first_line
from speedo.exchange.lease import Claim, DealRequest, LeaseRequest, NoLease, NotDealt
from speedo.master.leases import Leases
from speedo.master.meeting import Meeting
from speedo.master.script_tests import NONE, ScriptTests
from speedo.master.slots import Assignment
from speedo.messages import Tested
from speedo.run.script_link import (
    AtTest,
    Failed,
    MeetScripts,
    Met,
    Missing,
    Question,
    Shares,
    TestLease,
    TestPart,
    TestTurn,
    ToScript,
)


class ScriptQuestions:
    """Asked from any thread of the master; answers at once.

    Each question takes one of the actor's few threads: a script asks again for what is not known yet.
    """

    def __init__(self, leases: Leases, tests: ScriptTests, meeting: Meeting) -> None:
        self._leases, self._tests, self._meeting = leases, tests, meeting

    def answer(self, place: Assignment, question: Question) -> ToScript | None:
        """The answer for the script of this worker; None for what needs none."""
        who = place.worker, place.incarnation
        try:
            match question:
                case LeaseRequest():
                    return self._leases.lease(*who, question)
                case Claim():
                    return self._leases.claim(*who, question)
                case DealRequest():
                    return self._leases.deal(question)
                case NotDealt(number):
                    self._leases.not_dealt(*who, number)
                    return NoLease.WAIT
                case Shares(data):
                    self._leases.check(place.worker, data)
                    return NoLease.WAIT
                case AtTest(number, records, pauses=False):
                    begins = self._tests.claim(*who, number, records)
                    return TestTurn(begins is not None, begins=bool(begins))
                case AtTest():
                    version = self._tests.version(*who)
                    return TestTurn(version != NONE, version=version)
                case TestLease():
                    return self._tests.lease(*who, question.request)
                case TestPart():
                    found = self._tests.part(*who, question.metrics, question.records)
                    return found if isinstance(found, Tested) else TestTurn(found)
                case MeetScripts(after, call=""):
                    return Met(others_wait=self._meeting.look(after))
                case MeetScripts(after, there, call):
                    late = self._meeting.is_late(*who)
                    return Met(self._meeting.meet(*who, there, call, after), late=late)
                case Missing(members):
                    return Met(broken=self._meeting.missing(members))
                case Tested():
                    self._tests.tested(*who, question)
        except TeamBrokenError as error:
            return Met(broken=str(error))
        except SpeedoError as error:
            return Failed(first_line(error))
        return None
