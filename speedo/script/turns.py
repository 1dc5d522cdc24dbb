"""Where the turns of a script come from: the master's channel. What else it asks goes to its actor, by the link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

from speedo.errors import ConfigError
from speedo.leases.lease import DealRequest, Dealt, Lease, LeaseRequest, NoLease
from speedo.messages import Refused, SaveState, StateSaved, Train, Trained
from speedo.run.script_link import Done, Failed, FromScript, Hello, Raised, RunOver, Serve, ToScript
from speedo.transport.channel import WorkerChannel, first_line


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

    def deal(self, request: DealRequest) -> Dealt:
        """Records of the whole team; raises as `lease`."""
        answer = self._ask(request)
        assert isinstance(answer, Dealt)
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

    def raised(self, error: BaseException) -> None:
        """Say that the script leaves by this exception: its process may take a while to end."""
        with suppress(OSError):
            self._link.send(Raised(f"{type(error).__name__}: {first_line(error)}"))

    def close(self) -> None:
        """Take no more turns."""
        if self._channel is not None:
            self._channel.__exit__(None, None, None)
