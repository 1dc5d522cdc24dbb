"""The machines of a planned run: cores, and the links between master and workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from speedo.master.fetch_pacing import LEAST_S
from speedo.sgd_modes.registry import may_overlap
from speedo.system.bounds import Overlap

# Of a link's bits what is left for the bytes of a TCP stream: 1448 of 1538 on Ethernet with its usual frames.
PAYLOAD_SHARE: Final = 0.94
AUTO: Final[Literal["auto"]] = "auto"  # a server on every host that trains
Team = Literal["host", "off"]
Factors = Literal["auto", "off"]
Servers = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Site:
    """Without a `link`, in bits per second each way, everything runs on one machine of `cores` cores.

    With it, master and Redis have a machine of their own, and every `per_machine` workers another of `cores` cores.
    `round_trip` is the ping time between them in seconds. `one_processor` says that those machines are only namespaces
    of one machine, which then also spends `packet_work` seconds per byte between them, in addition to sender and
    receiver. `same_node`, `overlap`, `team` and `factors` are the options of a run. `servers` keep the center, on the
    machines of the workers in turn; without any, the master keeps it.
    """

    cores: int
    link: float | None = None
    round_trip: float = 0.0
    per_machine: int = 1
    one_processor: bool = False
    packet_work: float = 0.0
    same_node: str = "shared-memory"
    overlap: Overlap = "none"
    team: Team = "host"
    factors: Factors = "auto"
    servers: Servers = 0

    @property
    def bytes_per_s(self) -> float | None:
        """The payload rate of a link, each way."""
        return None if self.link is None else self.link * PAYLOAD_SHARE / 8.0

    def overlaps(self, mode: str) -> bool:
        """Whether the workers of this mode overlap their turns."""
        far = self.link is not None
        return may_overlap(mode) and (self.overlap == "all" or (self.overlap == "far" and far))

    def machine_of(self, worker: int) -> int:
        """The machine of a worker; 0 is the master's."""
        return 0 if self.link is None else 1 + worker // self.per_machine

    def hosts(self, workers: int) -> int:
        """Machines that this many workers train on."""
        return 1 if self.link is None else -(-workers // self.per_machine)

    def servers_of(self, workers: int) -> tuple[int, ...]:
        """The machine of each server of a run with this many workers."""
        hosts = self.hosts(workers)
        count = hosts if self.servers == AUTO else self.servers
        return tuple(0 if self.link is None else 1 + number % hosts for number in range(count))

    def gap(self, nbytes: float, servers: int) -> float:
        """Seconds for which a fetch of so much occupies the master's link, if that is long enough to wait for.

        With several servers each worker's own link is the limit, and the product finds no gain in waiting.
        """
        rate = self.bytes_per_s
        seconds = nbytes / rate if rate is not None and servers <= 1 else 0.0
        return seconds if seconds >= LEAST_S else 0.0

    def describe(self) -> str:
        """The site as a sentence."""
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        if self.link is None:
            return f"everything on one machine of {cores}{self._served()}"
        each = "1 worker" if self.per_machine == 1 else f"{self.per_machine} workers"
        keeper = "the master" if self.servers else "the master and Redis"
        return (
            f"{each} on each machine, {keeper} on one more, all of {cores}; links of "
            f"{rate(self.link)} each way, round trip {1000 * self.round_trip:g} ms{self._served()}"
        )

    def _served(self) -> str:
        if not self.servers:
            return ""
        if self.servers == AUTO:
            return "; a server of the center on each machine with workers"
        return f"; the center on {self.servers} server{'s' * (self.servers > 1)}"


def rate(bits_per_s: float) -> str:
    """A rate as text: `1 Gbit/s`."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= size:
            return f"{bits_per_s / size:g} {unit}"
    return f"{bits_per_s / 1e3:g} kbit/s"
