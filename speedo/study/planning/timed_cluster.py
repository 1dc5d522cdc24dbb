"""A simulated cluster in which everything takes time: compute, transfers through the store, messages, the master.

Driver, coordinator, strategies, center, the worker's turn and the team's turn are the real ones, with a model of a few
parameters; the times of the real model come from a calibration. While the master works, the workers continue, and what
reaches it meanwhile waits.

Each server has a Redis, a process that does one thing after another, and an equal range of the center, on the machine
of a worker. All ranges of a model travel at the same time. The master waits for no server; what it sends and receives
takes it time.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial

from speedo.engines.quadratic import QuadraticEngine
from speedo.master.fetch_pacing import Pace
from speedo.messages import Command, Event, Kind, Team, Train, Trained
from speedo.storage.memory_store import MemoryStore
from speedo.study.planning.calibration import Calibration
from speedo.study.planning.shared_resources import (
    Job,
    Keeper,
    Queue,
    Then,
    aside,
    chain,
    pause,
    together,
)
from speedo.study.planning.site import Site
from speedo.study.planning.team_round import TeamRound, team_round
from speedo.study.planning.timed_machines import Machines
from speedo.study.planning.timed_team import WHOLE, Part, TimedTeam, nobody
from speedo.study.simulation.simulated_team import Memories, train_together
from speedo.study.simulation.simulator import SimulatedCluster
from speedo.study.simulation.world import World
from speedo.worker.turn import EngineWorker


class TimedCluster(SimulatedCluster):
    """A `SimulatedCluster` whose turns take the times that the calibration gives for this site."""

    def __init__(
        self,
        calibration: Calibration,
        site: Site,
        store: MemoryStore,
        engine: Callable[[int], QuadraticEngine],
        seed: int,
        spread: float = 0.0,
        part: tuple[int, int] = (0, 1),
        overlap: Container[int] = (),
        servers: Sequence[int] = (),
    ) -> None:
        """`servers` are the machines of the servers, one entry each.

        `spread` is the longest time in seconds that a worker waits before its first step, different for each worker.
        Workers that begin at the same time drift apart slowly; the wait saves simulating that. In run `part` of n, each
        waits for a time from the part-th of n equal parts of `spread`.
        """
        super().__init__(World(), store, "planned", engine, seed, overlap)
        self._engines: defaultdict[int, Queue] = defaultdict(lambda: Queue(self))
        self.calibration, self.site = calibration, site
        self.machines = Machines(self, calibration, site)
        self.places = lambda worker: f"machine {site.machine_of(worker)}"
        self._spread, self._part, self._begun = spread, part, set[int]()
        shared = calibration.shared_memory if site.same_node == "shared-memory" else None
        here = calibration.near if shared is None or servers else shared
        self.workers_store = here if site.link is None else calibration.far
        self.masters_store = here if site.link is None else calibration.near
        self._twice = shared if site.link is not None and not servers else None
        self._inbox: deque[Event] = deque()
        self._master = Keeper(0, Queue(self), Queue(self))
        self.priced_servers = tuple(Keeper(one, Queue(self), Queue(self)) for one in servers)
        self._keepers = self.priced_servers or (self._master,)
        self._pace = Pace(site.gap(calibration.center_bytes, len(servers)), known=True)
        self._version = 0  # the newest that all servers have
        self._waiting: list[tuple[int, Then]] = []
        self._unheard: set[int] = set()  # tickets of results with which a message came
        self._sent: set[int] = set()  # tickets of payloads that no server was asked to take in
        self._round: tuple[object, TeamRound] | None = None  # of these members
        self._teams: dict[int, dict[int, Train]] = {}  # commands of a stretch, by its first ticket
        self._memories: Memories = {}
        self._gathered = 0  # the gathering whose hosts have the center that it made
        self._load = calibration.load_on(far=site.link is not None)
        self._master_busy = self._computing = 0.0

    # ------------------------------------------------------------ Cluster

    def send(self, command: Command) -> None:
        assert isinstance(command, Train)
        self._handle(command.worker)
        super().send(command)

    def next_event(self, timeout_s: float) -> Event | None:
        limit = self.now + timeout_s
        while True:
            while not self._inbox:
                if not self._heap or self._heap[0][0] > limit:
                    self.now = limit
                    return None
                self._go_on()
            known = self._known([self._inbox.popleft()])
            if known:
                return known[0]

    def waiting(self, most: int) -> list[Event]:
        return self._known([self._inbox.popleft() for _ in range(min(most, len(self._inbox)))])

    def _known(self, events: list[Event]) -> list[Event]:
        """Those that the driver may have now; servers are asked for the payloads of the others first, in one call."""
        known, new = list[Event](), list[Trained]()
        for event in events:
            if isinstance(event, Trained) and self.priced_servers and event.ticket in self._sent:
                self._sent.discard(event.ticket)
                new.append(event)
            else:
                known.append(event)
        if new:

            def take_in(server: Keeper) -> Job:
                return chain(*(self._take_in(server) for _ in new))

            self.work(self.ask(take_in, lambda: self._taken_in(new)))
        for event in known:
            if isinstance(event, Trained):
                if event.ticket in self._unheard:
                    self._unheard.discard(event.ticket)
                    self.work(self.hear())
                self._handle(event.worker)
        return known

    def _taken_in(self, events: list[Trained]) -> None:
        """All servers have answered: the first of these stands for the message with all answers."""
        self._unheard.add(events[0].ticket)
        self._inbox.extend(events)

    def post(self, event: Event) -> None:
        """The event reaches the driver now."""
        self._inbox.append(event)

    # ------------------------------------------------------------ the master's time

    def work(self, job: Job) -> None:
        """The master does this job; everybody else continues."""
        over = False

        def then() -> None:
            nonlocal over
            over = True

        began = self.now
        job(then)
        while not over:
            self._go_on()
        self._master_busy += self.now - began

    def take_payload(self, keeper: Keeper | None = None) -> Job:
        """The master reads a payload, or a server its range of one."""
        keeper = keeper or self._master
        nbytes = self.calibration.payload_bytes / len(self._keepers)
        return self.machines.read(self.masters_store, keeper.machine, nbytes, keeper)

    def put_center(self, keeper: Keeper | None = None) -> Job:
        """The master writes a version: raw and, if that differs, in the form that workers fetch.

        It writes to both shared memory and Redis if some workers cannot use shared memory. A server writes its range.
        """
        costs, keeper = self.calibration, keeper or self._master
        forms = {costs.nbytes, costs.center_bytes}
        stores = [store for store in (self._twice, self.masters_store) if store is not None]
        return chain(
            *(
                self.machines.write(store, keeper.machine, form / len(self._keepers), keeper)
                for form in sorted(forms)
                for store in stores
            )
        )

    def ask(self, work: Callable[[Keeper], Job], then: Then = lambda: None) -> Job:
        """The master asks all servers, one after another, and waits for none; `then` once all have answered."""
        own, left = self._actor_call_work(0), len(self.priced_servers)

        def one_is_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                then()

        def asked(one: Keeper) -> Job:
            answer = chain(self._way(one), self._in_server(one, work(one)), self._way(one))
            return chain(own, aside(lambda _: answer(one_is_done)))

        return chain(*(asked(one) for one in self.priced_servers))

    def hear(self) -> Job:
        """The master takes the answers of all servers, which have come."""
        return chain(*(self._actor_call_work(0) for _ in self.priced_servers))

    def published(self, version: int) -> None:
        """All servers have this version now."""
        self._version = version
        waiting, self._waiting = self._waiting, []
        for needed, then in waiting:
            self._until(needed)(then)

    # ------------------------------------------------------------ what was busy, in seconds up to now

    def busy(self) -> dict[str, list[float]]:
        """Busy seconds of each resource of a kind: `link` has each direction of each port, in the order of first use.

        `compute` is the sum of the workers.
        """
        found = {
            "compute": [self._computing],
            "link": [port.busy() for port in self.machines.ports.values()],
            "store": [keeper.redis.busy() for keeper in self._keepers],
            "master": [self._master_busy],
        }
        if self.priced_servers:
            found["server"] = [server.process.busy() for server in self.priced_servers]
        return found

    # ------------------------------------------------------------ inside

    def _go_on(self) -> None:
        self.now, _, happening = heapq.heappop(self._heap)
        event = happening()
        if event is not None:
            self._inbox.append(event)

    def _handle(self, worker: int) -> None:
        """The master sends a command or takes a result: half of its work for it, and its end of the message."""
        end = 0.375 * self._message_seconds(self.site.machine_of(worker))
        self.work(self.machines.compute(0, 0.5 * self.calibration.handle + end))

    def _message(self, machine: int) -> Job:
        """Of a message from or to the master: the end on this machine, and the wait for a wake-up, a quarter of all."""
        seconds = self._message_seconds(machine)
        way = 0.5 * self.site.round_trip if machine else 0.0
        return chain(
            pause(self, 0.25 * seconds + way), self.machines.compute(machine, 0.375 * seconds)
        )

    def _message_seconds(self, machine: int) -> float:
        return self.calibration.far_message if machine else self.calibration.message

    def _send_train(self, command: Train) -> None:
        if command.team is not None:
            return self._send_to_team(command, command.team)
        worker = self._workers.get(command.worker)
        if worker is None or worker.incarnation != command.incarnation:
            return
        machine, costs = self.site.machine_of(command.worker), self.calibration
        own = self._load + (costs.pull if command.moving_rate is not None else 0.0)
        train = chain(self.machines.compute(machine, own), self._steps(worker, command, machine))
        if command.worker in self.overlap:
            train = self._engines[command.worker].job(train)
        chain(
            pause(self, self._pace.start(self.now) - self.now),
            self._message(machine),
            self._until(command.version),
            self._fetch(machine),
            train,
            self.machines.compute(machine, costs.seal),
            self._publish(machine),
            self._message(machine),
        )(lambda: self._finish_turn(worker, command))

    def _until(self, version: int) -> Job:
        """Until all servers have this version; the master publishes before it sends commands."""

        def begin(then: Then) -> None:
            if not self.priced_servers or version <= self._version:
                then()
            else:
                self._waiting.append((version, then))

        return begin

    def _take_in(self, server: Keeper) -> Job:
        """A server reads its range of a payload, and checks it."""
        check = self.calibration.check / len(self.priced_servers)
        return chain(self.take_payload(server), self.machines.compute(server.machine, check))

    def _fetch(self, machine: int) -> Job:
        """A worker reads a center, all ranges side by side."""
        share = self.calibration.center_bytes / len(self._keepers)
        return together(
            *(self.machines.read(self.workers_store, machine, share, one) for one in self._keepers)
        )

    def _publish(self, machine: int) -> Job:
        """A worker writes a payload, all ranges side by side."""
        share = self.calibration.payload_bytes / len(self._keepers)
        return together(
            *(self.machines.write(self.workers_store, machine, share, one) for one in self._keepers)
        )

    def _actor_call_work(self, machine: int) -> Job:
        """One end of a message between master and server, which are Ray's on one machine, too."""
        return self.machines.compute(machine, 0.375 * self.calibration.far_message)

    def _way(self, server: Keeper) -> Job:
        far = 0.5 * self.site.round_trip if server.machine else 0.0
        return pause(self, 0.25 * self.calibration.far_message + far)

    def _in_server(self, server: Keeper, work: Job) -> Job:
        call = self._actor_call_work(server.machine)
        return server.process.job(chain(call, work, call))

    def _send_to_team(self, command: Train, team: Team) -> None:
        """The first of each host fetches, unless its gathering made this center; only the leader publishes."""
        first = command.ticket - team.workers.index(command.worker)
        commands = self._teams.setdefault(first, {})
        commands[command.worker] = command
        if len(commands) < len(team.members):
            return
        del self._teams[first]
        at, began = self.site.machine_of, self.now
        hosts = Counter(map(at, commands))

        def steps(parts: Sequence[Part]) -> list[Job]:
            found = ((self._workers[worker], one) for worker, one in commands.items())
            return [self._steps(worker, one, at(worker.worker), parts) for worker, one in found]

        def tell(answer: Trained, summed: float) -> None:
            timings = {"team": summed - began, "publish": self.now - summed}
            losses = (answer.loss,) * team.rounds if team.rounds > 1 else ()
            told = replace(answer, samples=answer.samples * team.rounds, losses=losses, timings=timings)  # fmt: skip
            self._message(at(answer.worker))(partial(self.post, told))

        def summed() -> None:
            once = replace(team, rounds=1)  # nobody looks at what more of them would make
            told = {worker: replace(one, team=once) for worker, one in commands.items()}
            answers = train_together(once, self._workers, told, {}, memories=self._memories)
            for worker, answer in answers.items():
                assert isinstance(answer, Trained)
                job = self.machines.compute(at(worker), self.calibration.seal)
                if worker == team.leader:
                    self._sent.add(answer.ticket)
                    job = chain(job, self._publish(at(worker)))
                job(partial(tell, answer, self.now))

        arrivals = [self._message(at(worker)) for worker in commands]
        fetches = [self._fetch(machine) for machine in hosts if self._gathered != team.formed]
        self._gathered = team.formed if command.payload is Kind.WEIGHTS else 0
        arrivals[0] = chain(
            pause(self, self._pace.start(self.now) - self.now),
            arrivals[0],
            self._until(command.version),
            *(fetches and [together(*fetches)]),
        )
        timed = TimedTeam(self.machines, hosts, steps)
        if command.payload is Kind.WEIGHTS and command.steps == 1 and team.rate == 1.0:
            moved = self._moved(team, tuple(hosts.values())) if team.spread else None
            rounds = timed.gradient_rounds(team.rounds, moved)
        else:
            rounds = timed.rounds(team.rounds)
        chain(together(*arrivals), rounds)(summed)

    def _moved(self, team: Team, hosts: tuple[int, ...]) -> TeamRound:
        """What a round of this team moves; the same as long as it has the same members."""
        if self._round is None or self._round[0] != team.members:
            samples = {one for _, _, one in team.members}
            found = team_round(self.calibration, self.site, hosts, samples)
            self._round = team.members, found
        return self._round[1]

    def _steps(
        self, worker: EngineWorker, command: Train, machine: int, parts: Sequence[Part] = WHOLE
    ) -> Job:
        one = self.calibration.step_seconds(worker.engine.samples_per_step)
        drawn = (self.calibration.at(self.random.random()) for _ in range(command.steps))
        seconds = one * sum(drawn)
        late = 0.0
        if self._spread > 0.0 and worker.worker not in self._begun:
            self._begun.add(worker.worker)
            number, count = self._part
            late = self._spread * (worker.worker * number % count + self.random.random()) / count

        def begin(then: Then) -> None:
            began = self.now

            def done() -> None:
                self._computing += self.now - began
                then()

            found = [self._part_of_step(machine, seconds * share, told) for share, told in parts]
            chain(*found)(done)

        return chain(pause(self, late), begin) if late else begin

    def _part_of_step(self, machine: int, seconds: float, told: Then) -> Job:
        """A part of a step; `told` is called at its end."""
        computed = self._computed(machine, seconds)
        if told is nobody:
            return computed

        def tell(then: Then) -> None:
            told()
            then()

        return chain(computed, tell)

    def _computed(self, machine: int, seconds: float) -> Job:
        """Steps that last so long when nothing else computes on this machine."""
        costs = self.calibration
        if costs.offloaded:
            return pause(self, seconds)
        if costs.threads == 1:
            return self.machines.compute(machine, seconds)
        # Its threads have slowed each other down where it was measured.
        each = seconds / self.machines.cores(machine).slowed(costs.threads)
        return together(*(self.machines.compute(machine, each) for _ in range(costs.threads)))

    def _finish_turn(self, worker: EngineWorker, command: Train) -> None:
        self._sent.add(command.ticket)
        self.post(worker.turn(command))
