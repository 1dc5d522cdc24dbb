"""A host of workers: starts them on its own node, watches their processes, and does what the master orders."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from speedo.actors.death_causes import cause_in
from speedo.actors.host_orders import Orders
from speedo.actors.worker_actor import Ready
from speedo.actors.worker_process import Seat, started, warm
from speedo.errors import ClusterError, SpeedoError
from speedo.master.slots import Assignment
from speedo.run.settings import RunSettings
from speedo.transport.channel import first_line

WATCH_S: Final = 0.25  # how often the workers' processes are looked at
SOON_S: Final = 0.05  # the same while one of them starts, or is to be started
ATTEND_S: Final = 1.0  # how often the master is asked for orders
ANSWER_S: Final = 20.0
SLOW_S: Final = 3.0  # a start that waits longer for the master says why
SERVERS_S: Final = 0.1  # how often is looked for the servers of the center
AGAIN_S: Final = 1.0  # before a master that did not answer is asked for a place again


class WorkerHost:
    """Workers of one run on this node; their own words go to files in `logs`, their small files to `scratch`.

    Those that die are started again, with growing pauses. `last_died`, once set, is the cause of the last death:
    nobody is left here, and nobody will be started. `note` is told what a slow start waits for.
    """

    def __init__(
        self,
        master: Any,
        settings: RunSettings,
        name: str,
        logs: Path,
        scratch: Path,
        data_root: Path | None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.last_died: str | None = None
        self._master, self._settings, self._name = master, settings, name
        self._folders, self._note = (logs, scratch, data_root), note
        self._seats: list[Seat] = []
        self._warm: list[Any] = []
        self._restarts = 0
        self._round = 0
        self._asked: Any = None
        self._next_attend = 0.0
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="worker-watch", daemon=True)

    def warm_up(self, count: int) -> None:
        """Begin processes for so many workers, while the master still builds its engine."""
        self._warm += [warm(self._settings) for _ in range(count)]

    def start(self, count: int) -> None:
        """Start the workers, all at once, and hand them to the master.

        Raises what kept one of them from starting, after the others were ended.
        """
        cores = len(os.sched_getaffinity(0))
        self._restarts = self._patiently(self._master.enlist.remote(self._name, count, cores))
        try:
            if count:
                self._wait_for_servers()
            for _ in range(count):
                seat = Seat(self._restarts)
                place: Assignment = self._patiently(self._master.assign.remote(self._name))
                actor = self._warm.pop() if self._warm else None
                self._begin_at(seat, place, time.monotonic(), actor)
                self._seats.append(seat)
            for seat in self._seats:
                self._hand_over(seat, seat.wait(time.monotonic()))
        except RayTaskError as error:
            self._leave(self._seats, "it did not start")
            raise error.cause from None
        except (SpeedoError, RayError):
            self._leave(self._seats, "it did not start")
            raise
        self._watcher.start()

    def _wait_for_servers(self) -> None:
        """Until the center has its servers: before that a worker could connect with nobody."""
        began, said = time.monotonic(), not self._settings.serves
        while self._settings.serves and not ray.get(
            self._master.servers_there.remote(), timeout=ANSWER_S
        ):
            if not said and time.monotonic() > began + SLOW_S:
                self._note("waiting for the servers of the center")
                said = True
            status = ray.get(self._master.status.remote(), timeout=ANSWER_S)
            if status.over:
                raise ClusterError("the run is over before it began")
            time.sleep(SERVERS_S)

    def _patiently(self, answer: Any) -> Any:
        """The master's answer; if it takes long, why is noted, each time that it changes."""
        said = ""
        while not ray.wait([answer], timeout=SLOW_S)[0]:
            status = ray.get(self._master.status.remote(), timeout=ANSWER_S)
            why = status.store_trouble or "it has much to do"
            if why != said:
                self._note(f"waiting for the master to give workers their places: {why}")
                said = why
        return ray.get(answer)

    def stop(self, cause: str) -> None:
        """End the workers; the master hears of it. May be called twice."""
        self._stopping.set()
        with self._lock:
            self._leave(self._seats, cause, wait=False)
            while self._warm:
                ray.kill(self._warm.pop())

    # ------------------------------------------------------------ the watcher's thread

    def _watch(self) -> None:
        while not self._stopping.wait(SOON_S if self._is_short() else WATCH_S):
            # A master that is gone: others notice, and stop us. The rest may be better at the next look.
            with self._lock, suppress(RayError, psutil.Error, OSError):
                if not self._stopping.is_set():
                    self._look(time.monotonic())

    def _is_short(self) -> bool:
        """Whether a worker that should be at work is not there yet."""
        return any(
            seat.starting is not None or (seat.place is None and not seat.given_up)
            for seat in self._seats
        )

    def _look(self, now: float) -> None:
        for seat in self._seats:
            if seat.place is None and not seat.given_up and now >= seat.due:
                self._begin(seat, now)
            elif seat.starting is not None:
                self._look_at_start(seat, now)
            elif seat.place is not None and seat.is_dead():
                self._died(seat, seat.cause(), now)
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            answer, self._asked = self._asked, None
            self._follow(ray.get(answer), now)
        if self._asked is None and now >= self._next_attend:
            self._next_attend = now + ATTEND_S
            places = [seat.place for seat in self._seats if seat.place is not None]
            alive = tuple((place.worker, place.incarnation) for place in places)
            self._asked = self._master.attend.remote(self._name, alive)

    def _begin(self, seat: Seat, now: float) -> None:
        seat.due = now + AGAIN_S
        try:
            place = ray.get(self._master.assign.remote(self._name, seat.former), timeout=ANSWER_S)
        except (RayTaskError, GetTimeoutError):  # its store or itself is busy or away
            return
        self._begin_at(seat, place, now)

    def _begin_at(self, seat: Seat, place: Assignment, now: float, actor: Any = None) -> None:
        seat.begin(self._settings, place, *self._folders, now, actor, self._master)

    def _look_at_start(self, seat: Seat, now: float) -> None:
        try:
            ready = seat.answer(now)
            if ready is not None:
                self._hand_over(seat, ready)
        except RayTaskError as error:
            self._died(seat, first_line(error.cause), now)
        except (SpeedoError, GetTimeoutError) as error:
            self._died(seat, first_line(error), now)

    def _hand_over(self, seat: Seat, ready: Ready) -> None:
        join = self._master.join.remote(seat.place, seat.actor, ready)
        ray.get(join, timeout=ANSWER_S)

    def _died(self, seat: Seat, cause: str, now: float, *, for_good: bool = False) -> None:
        """Tell the master of a death and of what comes now; the process may still have to be ended."""
        place = seat.place
        up_s = 0.0 if seat.starting is not None else now - seat.since
        seat.end()
        pause = None if for_good else seat.restarts.pause_after(up_s)
        if pause is not None:
            seat.due = now + pause
            outlook = f"restarting in {pause:.0f} s" if pause else "restarting"
        else:
            seat.given_up = True
            used = seat.restarts.used
            outlook = f"gone, given up after {used} restarts" if used and not for_good else "gone"
        self._master.lost.remote(place, cause, outlook)
        if all(one.given_up for one in self._seats):
            self.last_died = cause

    def _leave(self, seats: list[Seat], cause: str, *, wait: bool = True) -> None:
        """Let workers go for good, and forget their seats."""
        for seat in list(seats):
            if seat.place is not None:
                self._master.lost.remote(seat.place, cause)
            seat.end(wait=wait)
            self._seats.remove(seat)

    # ------------------------------------------------------------ orders

    def _follow(self, orders: Orders, now: float) -> None:
        for seat in self._seats:
            for place in orders.moved:
                if seat.place is not None and seat.place.worker == place.worker:
                    seat.place = place
            for end in orders.end:
                if seat.place is not None and end.is_of(seat.place):
                    own = seat.cause() if seat.is_dead() else end.reason
                    self._died(seat, own, now, for_good=end.for_good)
        if orders.round > self._round:  # somebody wants so many now, whatever happened before
            self._round = orders.round
            self._leave([seat for seat in self._seats if seat.given_up], "given up")
            self.last_died = None
        self._seats += [Seat(self._restarts) for _ in range(orders.count - len(self._seats))]
        spare = len(self._seats) - orders.count
        if spare > 0:
            self._leave(sorted(self._seats, key=_worth)[:spare], "fewer workers are wanted")


def _worth(seat: Seat) -> tuple[bool, bool, int]:
    """How little a seat would be missed, least first: given up, empty, then the highest slots."""
    place = seat.place
    return (not seat.given_up, place is not None, -place.worker if place is not None else 0)


__all__ = ["Ready", "WorkerHost", "cause_in", "started"]
