"""Where the turns of a script come from, and where its answers go: the master's channel, or its actor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from speedo.errors import ConfigError
from speedo.messages import Refused, SaveState, StateSaved, Train, Trained
from speedo.run.script_link import Failed, FromScript, RunOver, Serve, ToScript
from speedo.transport.channel import WorkerChannel


class TurnSource:
    """The commands of one worker. What the actor sends meanwhile waits for whoever asked for it."""

    def __init__(self, link: Connection, worker: int, incarnation: int) -> None:
        self._link, self._waiting = link, deque[Train]()
        self._who = worker, incarnation
        self._channel: WorkerChannel | None = None
        self._final: int | None = None
        self._commands: Iterator[Train | SaveState] = iter(())

    def ask(self, question: FromScript) -> Any:
        """The actor's answer. Raises `ConfigError` with what it has against it, `EOFError` once the run is gone."""
        self._link.send(question)
        while isinstance(answer := self._link.recv(), Train):
            self._waiting.append(answer)
        if isinstance(answer, RunOver):
            self._final = answer.version
            raise EOFError
        if isinstance(answer, Failed):
            raise ConfigError(answer.problem)
        if isinstance(answer, Serve):
            self._channel = WorkerChannel(answer.folder, *self._who)
            self._commands = self._channel.commands()
        return answer

    def tell(self, message: FromScript) -> None:
        """Say something that has no answer."""
        with suppress(OSError):
            self._link.send(message)

    def next(self) -> Train | None:
        """The next turn; None once the run is over."""
        if self._channel is None:
            return self._next_of_link()
        for command in self._commands:
            if isinstance(command, Train):
                return command
            who = command.worker, command.incarnation, command.version
            self._channel.answer(StateSaved(*who, problem="a script keeps its own state"))
        return None

    def _next_of_link(self) -> Train | None:
        if self._waiting:
            return self._waiting.popleft()
        with suppress(EOFError, OSError):
            message: ToScript = self._link.recv()
            if isinstance(message, Train):
                return message
            if isinstance(message, RunOver):
                self._final = message.version
        return None

    def final(self) -> int | None:
        """Wait for the end of the run: the version of the center that it came to; None if the run is gone."""
        with suppress(EOFError, OSError):
            while self._final is None:
                message = self._link.recv()
                self._final = message.version if isinstance(message, RunOver) else None
        return self._final

    def answer(self, message: Trained | Refused) -> None:
        """What came of the turn."""
        if self._channel is not None:
            self._channel.answer(message)
        else:
            self.tell(message)

    def close(self) -> None:
        """Take no more turns."""
        if self._channel is not None:
            self._channel.__exit__(None, None, None)
