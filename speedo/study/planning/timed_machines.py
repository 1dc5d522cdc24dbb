"""The machines of a simulated cluster: their cores, their links, and the passage of a model between them."""

from __future__ import annotations

from speedo.storage.redis.store import RECORD_BYTES
from speedo.study.planning.calibration import Calibration, Passage, Transport
from speedo.study.planning.shared_resources import (
    Job,
    Keeper,
    Shared,
    Timeline,
    chain,
    pause,
    together,
)
from speedo.study.planning.site import Site


class Machines:
    """Those of this site, as fast as the calibration's."""

    def __init__(self, timeline: Timeline, calibration: Calibration, site: Site) -> None:
        self.timeline, self.calibration, self.site = timeline, calibration, site
        self.ports: dict[tuple[int, str], Shared] = {}
        self._cores: dict[int, Shared] = {}

    def compute(self, machine: int, seconds: float) -> Job:
        """A job of processor time."""
        return self.cores(machine).job(seconds)

    def cores(self, machine: int) -> Shared:
        """The cores of a machine; namespaces of one machine share its."""
        number = 0 if self.site.one_processor else machine
        if number not in self._cores:
            costs = self.calibration
            crowding = 1.0 + (costs.crowding - 1.0) * self._fullness()
            taken = costs.background if number == 0 else 0.0
            self._cores[number] = Shared(self.timeline, self.site.cores, crowding, taken)
        return self._cores[number]

    def _fullness(self) -> float:
        """The share of the measured crowding that applies to a machine of the site when all of its cores work."""
        measured = self.calibration.cores - 1
        return (self.site.cores - 1) / measured if measured else 0.0

    def port(self, way: tuple[int, str]) -> Shared:
        """One direction of a machine's link."""
        if way not in self.ports:
            self.ports[way] = Shared(self.timeline)
        return self.ports[way]

    def packets(self, nbytes: float) -> Job:
        """What the bytes of a link cost the one processor of namespaces."""
        return self.compute(0, self.site.packet_work * nbytes)

    def read(self, store: Transport, machine: int, nbytes: float, keeper: Keeper) -> Job:
        """A job that reads this many bytes from the keeper's store, on this machine."""
        costs = store.of(store.read, nbytes / self.calibration.nbytes)
        return self._passage(costs, machine, nbytes, keeper, out=True)

    def write(self, store: Transport, machine: int, nbytes: float, keeper: Keeper) -> Job:
        """A job that writes this many bytes into the keeper's store."""
        costs = store.of(store.write, nbytes / self.calibration.nbytes)
        return self._passage(costs, machine, nbytes, keeper, out=False)

    def _passage(
        self, costs: Passage, machine: int, nbytes: float, keeper: Keeper, *, out: bool
    ) -> Job:
        """Both sides work at the same time, as far as the whole takes less than the sum of both."""
        both = max(0.0, costs.client + costs.server - costs.seconds)
        both = min(both, costs.client, costs.server)
        idle = max(0.0, costs.seconds - costs.client - costs.server)
        client = self.compute(machine, costs.client - both)
        server = self._serve(costs.server - both, keeper)
        job = chain(client, server, pause(self.timeline, idle))
        if both:
            at_once = self.compute(machine, both), self._serve(both, keeper)
            job = chain(together(*at_once), job)
        bytes_per_s, there = self.site.bytes_per_s, keeper.machine
        if machine == there or bytes_per_s is None:
            return job
        trips = 2 if nbytes > RECORD_BYTES else 1  # Redis is asked twice for a longer one
        ways = ((there, "out"), (machine, "in")) if out else ((machine, "out"), (there, "in"))
        travel = together(*(self.port(way).job(nbytes / bytes_per_s) for way in ways))
        wait = pause(self.timeline, trips * self.site.round_trip)
        return chain(wait, together(job, travel, self.packets(nbytes)))

    def _serve(self, seconds: float, keeper: Keeper) -> Job:
        """Work of Redis's single thread; shared memory has none."""
        if seconds <= 0.0:
            return pause(self.timeline, 0.0)
        return keeper.redis.job(self.compute(keeper.machine, seconds))
