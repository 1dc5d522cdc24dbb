"""Places for workers on the nodes of a Ray cluster: bundles of placement groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from speedo.actors.join.host_link import RESOURCE
from speedo.errors import ClusterError
from speedo.run.config.resources import Resources

WAIT_S: Final = 2.0  # within which Ray places what fits
SLOW_S: Final = 3.0
# Every node of Ray has this label.
NODE_LABEL: Final = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class Seat:
    """One bundle of a group, or a host that offers itself, of no group.

    `node` is the id of the node that it is on, empty while it is on none.
    """

    group: Any
    index: int
    node: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return "" if self.group is None else self.group.id.hex(), self.index

    def options(self, needs: Resources) -> dict[str, Any]:
        """Ray's options for the actor that takes this place."""
        strategy = PlacementGroupSchedulingStrategy(
            self.group, placement_group_bundle_index=self.index
        )
        return {**needs.options, "scheduling_strategy": strategy}


class Seats:
    """One group for the workers that fit at the beginning, and later one for each further worker.

    Ray itself places a bundle again whose node has died, and one that waits once there is room.
    """

    def __init__(self, needs: Resources, placement: Literal["spread", "pack"]) -> None:
        self.needs, self._strategy = needs, placement.upper()
        self._groups: list[tuple[Any, int]] = []

    def begin(
        self,
        wanted: int,
        least: int,
        refused: frozenset[str],
        patience_s: float,
        note: Callable[[str], None],
    ) -> int:
        """Place as many of `wanted` as fit now, at least `least`, without those nodes; returns how many.

        Raises `ClusterError` if the cluster has not had the room for `least` within `patience_s` seconds.
        """
        # Counted while we hold nothing: a group that Ray is about to place is not free any more.
        count, room = wanted, self._room(refused)
        while count > least:
            group = self._add(count, refused)
            if group.wait(WAIT_S):
                return count
            self._remove(group)
            room = max(room, self._room(refused))  # a run before this one may have just ended
            count = max(least, min(count - max(1, count // 4), room))
        group = self._add(least, refused)
        began = time.monotonic()
        said = False
        while not group.wait(1.0):
            waited = time.monotonic() - began
            if waited > patience_s:
                raise ClusterError(f"{self.why_full(least)} within {patience_s:.0f} s")
            if waited > SLOW_S and not said:
                note(f"{self.why_full(least)}; waiting up to {patience_s:.0f} s for it")
                said = True
        return least

    def more(self, count: int, refused: frozenset[str]) -> None:
        """Ask for this many more places, each by itself."""
        for _ in range(count):
            self._add(1, refused)

    def look(self) -> list[Seat]:
        """All places, with the node of each; those of the first group first."""
        found = []
        for group, count in self._groups:
            nodes = placement_group_table(group).get("bundles_to_node_id", {})
            found += [Seat(group, index, nodes.get(index) or "") for index in range(count)]
        return found

    def give_back(self, seats: list[Seat]) -> None:
        """Free these places, as far as they are groups of their own: Ray cannot make a group smaller."""
        gone = {seat.key[0] for seat in seats}
        for group, count in list(self._groups):
            if count == 1 and group.id.hex() in gone:
                self._remove(group)

    def used(self, wanted: int, refused: frozenset[str]) -> dict[str, tuple[Seat, ...]]:
        """The places to be used, by node; more are asked for, or some given back, as wanted."""
        there = self.look()
        self.give_back([seat for seat in there if seat.node in refused])
        seats = [seat for seat in there if seat.node not in refused]
        seats.sort(key=lambda seat: not seat.node)  # those without a node go first
        used, spare = seats[:wanted], seats[wanted:]
        self.give_back(spare)
        self.more(wanted - len(used), refused)
        placed: dict[str, tuple[Seat, ...]] = {}
        for seat in used:
            if seat.node:
                placed[seat.node] = (*placed.get(seat.node, ()), seat)
        return placed

    def holds_one(self, node: Mapping[str, Any]) -> bool:
        """Whether a place fits on this node of `ray.nodes()` if nothing else is on it."""
        return self._fit(node["Resources"]) > 0

    def close(self) -> None:
        """Free all places."""
        for group, _ in list(self._groups):
            self._remove(group)

    def why_full(self, count: int) -> str:
        """That there is no room, with what there is."""
        there, free = ray.cluster_resources(), ray.available_resources()
        amounts = ", ".join(
            f"{name} {free.get(name, 0.0):g} of {there.get(name, 0.0):g}"
            for name in self.needs.bundle
        )
        many = f"{count} workers, each with" if count > 1 else "a worker with"
        return f"the cluster has no room for {many} {self.needs} (free: {amounts})"

    def _room(self, refused: frozenset[str]) -> int:
        """A bound of how many places are free, as the cluster counted them a moment ago."""
        free = ray.available_resources()
        nodes = [one for one in ray.nodes() if one["Alive"] and one["NodeID"] not in refused]
        return min(self._fit(free), sum(self._fit(one["Resources"]) for one in nodes))

    def _fit(self, amounts: Mapping[str, float]) -> int:
        """How many places such amounts of Ray's resources make."""
        return min(int(amounts.get(name, 0.0) / need) for name, need in self.needs.bundle.items())

    def _add(self, count: int, refused: frozenset[str]) -> Any:
        without = {NODE_LABEL: f"!in({','.join(sorted(refused))})"}
        group = placement_group(
            [self.needs.bundle] * count,
            strategy=self._strategy,
            bundle_label_selector=[without] * count if refused else None,
        )
        self._groups.append((group, count))
        return group

    def _remove(self, group: Any) -> None:
        self._groups = [one for one in self._groups if one[0] is not group]
        remove_placement_group(group)


def offered_hosts(
    nodes: Mapping[str, Mapping[str, Any]], refused: frozenset[str]
) -> dict[str, tuple[Seat, ...]]:
    """A place on each of the nodes that `speedo worker` has started; the host says how many workers it has there."""
    return {
        node: (Seat(None, 0, node),)
        for node, known in nodes.items()
        if RESOURCE in known["Resources"] and node not in refused
    }
