"""A host of workers: starts them on its node, watches their processes, and carries out the master's orders."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import psutil
import ray
from ray.exceptions import RayError

from speedo.actors.host_manager import EndOfWorker, Orders
from speedo.actors.ray_errors import is_gone, raised_by, why
from speedo.actors.spare_worker import SETTLED_S, SpareWorker
from speedo.actors.worker_actor import WorkerReady
from speedo.actors.worker_process import STOPPED, WorkerProcess
from speedo.engines.solver.holding import Holding, holding_of
from speedo.errors import ClusterError, SpeedoError
from speedo.master.slots import Assignment
from speedo.run.open_store import this_machine as network_of_machine
from speedo.run.scratch import LEAVES
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.system.cores import share_of, this_machine
from speedo.watch.given_up import GIVEN_UP

WATCH_S: Final = 0.25  # how often the workers' processes are looked at
SOON_S: Final = 0.05  # the same while one of them starts, or is to be started
ATTEND_S: Final = 1.0  # how often the master is asked for orders
ANSWER_S: Final = 20.0
SLOW_S: Final = 3.0  # a start that waits longer for the master says why
SERVERS_S: Final = 0.1  # how often is looked for the servers of the center
SCRIPTS_END: Final = "the training is over; waiting for the scripts to end; Ctrl-C ends them"
AGAIN_S: Final = 1.0  # before a master that did not answer is asked for a place again


class WorkerHost:
    """Workers of one run on this node; their output goes to files in `logs`, their small files to `scratch`.

    Workers that die are restarted after growing pauses. `last_died`, once set, is the cause of the last death when no
    worker is left and none will be restarted. `note` gets what a slow start waits for. `options_of` gives Ray's
    options for the actor of the worker with this number.
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
        options_of: Callable[[int], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        self._options_of = options_of
        self.last_died: str | None = None
        self.leave_s: float | None = None  # the master wants this host to leave within this time
        self._hands_in = False
        self._master, self._settings, self._name = master, settings, name
        self._folders, self._note = (logs, scratch, data_root), note
        self._processes, self._spare = list[WorkerProcess](), SpareWorker()
        self._machine, self._count = this_machine(), 0
        self._restarts = 0
        self._round = 0
        self._requests = 0
        self._asked: Any = None
        self._next_attend = 0.0
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="worker-watch", daemon=True)

    def start(self, count: int) -> None:
        """Start the workers, all at once, and hand them to the master.

        Raises what kept one of them from starting, after the others were ended.
        """
        self.begin(count)
        self.hand_over(())

    def begin(self, count: int, loaded: Sequence[Any] = ()) -> None:
        """The first part of `start`: the workers have their places, and their processes load, or have `loaded`."""
        self._count = count
        cores = len(os.sched_getaffinity(0))
        with self._all_or_none():
            master, holding = self._master, self._holding(count)
            self._restarts = self._patiently(
                lambda: master.enlist.remote(self._name, count, cores, holding)
            )
            if count:
                self._wait_for_servers()
            for request, actor in zip_longest(range(1, count + 1), loaded):
                process, self._requests = self._new_process(), request
                ask = partial(master.assign.remote, self._name, None, request)
                place: Assignment = self._patiently(ask)
                self._begin_at(process, place, time.monotonic(), actor)
                self._processes.append(process)

    def hand_over(self, stopped: Collection[str]) -> None:
        """The second part of `start`: each worker joins the run once it is ready, and may train before the others.

        If the run is `stopped` meanwhile, the watcher looks after the others. Raises `KeyboardInterrupt` if there is
        no worker yet that could have trained.
        """
        starting = {process.starting: process for process in self._processes}
        with self._all_or_none():
            while starting and not stopped:
                ready, _ = ray.wait(list(starting), timeout=WATCH_S)
                now = time.monotonic()
                if now >= self._next_attend:
                    # Only to be heard of: orders are followed once all have joined.
                    self._next_attend = now + ATTEND_S
                    self._master.attend.remote(self._name, ())
                with self._lock:
                    if self._stopping.is_set():  # the run is over, and these have been ended
                        return
                    for one in ready or list(starting):  # one that takes too long says so
                        if (answer := starting[one].answer(now)) is not None:
                            self._join(starting.pop(one), answer)
        if starting and len(starting) == len(self._processes):
            raise KeyboardInterrupt
        self._spare.due = time.monotonic() + SETTLED_S
        self._watcher.start()

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """An error ends the workers that have begun, and is raised as what has caused it."""
        try:
            yield
        except (SpeedoError, RayError) as error:
            self._leave(self._processes, "it did not start")
            if (raised := raised_by(error)) is not None:
                raise raised from None
            raise

    def _holding(self, count: int) -> Holding:
        """The training records on this node, for a host with workers."""
        spec = self._settings.spec
        if not count or isinstance(spec, ScriptJob):
            return Holding()
        return holding_of(spec.on_node(self._folders[2]), network_of_machine())

    def change(self, count: int, leaving: Collection[int]) -> None:
        """From now on have this many workers; those with the numbers in `leaving` end."""
        with self._lock:
            gone = [process for process in self._processes if process.number in leaving]
            self._leave(gone, "its place in the cluster is gone")
            cores = len(os.sched_getaffinity(0))
            ray.get(
                self._master.enlist.remote(self._name, count, cores, self._holding(count)),
                timeout=ANSWER_S,
            )
            self._asked, self._count = None, count  # orders under way are of before
            self._fill(count)

    def follow(self, master: Any, settings: RunSettings) -> None:
        """The run has another master: the workers join it, each once its turn has ended. Raises `ClusterError`."""
        with self._lock:
            self._master, self._settings, self._asked = master, settings, None
            cores = len(os.sched_getaffinity(0))
            holding = self._holding(self._count)
            self._patiently(lambda: master.enlist.remote(self._name, self._count, cores, holding))
            now = time.monotonic()
            for process in self._processes:
                process.asked, process.request = None, 0
                if process.given_up_for:
                    master.gave_up.remote(process.former, process.given_up_for)
                trains = process.starting is None or process.follows
                if process.place is not None and trains and not process.is_dead():
                    place = self._adopted(master, process.place)
                    if place is not None:
                        process.follow(settings, place, now, master)
                        continue
                if process.place is not None:  # the former master alone knew of it
                    process.end()
                    process.due = now

    def _adopted(self, master: Any, place: Assignment) -> Assignment | None:
        """What another master says to this place of a former one; None where its worker must begin again."""
        try:
            adopted: Assignment = self._patiently(partial(master.adopt.remote, self._name, place))
        except RayError as error:
            if is_gone(error):
                raise  # its successor is followed
            return None
        return adopted

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

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """The master's answer, asked again while it is None; if it takes long, notes the reason when that changes."""
        said, look = "", time.monotonic() + SLOW_S
        answer = ask()
        while True:
            if ray.wait([answer], timeout=max(0.0, look - time.monotonic()))[0]:
                if (found := ray.get(answer)) is not None:
                    return found
                time.sleep(WATCH_S)
                answer = ask()
            if time.monotonic() >= look:
                look = time.monotonic() + SLOW_S
                status = ray.get(self._master.status.remote(), timeout=ANSWER_S)
                why = status.store_trouble or "it is busy"
                if why != said:
                    self._note(f"waiting for the master to give workers their places: {why}")
                    said = why

    def let_scripts_end(
        self, version: int, stopped: Collection[str], meanwhile: Callable[[], None]
    ) -> list[str]:
        """Tell the scripts what the run came to, and wait until they end, or until it is `stopped` once more.

        A sentence for each that ended badly.
        """
        self._stopping.set()  # who ends now is not started again
        with self._lock:
            for process in self._processes:
                # Its script has not joined, and would train nothing
                if process.starting is not None and not process.follows:
                    process.end(wait=False)
            actors = [(one, one.actor) for one in self._processes if one.actor is not None]
        waiting = {}
        for process, actor in actors:
            actor.over.remote(version)
            waiting[actor.wait.remote()] = process
        began, before, told, problems = time.monotonic(), len(stopped), False, []
        while waiting and len(stopped) == before:
            done, _ = ray.wait(list(waiting), timeout=WATCH_S)
            meanwhile()
            for reference in done:
                process = waiting.pop(reference)
                with suppress(RayError):
                    if problem := ray.get(reference):
                        problems.append(f"worker {process.former}: {problem}; see {process.log}")
            if waiting and not told and time.monotonic() > began + SLOW_S:
                self._note(SCRIPTS_END)
                told = True
        return problems

    def hand_in(self, cause: str) -> None:
        """Start no worker any more; those that are there end their turns early, and the master lets them go."""
        with self._lock:
            if not self._hands_in:
                self._hands_in = True
                idle = [
                    one for one in self._processes if one.place is None or one.starting is not None
                ]
                self._leave(idle, cause)
                (self._folders[1] / LEAVES).touch()

    def stop(self, cause: str) -> None:
        """End the workers; the master hears of it. May be called twice."""
        self._stopping.set()
        with self._lock:
            self._leave(self._processes, cause, wait=False)
            self._spare.end()

    # ------------------------------------------------------------ the watcher's thread

    def _watch(self) -> None:
        while not self._stopping.is_set():
            deaths = select.poll()
            for process in self._processes:
                process.end_wakes(deaths)
            deaths.poll(1000 * (SOON_S if self._is_short() else WATCH_S))
            # A master that is gone: others notice, and stop us. The rest may be better at the next look.
            with self._lock, suppress(RayError, psutil.Error, OSError):
                if not self._stopping.is_set():
                    self._look(time.monotonic())

    def _is_short(self) -> bool:
        """Whether a worker that should be training is not there yet."""
        return any(
            process.starting is not None or (process.place is None and not process.given_up)
            for process in self._processes
        )

    def _look(self, now: float) -> None:
        for process in self._processes:
            if process.place is None and not process.given_up and now >= process.due:
                if self._hands_in:
                    continue
                self._begin(process, now)
            elif process.starting is not None:
                self._look_at_start(process, now)
            elif process.place is not None and process.is_dead():
                self._died(process, process.cause(), now)
            elif process.is_stopped(now):
                process.describe_end(STOPPED)
                self._died(process, STOPPED, now)
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            answer, self._asked = self._asked, None
            self._follow(ray.get(answer), now)
        if self._asked is None and now >= self._next_attend:
            self._next_attend = now + ATTEND_S
            places = [process.place for process in self._processes if process.place is not None]
            alive = tuple((place.worker, place.incarnation) for place in places)
            self._asked = self._master.attend.remote(self._name, alive)
            if not (self._is_short() or any(one.options for one in self._processes)):
                self._spare.look(self._settings, self._count, now)

    def _begin(self, process: WorkerProcess, now: float) -> None:
        """Ask for a place, once: a master that is busy answers late, and would give a second one to another request."""
        if process.asked is None:
            if not process.request:
                self._requests += 1
                process.request = self._requests
            process.asked = self._ask_for_place(process)
        if not ray.wait([process.asked], timeout=0)[0]:
            return
        asked, process.asked = process.asked, None
        try:
            place = ray.get(asked)
        except RayError:  # the master's store is away, or the master is
            process.due = now + AGAIN_S
            return
        if place is None:  # the store has not answered the master yet
            process.due = now + WATCH_S
            return
        process.request = 0
        if isinstance(place, EndOfWorker):
            process.given_up = True
            if all(one.given_up for one in self._processes):
                self.last_died = place.reason
            return
        self._begin_at(process, place, now, self._spare.take())

    def _ask_for_place(self, process: WorkerProcess) -> Any:
        return self._master.assign.remote(self._name, process.former, process.request)

    def _begin_at(self, process: WorkerProcess, place: Assignment, now: float, actor: Any) -> None:
        cores, machine = self._settings.cores, self._machine
        share = share_of(self._name, cores, machine, self._count, process.number)
        process.begin(self._settings, place, *self._folders, now, actor, self._master, share)

    def _new_process(self) -> WorkerProcess:
        """One more, with the lowest number that no other has."""
        taken = {process.number for process in self._processes}
        free = next(number for number in range(len(taken) + 1) if number not in taken)
        return WorkerProcess(self._restarts, free, options=self._options_of(free))

    def _fill(self, count: int) -> None:
        while len(self._processes) < count:
            self._processes.append(self._new_process())

    def _look_at_start(self, process: WorkerProcess, now: float) -> None:
        try:
            ready = process.answer(now)
            if ready is not None:
                self._join(process, ready)
        except (SpeedoError, RayError) as error:
            # The successor of a master that is gone adopts this worker; whatever else it is, it has not joined.
            if not is_gone(error):
                self._died(process, why(error), now)

    def _join(self, process: WorkerProcess, ready: WorkerReady) -> None:
        join = self._master.join.remote(process.place, process.actor, ready)
        ray.get(join, timeout=ANSWER_S)

    def _died(
        self, process: WorkerProcess, cause: str, now: float, *, for_good: bool = False
    ) -> None:
        """Report a death and what follows to the master; the process may still have to be ended."""
        place = process.place
        up_s = 0.0 if process.starting is not None else now - process.since
        process.end()
        stays_away = for_good or self._hands_in
        pause = None if stays_away else process.restarts.pause_after(up_s)
        self._spare.due = now
        if pause is not None:
            process.due = now + pause
            outlook = f"restarting in {pause:.0f} s" if pause else "restarting"
        else:
            process.given_up = True
            used = process.restarts.used
            outlook = f"{GIVEN_UP} after {used} restarts" if used else GIVEN_UP
            outlook = "gone" if stays_away else outlook
            process.given_up_for = "" if stays_away else cause
        self._master.lost.remote(place, cause, outlook)
        if all(one.given_up for one in self._processes) and not self._hands_in:
            self.last_died = cause

    def _leave(self, processes: list[WorkerProcess], cause: str, *, wait: bool = True) -> None:
        """Remove workers for good."""
        for process in list(processes):
            if process.place is not None:
                self._master.lost.remote(process.place, cause)
            elif process.request:
                self._ask_to_give_back(process, cause)
            process.end(wait=wait)
            self._processes.remove(process)

    def _ask_to_give_back(self, process: WorkerProcess, cause: str) -> None:
        asked, process.asked = process.asked or self._ask_for_place(process), None
        asked.future().add_done_callback(partial(self._give_back, process, cause))

    def _give_back(self, process: WorkerProcess, cause: str, answer: Any) -> None:
        """A place came for a worker that is not wanted any more, or will come."""
        if answer.exception() is not None or isinstance(answer.result(), EndOfWorker):
            return
        if (place := answer.result()) is not None:
            self._master.lost.remote(place, cause)
            return
        again = threading.Timer(AGAIN_S, self._ask_to_give_back, (process, cause))
        again.daemon = True
        again.start()

    # ------------------------------------------------------------ orders

    def _follow(self, orders: Orders, now: float) -> None:
        for process in self._processes:
            for place in orders.moved:
                if process.place is not None and process.place.worker == place.worker:
                    process.place = place
            for end in orders.end:
                if process.place is not None and end.is_of(process.place):
                    own = end.reason
                    if process.is_dead():
                        own = process.cause()
                    elif not end.for_good:
                        process.describe_end(own)
                    self._died(process, own, now, for_good=end.for_good)
        self.leave_s = orders.leave_s
        if self._hands_in:
            return
        if orders.round > self._round:  # somebody wants this many now, whatever happened before
            self._round = orders.round
            self._leave([process for process in self._processes if process.given_up], "given up")
            self.last_died = None
        self._count = orders.count
        self._fill(orders.count)
        spare = len(self._processes) - orders.count
        if spare > 0:
            self._leave(sorted(self._processes, key=_worth)[:spare], "fewer workers are wanted")


def _worth(process: WorkerProcess) -> tuple[bool, bool, int]:
    """The order of removal: first workers given up, then those without a process, then the highest slots."""
    place = process.place
    return (not process.given_up, place is not None, -place.worker if place is not None else 0)
