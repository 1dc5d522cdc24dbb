"""What the master of a run tells a standby on another machine, and how that prepares to go on with the run there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from speedo.data.roots import default_data_root
from speedo.engines.make import prepare_to_read
from speedo.engines.net_trial import CaffeFacts
from speedo.engines.solver import SolverSpec, check_solver
from speedo.engines.solver.data_layers import count_records
from speedo.errors import ClusterError
from speedo.run.config.run_config import RunConfig
from speedo.run.datasets import make_dataset, preparable_dataset
from speedo.run.engine_choice import require_engine
from speedo.run.prepare import PreparedRun, check_nets, new_run_dir
from speedo.run.remote_inputs import fetch_sources, located, located_weights
from speedo.run.scratch import scratch_folder
from speedo.run.settings import RunSettings
from speedo.version import VERSION

_HERE: Final = ("localhost", "127.0.0.1", "::1", "")


def can_have_standby(config: RunConfig, settings: RunSettings) -> bool:
    """Whether another machine could go on with this run: its Redis is not on the master's, and has all of it."""
    return _has_far_redis(config) and not settings.serves


def _has_far_redis(config: RunConfig) -> bool:
    return config.redis is not None and (urlsplit(config.redis).hostname or "") not in _HERE


@dataclass(frozen=True, slots=True)
class StandbyTerms:
    """A run as its master has it. `settings` hold the URL of its Redis with the master's password."""

    config: RunConfig
    settings: RunSettings
    records: int | None

    @classmethod
    def of(cls, config: RunConfig, settings: RunSettings, records: int | None) -> Self:
        """Raises `ClusterError` for a run that can have no standby."""
        if not _has_far_redis(config):
            raise ClusterError(
                "the Redis of this run is on the master's machine, so center and lease are lost with it, and a standby "
                "could not go on: start the master with --redis URL, of a Redis on a third machine"
            )
        if not can_have_standby(config, settings):
            raise ClusterError(
                "the run was started with --servers, and such a run cannot have a standby: copy its directory with "
                "--copy-to, and continue it with --resume on the other machine"
            )
        return cls(config, settings, records)

    def prepared(
        self,
        host: str,
        port: int | None,
        run_dir: Path | None,
        data_root: Path | None,
        note: Callable[[str], None],
    ) -> tuple[PreparedRun, CaffeFacts | None]:
        """The run on this machine, in a new directory, and its nets, if it has any, as they were built here for a try.

        Raises `SpeedoError` with what keeps this machine from being the master.
        """
        config, settings = self.config, self.settings
        if settings.version != VERSION:
            raise ClusterError(
                f"SpeeDO differs: the master has {settings.version}, this machine {VERSION}: install the same version"
            )
        given, spec, root = data_root or config.data_root, settings.spec, Path()
        if isinstance(spec, SolverSpec):
            root = (located(given) or default_data_root()).absolute()
            spec = self._solver_here(spec.on_node(root), root, given, note)
        here: dict[str, object] = {
            "host": host,
            "run_dir": run_dir,
            "resume": None,
            "data_root": given,
            "redis": settings.redis_url,  # with the password, which this machine need not have
            "take_over": False,
        }
        if port is not None:
            here["port"] = port
        if not all(one.is_file() for one in located_weights(config.weights)):
            here["weights"] = None  # they are in the center
        config = config.model_copy(update=here)
        folder = new_run_dir(config, settings.run)
        prepared = PreparedRun(
            config, replace(settings, spec=spec), folder, root, self.records, anew=True
        )
        if config.own:
            return prepared, None
        with scratch_folder() as scratch:
            return prepared, check_nets(prepared, scratch)

    def _solver_here(
        self, spec: SolverSpec, root: Path, given: Path | None, note: Callable[[str], None]
    ) -> SolverSpec:
        """The solver, whose engine and data are on this machine. Raises as `prepared`."""
        engine, config = self.settings.engine, self.config
        require_engine(engine)
        prepare_to_read(engine.engine)
        fetch_sources(spec, given, note)
        if (missing := preparable_dataset(spec)) is not None:
            make_dataset(root, missing, note)
            spec = spec.on_node(root)
        check_solver(spec, workers=config.workers, split=config.splits_batch)
        records = count_records(spec)
        if records != self.records:
            raise ClusterError(
                f"this machine has {records} training records, but the master {self.records}: copy the master's data "
                "to this machine, and give their folder with --data-root"
            )
        return spec
