"""Where the turns of a script come from: the master's channel. What else it asks goes to its actor, by the link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection

from speedo.errors import ConfigError
from speedo.leases.lease import Lease, LeaseRequest, NoLease
from speedo.messages import Pause, Refused, SaveState, StateSaved, Tested, Train, Trained
from speedo.run.script_link import (
    Done,
    Failed,
    FromScript,
    Hello,
    RunOver,
    Serve,
    TestPoint,
    TestTurn,
    ToScript,
)
from speedo.transport.channel import WorkerChannel


class TurnSource:
    """The commands of one worker, and the answers to what it asks."""

    def __init__(self, link: Connection, worker: int, incarnation: int) -> None:
        self._link, self._who = link, (worker, incarnation)
        self._channel: WorkerChannel | None = None
        self._commands: Iterator[Train | SaveState] = iter(())
        self._final: int | None = None

    def begin(self, hello: Hello) -> None:
        """Say what is trained, and open the channel. Raises `EOFError` if the run is over."""
        answer = self._ask(hello)
        assert isinstance(answer, Serve)
        self._channel = WorkerChannel(answer.folder, *self._who)
        self._commands = self._channel.commands()

    def lease(self, request: LeaseRequest) -> Lease | NoLease:
        """Records to train. Raises `ConfigError` with what the master has against it, `EOFError` as `begin`."""
        answer = self._ask(request)
        assert isinstance(answer, Lease | NoLease)
        return answer

    def _ask(self, question: FromScript) -> ToScript:
        self._link.send(question)
        answer: ToScript = self._link.recv()
        if isinstance(answer, Failed):
            raise ConfigError(answer.problem)
        if isinstance(answer, RunOver):
            self._final = answer.version
            raise EOFError
        return answer

    def next(self) -> Train | None:
        """The next turn; None once the run is over."""
        assert self._channel is not None
        for command in self._commands:
            if isinstance(command, Train):
                return command
            who = command.worker, command.incarnation, command.version
            self._channel.answer(StateSaved(*who, problem="a script keeps its own state"))
        return None

    def answer(self, message: Trained | Refused) -> None:
        """What came of the turn."""
        assert self._channel is not None
        self._channel.answer(message)

    def pause(self, *, over: bool = False, tests: bool = False) -> None:
        """Give back the turn that was begun, and get no other until the pause is over."""
        assert self._channel is not None
        self._channel.answer(Pause(*self._who, over, tests))

    def version_to_test(self, number: int, *, pauses: bool) -> int | None:
        """Whether this worker makes the test of this number: None if not. In the pause for it also the version."""
        with suppress(EOFError, OSError):
            answer = self._ask(TestPoint(number, pauses))
            assert isinstance(answer, TestTurn)
            return answer.version if answer.own else None
        return None

    def tested(self, version: int, metrics: Mapping[str, float], problem: str = "") -> None:
        """What came of the test."""
        with suppress(OSError):
            self._link.send(Tested(version, metrics, problem))

    def done(self) -> int | None:
        """Say that nothing more is trained, and wait for the end of the run.

        The version of the center that it came to; None if the run is gone.
        """
        with suppress(EOFError, OSError):
            self._link.send(Done())
            while self._final is None:
                message: ToScript = self._link.recv()
                self._final = message.version if isinstance(message, RunOver) else None
        return self._final

    def close(self) -> None:
        """Take no more turns."""
        if self._channel is not None:
            self._channel.__exit__(None, None, None)
