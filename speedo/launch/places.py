"""What a program knows of the workers of its cluster, and what it can ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from speedo.errors import ConfigError
from speedo.run.config.run_config import LARGEST_WORKERS
from speedo.system.bounds import said

READY_S: Final = 120.0  # for workers that are not ready yet when a run begins
Device = Literal["cpu", "gpu"]
DEVICES = ("cpu", "gpu")


@dataclass(frozen=True, slots=True)
class PlacedWorker:
    """A worker that is ready for runs. `pid` is the process on `host` that keeps its place between them.

    `address` is where this machine has reached the host.
    """

    id: int
    host: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why `workers` workers are not ready; without an own host, `host` names the cluster."""

    host: str
    cause: str
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """The workers that are ready, and those that are not."""

    workers: tuple[PlacedWorker, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def why(self) -> str:
        """The failures as text: `; node2: it cannot be reached (...)`."""
        return "".join(f"; {one.host}: {one.cause}" for one in self.failures)


@dataclass(frozen=True, slots=True)
class Needs:
    """What each worker gets. None is the default: the run's threads, no limit, what the solver says."""

    cpus: float | None = None
    memory_gb: float | None = None
    device: Device | None = None

    def problems(self) -> list[str]:
        """What is no amount or device in any cluster."""
        found = [
            f"{name} is {said(value)}; use a number above 0"
            for name in ("cpus", "memory_gb")
            if (value := getattr(self, name)) is not None and not _positive(value)
        ]
        if self.device is not None and self.device not in DEVICES:
            found.append(f"device is {said(self.device)}; use cpu or gpu")
        return found

    def problems_on_hosts(self) -> list[str]:
        """What hosts without a Ray cluster cannot give."""
        problems = []
        if self.memory_gb is not None:
            problems.append(
                f"memory_gb is {self.memory_gb:g}, but nothing reserves memory for a worker on hosts: leave it out, "
                "or use a Ray cluster"
            )
        if self.cpus is not None and self.cpus != int(self.cpus):
            problems.append(f"cpus is {self.cpus:g}; on hosts use a whole number: it is --threads")
        if self.device == "gpu":
            problems.append(
                "device is gpu, but on hosts the solver decides: write solver_mode: GPU there, and leave device out; "
                "or train with engine='torch', device='cuda'"
            )
        return problems


def checked_count(name: str, value: object) -> int:
    """A number of workers. Raises `ConfigError`."""
    if type(value) is not int or not 1 <= value <= LARGEST_WORKERS:
        raise ConfigError(
            f"{name} is {said(value)}; use a whole number from 1 to {LARGEST_WORKERS}"
        )
    return value


def _positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < float(value) < float("inf")  # type: ignore[arg-type]
