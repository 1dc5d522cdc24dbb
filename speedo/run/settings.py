"""The settings of a run that every node needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from speedo.engines.make import CAFFE, EngineChoice
from speedo.engines.solver import SolverSpec
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.run.script_job import ScriptJob
from speedo.system.bounds import DataShare, Overlap
from speedo.system.cores import USUAL, CoreOptions


@dataclass(frozen=True, slots=True)
class Near:
    """The folder for messages and Redis's unix socket, for workers on the master's machine; empty if disabled.

    `by_memory` says that the folder is in memory and holds vectors, too. `machine` identifies the machine and its
    network; a process that sees another one cannot use them.
    """

    machine: str = ""
    folder: str = ""
    socket: str = ""
    by_memory: bool = False


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What every node needs to know of a run. `redis_url` holds the master's password and is for the master alone;
    a run on one machine may have none, and only shared memory.

    With `teams` the workers of a host sum among themselves; with `factors` those over hosts may send inner products as
    factors. Workers in `overlap` get their next turns ahead. `redis_ca`
    is the certificate of the CA of a server with TLS; `redis_is_ours` says that the run started the server. `cores` is
    what a host gives its workers unless it has options of its own. With `serves` servers on the hosts
    have the center, each with a Redis, with TLS if `redis_tls`. `host_memory` is a folder in memory that the workers of
    one host share, which has put it here; empty where there is none; so has it `ring_ports`, at which they listen for
    those of other hosts, empty for any. `engine` is what every node computes with; a host
    may have another device. `spec` is what is trained. `rules` are the places of merge rules outside the package, which
    servers import, also from the folder `code_from`. `master_restarts` says why the command has started the master
    again, each time. `leased`: epoch, lease and journal are in the user's own Redis, so that a standby on another
    machine may take the run over. `moved`: it goes on from what a master left on another machine, or with another Ray,
    so its workers are new processes.
    """

    run: str
    version: str
    spec: SolverSpec | ScriptJob
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
    factors: bool = True
    cores: CoreOptions = USUAL
    serves: bool = False
    redis_tls: bool = False
    host_memory: str = ""
    ring_ports: tuple[int, ...] = ()
    data_share: DataShare = "shard"
    engine: EngineChoice = CAFFE
    rules: tuple[str, ...] = ()
    code_from: str = ""
    master_restarts: tuple[str, ...] = ()
    leased: bool = False
    moved: bool = False

    def started(self, redis_url: str, redis_ca: str, near: Near, epoch: int) -> RunSettings:
        """The settings with what is known once the servers of the run are started."""
        return replace(self, redis_url=redis_url, redis_ca=redis_ca, near=near, epoch=epoch)

    def for_successor(self, epoch: int, why: str) -> RunSettings:
        """The same for the master of this epoch, which follows the present one for this reason."""
        causes = (*self.master_restarts, why)
        return replace(self, epoch=epoch, master_restarts=causes, moved=False)

    @property
    def solver(self) -> SolverSpec:
        """The solver of a run that is not of a script."""
        assert isinstance(self.spec, SolverSpec)
        return self.spec

    @property
    def keyspace(self) -> str:
        """The name of the run in the store's keys; it has the epoch, so a replaced master uses other keys."""
        return f"{self.run}:{self.epoch}"

    def for_others(self) -> RunSettings:
        """The same without the master's password."""
        return replace(self, redis_url="")
