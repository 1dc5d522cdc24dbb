"""What a standby, and hosts with servers of the center, ask of the master actor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from speedo.actors.ray_cluster import RayCluster
from speedo.actors.servers.ray_servers import RayServers
from speedo.actors.servers.server_actor import ServerOrder
from speedo.actors.store_calls import StoreCalls
from speedo.master.servers.served_center import ServedCenter
from speedo.master.slots import Assignment, ServerAddress
from speedo.run.config.run_config import RunConfig
from speedo.run.script_job import ScriptJob
from speedo.run.settings import RunSettings
from speedo.run.training import Training
from speedo.storage.lease import MasterFence
from speedo.watch.status import StatusBoard

if TYPE_CHECKING:
    from speedo.run.standby_terms import StandbyTerms

KEEP_S: Final = 4.0  # a host that leaves waits so long for a checkpoint


class ServedMaster:
    """A master whose center servers may have. A run with a lease has a `_fence`."""

    _config: RunConfig
    _records: int | None
    _fence: MasterFence | None
    _settings: RunSettings
    _cluster: RayCluster
    _board: StatusBoard
    _servers: RayServers
    _store_calls: StoreCalls
    _training: Training | None

    def _worst(self, connection: str, problem: str | None) -> str:
        """The worst problem of all the master's connections, after this news of one of them."""
        raise NotImplementedError

    def for_standby(self) -> StandbyTerms:
        """What a standby needs to know. Raises `ClusterError` if this run can have none."""
        from speedo.run.standby_terms import StandbyTerms

        return StandbyTerms.of(self._config, self._settings, self._records)

    def tell_standby(self, address: str, may_come: bool) -> None:
        """Where a standby is, which hosts learn with the status; empty if none follows the run.

        One that has not said that it leaves `may_come` nevertheless.
        """
        self._board.standby = address
        if self._fence is not None:
            self._fence.expect_standby(may_come)

    def _divide_center(self, training: Training) -> None:
        """Have servers keep its center, where there are any."""
        if isinstance(training.center, ServedCenter):
            self._cluster.expect = training.center.expect
            self._cluster.together = self._servers.together
            self._servers.use(training.layout, training.center.solver)

    def servers_there(self) -> bool:
        """Whether workers can be given places: every server is there, or comes once a script has brought its model."""
        script = isinstance(self._settings.spec, ScriptJob)
        return script or self._servers.all_there()

    def servers_for(self, place: Assignment) -> tuple[ServerAddress, ...] | None:
        """Where a script exchanges its ranges, as a user of its own; None while a server is missing or silent."""
        if not self._settings.serves:
            return ()
        if not self._servers.all_there():
            return None
        who = "script", place.worker, place.incarnation
        found = self._store_calls.ask(who, partial(self._servers.admit_worker, place))
        return None if found is None else found.servers

    def server_orders(self, host: str) -> tuple[ServerOrder, ...] | None:
        """The servers that a host is to run; None while that is not decided."""
        return self._servers.orders(host)

    def server_joined(self, index: int, address: ServerAddress, handle: Any) -> None:
        """Take a server in."""
        self._servers.join(index, address, handle)

    def server_leaves(self, host: str) -> None:
        """This host is about to end its servers: the run begins again from a checkpoint, which is made now."""
        keeper = None if self._training is None else self._training.keeper
        if self._servers.has(host) and keeper and not self._board.over:
            keeper.keep_soon(KEEP_S)

    def trouble_of_server(self, index: int, problem: str) -> None:
        """Why a server waits for its store; empty once it does not."""
        self._servers.trouble_of(index, problem)
        text = f"server {index}: {problem}" if problem else None
        self._board.trouble_with_store(self._worst(f"server {index}", text))
