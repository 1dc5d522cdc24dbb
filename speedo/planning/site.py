"""The machines of a planned run: cores, and the links between master and workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from speedo.config.run_config import Overlap
from speedo.sgd_modes.registry import may_overlap

# Of a link's bits what is left for the bytes of a TCP stream: 1448 of 1538 on Ethernet with its usual frames.
PAYLOAD_SHARE: Final = 0.94


@dataclass(frozen=True, slots=True)
class Site:
    """Without a `link`, in bits per second each way, everything runs on one machine of `cores` cores.

    With it, master and Redis have a machine of their own, and every `per_machine` workers another of `cores` cores.
    `round_trip` is the ping time between them in seconds. `one_processor` says that those machines are only namespaces
    of one machine, which then also spends `packet_work` seconds per byte between them, in addition to sender and
    receiver. `same_node` and `overlap` are the options of a run.
    """

    cores: int
    link: float | None = None
    round_trip: float = 0.0
    per_machine: int = 1
    one_processor: bool = False
    packet_work: float = 0.0
    same_node: str = "shared-memory"
    overlap: Overlap = "none"

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

    def describe(self) -> str:
        """The site as a sentence."""
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        if self.link is None:
            return f"everything on one machine of {cores}"
        each = "1 worker" if self.per_machine == 1 else f"{self.per_machine} workers"
        return (
            f"{each} on each machine, the master and Redis on one more, all of {cores}; links of "
            f"{rate(self.link)} each way, round trip {1000 * self.round_trip:g} ms"
        )


def rate(bits_per_s: float) -> str:
    """A rate as text: `1 Gbit/s`."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= size:
            return f"{bits_per_s / size:g} {unit}"
    return f"{bits_per_s / 1e3:g} kbit/s"
