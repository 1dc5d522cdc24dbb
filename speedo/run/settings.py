"""What every node of a run needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from speedo.config.run_config import Overlap
from speedo.solver import SolverSpec
from speedo.vectors.codecs import NO_COMPRESSION, Compression


@dataclass(frozen=True, slots=True)
class Near:
    """The short ways on the master's machine: a folder for messages, and Redis's own socket; empty if there is none.

    `by_memory` says that the folder is memory and takes vectors, too. `machine` names the machine and its network:
    who sees another one is not near.
    """

    machine: str = ""
    folder: str = ""
    socket: str = ""
    by_memory: bool = False


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What every node needs to know of a run. `redis_url` holds the master's password and is for the master alone.

    With `teams` workers of one host sum among themselves. Workers in `overlap` are given their next turn ahead.
    With `serves` servers on the hosts have the center, each with a Redis, which speaks TLS if `redis_tls` says so.
    `redis_ca` is the authority of a server that speaks TLS; `redis_is_ours` says that the run started the server.
    """

    run: str
    version: str
    spec: SolverSpec
    workers: int
    batch_sizes: tuple[int, ...]
    seed: int
    timeout_s: float
    redis_url: str = field(default="", repr=False)
    redis_ca: str = field(default="", repr=False)
    redis_is_ours: bool = False
    near: Near = Near()
    epoch: int = 0
    compression: Compression = NO_COMPRESSION
    overlap: Overlap = "none"
    teams: bool = False
    serves: bool = False
    redis_tls: bool = False

    def started(self, redis_url: str, redis_ca: str, near: Near, epoch: int) -> RunSettings:
        """With what is known once the servers of the run are there."""
        return replace(self, redis_url=redis_url, redis_ca=redis_ca, near=near, epoch=epoch)

    @property
    def keyspace(self) -> str:
        """What stands for the run in the store's keys: with its epoch, so a replaced master meets nobody there."""
        return f"{self.run}:{self.epoch}"

    def for_others(self) -> RunSettings:
        """The same without the master's password."""
        return replace(self, redis_url="")
