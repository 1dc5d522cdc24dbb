"""What can happen to the hosts of a run, drawn by chance, and what ends by itself after a while."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import psutil

from bench.support.fault_cluster import Cluster
from bench.support.fault_kinds import HEAD_RAYLET, MACHINE, NOTICE
from bench.support.processes import processes
from tests.support.network import Host
from tests.support.processes import standard_error

NOTICE_S: Final = 30.0  # as of Google and Azure
AWAY_S: Final = 20.0  # frozen, or off the network
HEAD: Final = "--head"  # of a raylet


class Faults:
    """Those of one run; `mark` is in the environment of its processes."""

    def __init__(
        self, chance: random.Random, mark: str, asked: argparse.Namespace, cluster: Cluster
    ) -> None:
        self._chance, self._mark, self._cluster = chance, mark, cluster
        self._kinds, self._rate = asked.only, 1 / asked.every
        self._worker = "script" if asked.script else "worker"
        self._ends: list[tuple[float, Callable[[], object]]] = []
        self._away = set[str]()
        self._next: float | None = None

    def happen(self, now: float) -> str | None:
        """End those whose time is over; if it is time for another one, its kind, unless it could befall nothing now."""
        for at, undo in [one for one in self._ends if one[0] <= now]:
            undo()
            self._ends.remove((at, undo))
        if self._next is not None and now < self._next:
            return None
        begun, self._next = self._next is not None, now + self._chance.expovariate(self._rate)
        if begun:
            for kind in self._chance.sample(self._kinds, len(self._kinds)):
                if done := self._befall(kind, now):
                    return done
        return None

    def _befall(self, kind: str, now: float) -> str | None:
        cluster, chance = self._cluster, self._chance
        if kind in ("host", "link"):
            others = [
                one
                for one in cluster.hosts
                if one is not cluster.chief and one.name not in self._away
            ]
            if not others:
                return None
            host = chance.choice(others)
            if kind == "host":
                host.kill_all()
            else:
                host.pull_the_cable()
                self._away.add(host.name)
                self._ends.append((now + AWAY_S, partial(self._plug_in, host)))
            return kind
        if kind in ("command", MACHINE):
            if not cluster.can_lose_the_command(now) or cluster.standby_host in self._away:
                return None
            if kind == MACHINE:
                cluster.chief.kill_all()
            else:
                cluster.master.kill()
            return kind
        if kind == NOTICE:
            places = [one for one in cluster.places if one.process.poll() is None]
            if not places:
                return None
            old = cluster.replace(chance.choice(places))
            self._ends.append((now + NOTICE_S, old.kill))
            return kind
        if kind == "redis" and cluster.redis is not None:
            cluster.redis.kill()
            return kind
        name = self._worker if kind in ("worker", "frozen") else kind
        victims = sorted(processes(name, self._mark), key=lambda one: one.pid)
        if name == self._worker:  # and none that waits for the death of another one
            victims = [one for one in victims if standard_error(one).startswith("worker-")]
        if not victims:
            return None
        with suppress(psutil.NoSuchProcess):
            victim = chance.choice(victims)
            if kind == "frozen":
                victim.suspend()
                self._ends.append((now + AWAY_S, partial(_resume, victim)))
                return kind
            is_head = kind == "raylet" and HEAD in victim.cmdline()
            victim.kill()
            return HEAD_RAYLET if is_head else kind
        return None

    def _plug_in(self, host: Host) -> None:
        host.plug_in_again()
        self._away.discard(host.name)


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
