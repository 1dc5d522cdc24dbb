"""The tests of versions: asked of the tester in the order of the versions, whenever it comes, and again if it dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from ray.exceptions import RayActorError, RayError, RayTaskError

from speedo.errors import SpeedoError
from speedo.messages import Evaluate, Tested
from speedo.transport.channel import first_line

MOST_TESTERS: Final = 100  # a tester that dies again and again does so for a reason


class VersionTests:
    """`new_tester` starts a tester; without it there are no tests. `tell` takes what becomes of each, in any thread."""

    def __init__(
        self, new_tester: Callable[[], Any] | None, tell: Callable[[Tested], None]
    ) -> None:
        self._new_tester, self._tell = new_tester, tell
        self._tester: Any = None
        self._testers = 0
        self._reviving = threading.Lock()  # held for as long as a tester takes to start
        self._asking = threading.RLock()  # an answer may come while another is asked for
        self._waiting: list[Evaluate] = []

    def tester_in_place_of(self, former: Any) -> Any:
        """The tester; another one if it is still the `former`, which died, or which is None before there is any."""
        with self._reviving:
            if self._tester is former and self._new_tester is not None:
                self._testers += 1
                self._tester = self._new_tester()
            return self._tester

    def ask(self, command: Evaluate) -> None:
        """Let this version be tested, after those that wait already."""
        with self._asking:
            tester = self._tester
            if tester is not None and not self._waiting:
                self._ask(tester, command)
                return
        self._ask_later(command, tester)

    def _ask(self, tester: Any, command: Evaluate) -> None:
        try:
            asked = tester.evaluate.remote(command.version).future()
        except RayError as error:
            self._tell(Tested(command.version, {}, first_line(error)))
            return
        asked.add_done_callback(lambda done: self._done(command, tester, done))

    def _ask_later(self, command: Evaluate, former: Any) -> None:
        """There is no tester yet, or it died: another one is for every test that was lost with it."""
        with self._asking:
            self._waiting.append(command)
        threading.Thread(target=self._ask_another, args=(former,), daemon=True).start()

    def _ask_another(self, former: Any) -> None:
        tester, problem = None, "this run has no tester"
        try:
            tester = self.tester_in_place_of(former)
        except (RayError, SpeedoError) as error:
            problem = first_line(error)
        with self._asking:
            waiting, self._waiting = self._waiting, []
            for command in sorted(waiting, key=lambda one: one.version):
                if tester is None:
                    self._tell(Tested(command.version, {}, problem))
                else:
                    self._ask(tester, command)

    def _done(self, command: Evaluate, tester: Any, done: Any) -> None:
        version = command.version
        error = done.exception()
        if error is None:
            self._tell(Tested(version, done.result()))
        elif isinstance(error, RayActorError) and self._testers < MOST_TESTERS:
            self._ask_later(command, tester)
        else:
            cause = error.cause if isinstance(error, RayTaskError) else error
            self._tell(Tested(version, {}, first_line(cause)))
