"""Where the turns of a script come from: the master's channel. What else it asks goes to its actor, by the link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

from speedo.errors import ConfigError, TeamBrokenError
from speedo.leases.lease import Lease, LeaseRequest, NoLease
from speedo.messages import Refused, SaveState, StateSaved, Train, Trained
from speedo.run.script_link import (
    Done,
    Failed,
    FromScript,
    Hello,
    Meet,
    Met,
    RunOver,
    Serve,
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

    def meet(self, meet: Meet) -> tuple[str, ...]:
        """The places of all workers, once all have come to a collective. Raises `TeamBrokenError`, `ConfigError`."""
        try:
            answer = self._ask(meet)
        except (EOFError, OSError):
            raise TeamBrokenError("the run is over") from None
        assert isinstance(answer, Met)
        if answer.broken:
            raise TeamBrokenError(answer.broken)
        return answer.places

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
