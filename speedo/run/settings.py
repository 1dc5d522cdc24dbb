"""What every node of a run needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from speedo.config.run_config import Overlap, RunConfig
from speedo.solver import SolverSpec, split_batch
from speedo.vectors.codecs import NO_COMPRESSION, Compression
from speedo.version import VERSION


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

    Workers in `overlap` are given their next turn ahead. `redis_ca` is the authority of a server that speaks TLS;
    `redis_is_ours` says that the run started the server.
    """

    run: str
    version: str
    redis_url: str = field(repr=False)
    spec: SolverSpec
    workers: int
    batch_sizes: tuple[int, ...]
    seed: int
    epoch: int
    timeout_s: float
    redis_ca: str = field(default="", repr=False)
    redis_is_ours: bool = False
    near: Near = Near()
    compression: Compression = NO_COMPRESSION
    overlap: Overlap = "none"

    @classmethod
    def make(
        cls,
        config: RunConfig,
        spec: SolverSpec,
        run: str,
        redis_url: str,
        redis_ca: str = "",
        epoch: int = 0,
        near: Near | None = None,
    ) -> RunSettings:
        """`batch_sizes` has a `batch_size` per slot: a share of the solver's, or the whole of it."""
        if config.splits_batch:
            batch_sizes = split_batch(spec.batch_size, config.workers)
        else:
            batch_sizes = (spec.batch_size,) * config.workers
        seed = spec.random_seed if spec.random_seed >= 0 else int(run[:7], 16)
        return cls(
            run,
            VERSION,
            redis_url,
            spec,
            config.workers,
            batch_sizes,
            seed,
            epoch,
            config.timeout,
            redis_ca,
            config.redis is None,
            near or Near(),
            Compression(config.compress, config.compress_center),
            config.overlap,
        )

    @property
    def keyspace(self) -> str:
        """What stands for the run in the store's keys: with its epoch, so a replaced master meets nobody there."""
        return f"{self.run}:{self.epoch}"

    def for_others(self) -> RunSettings:
        """The same without the master's password."""
        return replace(self, redis_url="")
