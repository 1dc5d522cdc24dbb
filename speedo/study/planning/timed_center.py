"""The center whose work takes time: the master's own, or that of servers which the master asks."""

from __future__ import annotations

from speedo.exchange.vector import Layout, Vector
from speedo.master.center import Center, with_payload
from speedo.messages import Drop, Merge, Refused, Trained
from speedo.sgd_modes.rules import MergeRule
from speedo.study.planning.shared_resources import Job, Keeper, chain
from speedo.study.planning.timed_cluster import TimedCluster


class TimedCenter(Center):
    """A `Center` whose work takes the master's time."""

    def __init__(self, vector: Vector, layout: Layout, cluster: TimedCluster) -> None:
        super().__init__(cluster.run, vector, layout, cluster.store)
        self._cluster = cluster

    def receive(self, event: Trained, rule: MergeRule) -> Refused | None:
        cluster = self._cluster
        check = cluster.machines.compute(0, cluster.calibration.check)
        cluster.work(chain(cluster.take_payload(), check))
        return super().receive(event, rule)

    def merge(self, action: Merge, iteration_before: int, *, more: bool = False) -> Merge:
        cluster = self._cluster
        cluster.work(cluster.machines.compute(0, cluster.calibration.merge * payloads_of(action)))
        return super().merge(action, iteration_before, more=more)

    def tidy(self) -> None:
        if self._over:
            self._cluster.work(self._cluster.machines.compute(0, self._cluster.masters_store.small))
        super().tidy()

    def publish(self) -> None:
        cluster = self._cluster
        publish = cluster.machines.compute(0, cluster.calibration.publish)
        cluster.work(chain(publish, cluster.put_center()))
        super().publish()


class TimedServedCenter(Center):
    """A `Center` that servers keep, an equal range each: the master asks them, and waits for no answer."""

    def __init__(self, vector: Vector, layout: Layout, cluster: TimedCluster) -> None:
        super().__init__(cluster.run, vector, layout, cluster.store)
        self._cluster = cluster
        self._clears = False  # whether servers keep payloads that nobody needs any more
        self._payloads_merged = 0  # since the last version that they were asked to publish

    def merge(self, action: Merge, iteration_before: int, *, more: bool = False) -> Merge:
        self._clears = True
        self._payloads_merged += payloads_of(action)
        return super().merge(action, iteration_before, more=more)

    def publish(self) -> None:
        """Merges and their publication are one request; the answers are taken with those to a later one."""
        if self._payloads_merged:
            cluster, costs = self._cluster, self._cluster.calibration
            own = costs.merge * self._payloads_merged + costs.publish
            own, self._payloads_merged = own / len(cluster.priced_servers), 0
            version = self.version

            def work(server: Keeper) -> Job:
                return chain(
                    cluster.machines.compute(server.machine, own), cluster.put_center(server)
                )

            cluster.work(cluster.ask(work, lambda: cluster.published(version)))
            cluster.work(cluster.hear())
        super().publish()

    def drop(self, action: Drop) -> None:
        self._clears = True
        super().drop(action)

    def tidy(self) -> None:
        """After a merge or a drop the master tells the servers what to delete."""
        cluster = self._cluster
        if self._clears:
            self._clears, small = False, cluster.masters_store.small
            cluster.work(
                cluster.ask(lambda server: cluster.machines.compute(server.machine, small))
            )
        super().tidy()


def payloads_of(action: Merge) -> int:
    """A team sends one for all its members."""
    return len(with_payload(action))
