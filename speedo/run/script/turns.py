"""Where the turns of a script come from: the master's channel or, on another machine, the link to its actor.

What else it asks goes to its actor, by the link.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Final

from speedo.errors import ConfigError, TeamBrokenError
from speedo.exchange.channel import WorkerChannel, first_line
from speedo.exchange.lease import Claim, DealRequest, Dealt, Lease, LeaseRequest, NoLease, NotDealt
from speedo.exchange.served_vectors import PATIENCE_S
from speedo.master.slots import ServerAddress
from speedo.messages import Pause, Records, Refused, SaveState, StateSaved, Tested, Train, Trained
from speedo.run.script_link import (
    AtTest,
    Done,
    Failed,
    FromScript,
    Hello,
    MeetScripts,
    Met,
    Missing,
    Raised,
    RunOver,
    Serve,
    Shares,
    Start,
    StopRun,
    TestLease,
    TestPart,
    TestTurn,
    ToScript,
    TurnsEnded,
)

AGAIN_S: Final = 0.05  # before the master is asked again for what it does not know yet
LOOK_S: Final = 0.2  # between two calls of what is done while the end of the run is waited for


class TurnSource:
    """The commands of one worker, and the answers to what it asks."""

    def __init__(
        self,
        link: Connection,
        worker: int,
        incarnation: int,
        save: Callable[[SaveState], StateSaved],
    ) -> None:
        """`save` puts the worker's state into the store."""
        self._link, self._who, self._save = link, (worker, incarnation), save
        self._channel: WorkerChannel | None = None
        self._next: Start | None = None  # the place that another master gave this worker
        self._commands: Iterator[Train | SaveState] = iter(())
        self._final: int | None = None
        self._reader: threading.Thread | None = None

    def begin(self, hello: Hello) -> tuple[ServerAddress, ...]:
        """Say what is trained, and open the channel; where the servers of the center are, if it has any.

        Raises `EOFError` if the run is over, and as the others `TeamBrokenError` if it has another master.
        """
        answer = self._ask(hello)
        assert isinstance(answer, Serve)
        self.close()
        self._channel = WorkerChannel(answer.folder, *self._who)
        self._commands = self._channel.commands()
        return answer.servers

    @property
    def has_moved(self) -> bool:
        """Whether the run has another master, whose turns this worker does not take yet."""
        return self._next is not None

    def another_master(self) -> Start | None:
        """Wait for the run's next master, once the channel has ended; None if the run is over instead."""
        with suppress(EOFError, OSError, TeamBrokenError):
            if self._next is None:
                self._ask(TurnsEnded())
        start, self._next = self._next, None
        return start

    def claim(self, claim: Claim) -> Claim:
        """What this worker cannot have of its leases under another master. Raises as `lease`."""
        answer = self._ask(claim)
        assert isinstance(answer, Claim)
        return answer

    def check(self, data: Mapping[str, str]) -> None:
        """Have this compared with the data of the other workers. Raises as `lease`."""
        self._ask(Shares(data))

    def lease(self, request: LeaseRequest) -> Lease | NoLease:
        """Records to train. Raises `ConfigError` with what the master has against it, `EOFError` as `begin`."""
        answer = self._ask(request)
        assert isinstance(answer, Lease | NoLease)
        if answer is NoLease.ENDED:
            raise EOFError
        return answer

    def deal(self, request: DealRequest) -> Dealt:
        """Records of the whole team; raises as `lease`."""
        answer = self._ask(request)
        assert isinstance(answer, Dealt)
        return answer

    def not_dealt(self, number: tuple[int, int]) -> None:
        """Return once the master knows that this worker did not get its part of this deal."""
        with suppress(EOFError, OSError, TeamBrokenError):  # the run or its master is gone
            self._ask(NotDealt(number))

    def meet(self, meet: MeetScripts) -> Met:
        """The next group of workers for collectives, or how the present one is. Raises `TeamBrokenError`."""
        try:
            answer = self._ask(meet)
        except (EOFError, OSError):
            raise TeamBrokenError("the run is over") from None
        assert isinstance(answer, Met)
        if answer.broken:
            raise TeamBrokenError(answer.broken)
        return answer

    def missing(self, members: tuple[tuple[int, int], ...]) -> str:
        """Which of these workers and incarnations is gone, as a sentence; empty while all are there."""
        try:
            answer = self._ask(Missing(members))
        except (EOFError, OSError):
            return "the run is over"
        assert isinstance(answer, Met)
        return answer.broken

    def _ask(self, question: FromScript) -> ToScript:
        if self._final is not None:  # what comes next may be the answer to another question
            raise EOFError
        self._link.send(question)
        answer: ToScript = self._link.recv()
        if isinstance(answer, Failed):
            raise ConfigError(answer.problem)
        if isinstance(answer, RunOver):
            self._final = answer.version
            raise EOFError
        if isinstance(answer, Start):
            self._next = answer
            raise TeamBrokenError("the run has another master")
        return answer

    def next(self) -> Train | None:
        """The next turn; None once the run is over, or has another master."""
        for command in self._commands:
            if isinstance(command, Train):
                return command
            self.answer(self._save(command))
        return None

    def read_ahead(self, prepare: Callable[[Train], None]) -> None:
        """From now on commands are taken in a thread, where `prepare` is called for each turn."""
        commands, there = self._commands, SimpleQueue[Train | SaveState | None]()

        def read() -> None:
            with suppress(OSError):  # the script has left, and the channel is closed
                for command in commands:
                    if isinstance(command, Train):
                        prepare(command)
                    there.put(command)
            there.put(None)

        self._reader = threading.Thread(target=read, name="ahead", daemon=True)
        self._reader.start()
        self._commands = iter(there.get, None)

    def answer(self, message: Trained | Refused | StateSaved | Pause) -> None:
        """What came of the turn, or of the order to save the state."""
        assert self._channel is not None
        self._channel.answer(message)

    def pause(self, *, over: bool = False, tests: bool = False) -> None:
        """Give back the turn that was begun, and get no other until the pause is over."""
        self.answer(Pause(*self._who, over, tests))

    def test_turn(self, number: int, records: int) -> TestTurn:
        """Whether this worker takes part in the test of this number."""
        with suppress(EOFError, OSError):
            answer = self._ask(AtTest(number, records))
            assert isinstance(answer, TestTurn)
            return answer
        return TestTurn(takes_part=False)

    def version_to_test(self, number: int) -> int | None:
        """Wait, in the pause for the test of this number, for the version to test; None if there is none."""
        with suppress(EOFError, OSError):
            while True:
                answer = self._ask(AtTest(number, pauses=True))
                assert isinstance(answer, TestTurn)
                if not answer.takes_part or answer.version is not None:
                    return answer.version if answer.takes_part else None
                time.sleep(AGAIN_S)
        return None

    def lease_to_test(self, request: LeaseRequest) -> Lease | NoLease:
        """Records to test; raises as `lease`."""
        answer = self._ask(TestLease(request))
        assert isinstance(answer, Lease | NoLease)
        return answer

    def test_part(
        self, metrics: Mapping[str, float] | None = None, records: Records = ()
    ) -> Tested | TestTurn:
        """Say the metrics of these records, or ask how far the test is; see `TestPart`. Raises as `lease`."""
        answer = self._ask(TestPart(metrics or {}, records))
        assert isinstance(answer, Tested | TestTurn)
        return answer

    def tested(self, version: int, metrics: Mapping[str, float], problem: str = "") -> None:
        """What came of the test."""
        with suppress(OSError):
            self._link.send(Tested(version, metrics, problem))

    def stop(self, cause: str) -> None:
        """Have the run end; `cause` completes "stopped by"."""
        with suppress(OSError):
            self._link.send(StopRun(cause))

    def done(
        self,
        meanwhile: Callable[[], None] = lambda: None,
        follow: Callable[[Start], object] = lambda start: None,
    ) -> int | None:
        """Say that nothing more is trained, and wait for the end of the run; `meanwhile` is called now and then.

        The version of the center that it came to; None if the run is gone. `follow` hears of another master.
        """
        with suppress(OSError):
            self._link.send(Done())
        while self._final is None:
            try:
                message: ToScript | None = self._link.recv() if self._link.poll(LOOK_S) else None
            except (EOFError, OSError):
                break
            if message is None:
                meanwhile()
            elif isinstance(message, SaveState):
                with suppress(OSError):
                    self._link.send(self._save(message))
            elif isinstance(message, Start):
                follow(message)
            elif isinstance(message, RunOver):
                self._final = message.version
        if self._reader is not None:  # it may still fetch
            self._reader.join(PATIENCE_S)
        return self._final

    def raised(self, error: BaseException) -> None:
        """Say that the script leaves by this exception: its process may take a while to end."""
        with suppress(OSError):
            self._link.send(Raised(f"{type(error).__name__}: {first_line(error)}"))

    def close(self) -> None:
        """Take no more turns."""
        if self._channel is not None:
            self._channel.__exit__(None, None, None)
