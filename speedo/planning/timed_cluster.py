"""A simulated cluster in which everything takes time: compute, transfers through the store, messages, the master.

Driver, coordinator, strategies, center and the worker's turn are the real ones, with a model of a few parameters; the
times of the real model come from a calibration. While the master works, the workers continue, and what reaches it
meanwhile waits.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Container

from speedo.engines.quadratic import QuadraticEngine
from speedo.master.center import Center
from speedo.master.fetch_pacing import LEAST_S, Pace
from speedo.messages import Command, Event, Merge, Refused, Train, Trained
from speedo.planning.calibration import Calibration, Passage, Transport
from speedo.planning.shared_resources import Job, Queue, Shared, Then, chain, pause, together
from speedo.planning.site import Site
from speedo.sgd_modes.rules import MergeRule
from speedo.simulation.simulator import SimulatedCluster, World
from speedo.storage.memory_store import MemoryStore
from speedo.storage.redis.store import RECORD_BYTES
from speedo.vectors.vector import Layout, Vector
from speedo.worker.turn import Worker


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
    ) -> None:
        """`spread` is the longest time in seconds that a worker waits before its first step, different for each worker.

        Workers that begin at the same time drift apart slowly; the wait saves simulating that. In run `part` of n, each
        waits for a time from the part-th of n equal parts of `spread`.
        """
        super().__init__(World(), store, "planned", engine, seed, overlap)
        self._engines: defaultdict[int, Queue] = defaultdict(lambda: Queue(self))
        self.calibration, self.site = calibration, site
        self._spread, self._part, self._begun = spread, part, set[int]()
        shared = calibration.shared_memory if site.same_node == "shared-memory" else None
        here = shared or calibration.near
        self.workers_store = here if site.link is None else calibration.far
        self.masters_store = here if site.link is None else calibration.near
        self._twice = shared if site.link is not None else None
        self._inbox: deque[Event] = deque()
        self._machines: dict[int, Shared] = {}
        self._ports: dict[tuple[int, str], Shared] = {}
        self._redis = Queue(self)
        self._pace = Pace(self._transfer(), known=True)
        self._master_busy = 0.0
        self._computing = 0.0

    # ------------------------------------------------------------ Cluster

    def send(self, command: Command) -> None:
        self.work(self._master(0.5))
        super().send(command)

    def next_event(self, timeout_s: float) -> Event | None:
        limit = self.now + timeout_s
        while not self._inbox:
            if not self._heap or self._heap[0][0] > limit:
                self.now = limit
                return None
            self._go_on()
        event = self._inbox.popleft()
        if isinstance(event, Trained):
            self.work(self._master(0.5))
        return event

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

    def compute_on(self, machine: int, seconds: float) -> Job:
        """A job of processor time."""
        number = 0 if self.site.one_processor else machine
        if number not in self._machines:
            costs = self.calibration
            crowding = 1.0 + (costs.crowding - 1.0) * self._fullness()
            taken = costs.background if number == 0 else 0.0
            self._machines[number] = Shared(self, self.site.cores, crowding, taken)
        return self._machines[number].job(seconds)

    def read(self, store: Transport, machine: int, nbytes: int) -> Job:
        """A job that reads this many bytes from the store, on this machine."""
        return self._passage(store.of(store.read, self._share(nbytes)), machine, nbytes, out=True)

    def write(self, store: Transport, machine: int, nbytes: int) -> Job:
        """A job that writes this many bytes into the store."""
        return self._passage(store.of(store.write, self._share(nbytes)), machine, nbytes, out=False)

    def take_payload(self) -> Job:
        """The master reads a payload."""
        return self.read(self.masters_store, 0, self.calibration.payload_bytes)

    def put_center(self) -> Job:
        """The master writes a version: raw and, if that differs, in the form that workers fetch.

        It writes to both shared memory and Redis if some workers cannot use shared memory.
        """
        costs = self.calibration
        forms = {costs.nbytes, costs.center_bytes}
        stores = [store for store in (self._twice, self.masters_store) if store is not None]
        return chain(*(self.write(store, 0, form) for form in sorted(forms) for store in stores))

    # ------------------------------------------------------------ what was busy, in seconds up to now

    def busy(self) -> dict[str, float]:
        """Busy seconds by resource: `link` is the busiest direction of any port, `compute` the sum of the workers."""
        links = [port.busy() for port in self._ports.values()]
        return {
            "compute": self._computing,
            "link": max(links, default=0.0),
            "store": self._redis.busy(),
            "master": self._master_busy,
        }

    # ------------------------------------------------------------ inside

    def _go_on(self) -> None:
        self.now, _, happening = heapq.heappop(self._heap)
        event = happening()
        if event is not None:
            self._inbox.append(event)

    def _fullness(self) -> float:
        """The share of the measured crowding that applies to a machine of the site when all of its cores work."""
        measured = self.calibration.cores - 1
        return (self.site.cores - 1) / measured if measured else 0.0

    def _master(self, share: float) -> Job:
        return self.compute_on(0, share * self.calibration.handle)

    def _serve(self, seconds: float) -> Job:
        """Work of Redis's single thread; shared memory has none."""
        return self._redis.job(self.compute_on(0, seconds)) if seconds > 0.0 else pause(self, 0.0)

    def _share(self, nbytes: int) -> float:
        return nbytes / self.calibration.nbytes

    def _passage(self, costs: Passage, machine: int, nbytes: int, *, out: bool) -> Job:
        """Both sides work at the same time, as far as the whole takes less than the sum of both."""
        both = max(0.0, costs.client + costs.server - costs.seconds)
        both = min(both, costs.client, costs.server)
        idle = max(0.0, costs.seconds - costs.client - costs.server)
        client = self.compute_on(machine, costs.client - both)
        server = self._serve(costs.server - both)
        job = chain(client, server, pause(self, idle))
        if both:
            job = chain(together(self.compute_on(machine, both), self._serve(both)), job)
        bytes_per_s = self.site.bytes_per_s
        if machine == 0 or bytes_per_s is None:
            return job
        trips = 2 if nbytes > RECORD_BYTES else 1  # Redis is asked twice for a longer one
        ways = ((0, "out"), (machine, "in")) if out else ((machine, "out"), (0, "in"))
        travel = together(*(self._port(way).job(nbytes / bytes_per_s) for way in ways))
        packets = self.compute_on(0, self.site.packet_work * nbytes)
        return chain(pause(self, trips * self.site.round_trip), together(job, travel, packets))

    def _transfer(self) -> float:
        """How long a worker's fetch occupies the master's link, if that is long enough to wait for."""
        rate = self.site.bytes_per_s
        seconds = 0.0 if rate is None else self.calibration.center_bytes / rate
        return seconds if seconds >= LEAST_S else 0.0

    def _port(self, way: tuple[int, str]) -> Shared:
        if way not in self._ports:
            self._ports[way] = Shared(self)
        return self._ports[way]

    def _message(self, sender: int, receiver: int) -> Job:
        """Three quarters of a message's time are work, at both ends; the rest is the wait for a wake-up."""
        far = sender != receiver
        seconds = self.calibration.far_message if far else self.calibration.message
        way = 0.5 * self.site.round_trip if far else 0.0
        return chain(
            self.compute_on(sender, 0.375 * seconds),
            pause(self, 0.25 * seconds + way),
            self.compute_on(receiver, 0.375 * seconds),
        )

    def _send_train(self, command: Train) -> None:
        worker = self._workers.get(command.worker)
        if worker is None or worker.incarnation != command.incarnation:
            return
        machine, costs = self.site.machine_of(command.worker), self.calibration
        far = costs.far_load if self.site.link is not None else None
        own = costs.load if far is None else far
        own += costs.pull if command.moving_rate is not None else 0.0
        train = chain(self.compute_on(machine, own), self._steps(worker, command, machine))
        if command.worker in self.overlap:
            train = self._engines[command.worker].job(train)
        chain(
            pause(self, self._pace.start(self.now) - self.now),
            self._message(0, machine),
            self.read(self.workers_store, machine, costs.center_bytes),
            train,
            self.compute_on(machine, costs.seal),
            self.write(self.workers_store, machine, costs.payload_bytes),
            self._message(machine, 0),
        )(lambda: self._finish_turn(worker, command))

    def _steps(self, worker: Worker, command: Train, machine: int) -> Job:
        one = self.calibration.step_seconds(worker.engine.samples_per_step)
        seconds = one * sum(self._draw() for _ in range(command.steps))
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

            self.compute_on(machine, seconds)(done)

        return chain(pause(self, late), begin) if late else begin

    def _draw(self) -> float:
        """A step's time relative to the mean, drawn from the measured distribution."""
        shape = self.calibration.shape
        place = self.random.random() * (len(shape) - 1)
        low = int(place)
        high = min(low + 1, len(shape) - 1)
        return shape[low] + (place - low) * (shape[high] - shape[low])

    def _finish_turn(self, worker: Worker, command: Train) -> None:
        self.post(worker.turn(command))


class TimedCenter(Center):
    """A `Center` whose work takes the master's time."""

    def __init__(self, vector: Vector, layout: Layout, cluster: TimedCluster) -> None:
        super().__init__(cluster.run, vector, layout, cluster.store)
        self._cluster = cluster

    def receive(self, event: Trained, rule: MergeRule) -> Refused | None:
        cluster = self._cluster
        check = cluster.compute_on(0, cluster.calibration.check)
        cluster.work(chain(cluster.take_payload(), check))
        return super().receive(event, rule)

    def merge(self, action: Merge, iteration_before: int) -> Merge:
        cluster = self._cluster
        cluster.work(cluster.compute_on(0, cluster.calibration.merge * len(action.parts)))
        return super().merge(action, iteration_before)

    def tidy(self) -> None:
        if self._over:
            self._cluster.work(self._cluster.compute_on(0, self._cluster.masters_store.small))
        super().tidy()

    def publish(self) -> None:
        cluster = self._cluster
        publish = cluster.compute_on(0, cluster.calibration.publish)
        cluster.work(chain(publish, cluster.put_center()))
        super().publish()
