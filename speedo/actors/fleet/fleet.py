"""The run's workers on the nodes of a Ray cluster: where they have places, and which node keeps them.

On a user's cluster Ray places bundles, and in our own each host offers itself; on each node with a place a keeper
(`NodeKeeper`) runs workers. This process compares the two several times a second, so nodes that come, go or are refused
need no ways of their own.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from ray.exceptions import RayError

from speedo.actors.fleet.keeper import News, NodeKeeper
from speedo.actors.fleet.seats import NODE_LABEL, Seat, Seats, offered_hosts
from speedo.actors.ray_errors import NO_NODE, is_gone, meaning_of, raised_by, why
from speedo.actors.ray_node.actor_class import actor_class
from speedo.actors.worker_host import SCRIPTS_END, SLOW_S
from speedo.data.remote.uris import uri_of
from speedo.errors import ClusterError, Meaning, SpeedoError
from speedo.run.config.resources import parse_resources
from speedo.run.prepare import PreparedRun
from speedo.run.settings import RunSettings
from speedo.run_dir.directory import HOSTS
from speedo.version import VERSION

LOOK_S: Final = 0.25
NEWS_S: Final = 1.0
EXAMINE_S: Final = 120.0  # a node that makes the bundled dataset takes some seconds
LEAVE_S: Final = 10.0
AGAIN_S: Final = 1.0  # before a node gets another keeper
DEATHS: Final = 3  # of keepers of one node, in a row
HEALTHY_S: Final = 60.0  # a keeper that lived so long was well
KEEPER_THREADS: Final = 8


@dataclass(eq=False)
class _Keeper:
    """One node's: what it was last asked, and what it has. `seats` is None before it has begun.

    `follows` is its answer to another master, while that is to come.
    """

    name: str
    handle: Any
    asked: Any = None
    doing: str = ""
    seats: tuple[Seat, ...] | None = None
    follows: Any = None
    since: float = field(default_factory=time.monotonic)
    next_news: float = 0.0


class Fleet:
    """Has `prepared.config.workers` workers wherever the cluster has room. `note` gets what people should know.

    `last_died`, once set, says why there is no worker left and none to come.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        note: Callable[[str], None],
        *,
        hosts: bool = False,
        gone: Callable[[], object] = lambda: None,
    ) -> None:
        """With `hosts` they are where `speedo worker` was started, as many as that has said.

        Ray is not asked once something of it is `gone`: a question without an answer stays in this process, and Ray
        ends the process when another cluster has the same address.
        """
        config = prepared.config
        self._hosts, self._gone = hosts, gone
        self.last_died: str | None = None
        self._prepared, self._note = prepared, note
        self._seats = Seats(parse_resources(config.resources), config.placement)
        self._wanted = config.workers
        self._keepers: dict[str, _Keeper] = {}
        self._refused: dict[str, str] = {}
        self._deaths: dict[str, int] = {}
        self._not_before: dict[str, float] = {}  # for a node whose keeper has ended: the next one
        self._master: Any = None
        self._said_full = False
        self._tidying: list[threading.Thread] = []
        self._lock = threading.RLock()
        self._stopping, self._abandoned = threading.Event(), False
        self._watcher = threading.Thread(target=self._watch, name="fleet", daemon=True)

    def place(self) -> int:
        """Examine every node, then place workers on those that can train; returns how many have a place.

        Raises `ClusterError` if no node can, or there is no room.
        """
        nodes = _alive()
        for node in nodes:
            self._new_keeper(node)
        deadline = time.monotonic() + EXAMINE_S
        for node in nodes:
            while node not in self._refused and node in _alive():
                keeper = self._keepers.get(node)
                if keeper is not None and keeper.asked is None:  # it can train
                    break
                if time.monotonic() > deadline:
                    self._refuse(node, f"its examination took more than {EXAMINE_S:.0f} s")
                elif keeper is None:  # it died
                    time.sleep(AGAIN_S)
                    self._new_keeper(node)
                elif ray.wait([keeper.asked], timeout=NEWS_S)[0]:
                    self._hear(node, keeper)
        self._drop_gone(_alive())
        if self._refused and self._all_refused():
            causes = "; ".join(self._refused.values())
            raise ClusterError(f"no node of the Ray cluster can train: {causes}")
        config = self._prepared.config
        refused = frozenset(self._refused)
        count = self._seats.begin(
            self._wanted, config.min_workers, refused, config.timeout, self._note
        )
        on = len({seat.node for seat in self._seats.look()})
        missing = self._wanted - count
        text = f"{count} worker{'s' if count > 1 else ''} on {on} node{'s' if on > 1 else ''}"
        if missing:
            text += f"; no room yet for {missing} more, which start once there is"
        self._note(text)
        return count

    def start(self, master: Any, prepared: PreparedRun) -> None:
        """Have the workers of the run as it was begun started, and from now on look after them."""
        self._master, self._prepared = master, prepared
        if not self._hosts:
            master.want.remote(self._wanted)
        self._watcher.start()

    def follow(self, master: Any, settings: RunSettings) -> None:
        """The run has another master: the workers of all nodes join it."""
        with self._lock:
            self._master = master
            if not self._hosts:
                master.want.remote(self._wanted)
            for keeper in self._keepers.values():
                if keeper.seats is not None:
                    keeper.follows = keeper.handle.follow.remote(master)

    def scale(self, workers: int) -> str:
        """Have this many workers from now on; returns a sentence for people."""
        with self._lock:
            self._wanted = workers
            self._said_full = False
            if self._master is not None:
                self._master.want.remote(workers)
        return f"{workers} workers wanted, wherever the cluster has room"

    def let_scripts_end(self, version: int, stopped: Collection[str]) -> list[str]:
        """As `WorkerHost.let_scripts_end`, of all nodes. A node that is lost meanwhile is not waited for."""
        with self._lock:
            keepers = [one for one in self._keepers.values() if one.seats is not None]
        asked = {keeper.handle.let_scripts_end.remote(version): keeper for keeper in keepers}
        before, problems, slow = len(stopped), list[str](), time.monotonic() + SLOW_S
        while asked and len(stopped) == before:
            done, _ = ray.wait(list(asked), timeout=LOOK_S)
            if not done and time.monotonic() > slow:
                self._note(SCRIPTS_END)
                slow = math.inf
            for one in done:
                keeper = asked.pop(one)
                with suppress(RayError):
                    end: News = ray.get(one)
                    problems += [f"{keeper.name}: {text}" for text in end.notes]
                    for text in end.output:
                        self._note(text)
        return problems

    def release_scripts(self) -> None:
        """Wait no longer for scripts, on any node."""
        with self._lock:
            for keeper in self._keepers.values():
                keeper.handle.release_scripts.remote()

    def abandon(self) -> None:
        """End nothing in order, from now on: all of it goes with Ray, which answers nobody any more.

        Raises `ClusterError` if a question to Ray is still without an answer.
        """
        self._abandoned = True
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join(NEWS_S)
        if self._watcher.is_alive():
            raise ClusterError(
                "Ray died while it was asked for its nodes, so no other can start in this process: continue with "
                f"--resume {self._prepared.run_dir}"
            )

    def leave(self, cause: str) -> None:
        """End all workers, and bring home the logs of far nodes."""
        if self._abandoned:
            return
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join(LEAVE_S)
        with self._lock:
            self._hear_last_news()
            keepers, self._keepers = dict(self._keepers), {}
        asked = {keeper.handle.leave.remote(cause): keeper for keeper in keepers.values()}
        if asked:
            done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=LEAVE_S)
            for one in done:
                self._bring_home(asked[one], one)
        for keeper in keepers.values():
            ray.kill(keeper.handle)
        for thread in self._tidying:  # they need Ray, too
            thread.join(LEAVE_S)

    def _hear_last_news(self) -> None:
        """What keepers were asked when the watcher ended: the last lines of a script may be in the answer."""
        for node, keeper in list(self._keepers.items()):
            if keeper.doing == "news" and keeper.asked is not None:
                with suppress(RayError):
                    if ray.wait([keeper.asked], timeout=NEWS_S)[0]:
                        self._hear(node, keeper)

    def end(self) -> None:
        """Free all places; the last thing, and after an error, too."""
        with suppress(RayError):
            self.leave("the run is over")
        with suppress(RayError):
            self._seats.close()

    # ------------------------------------------------------------ the watcher's thread

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_S):
            # Ray's own troubles: the next look may be better, and if the cluster is gone this process ends.
            with suppress(RayError), self._lock:
                if not (self._stopping.is_set() or self._gone()):
                    self._look(time.monotonic())

    def _look(self, now: float) -> None:
        refused, nodes = frozenset(self._refused), _alive()
        self._drop_gone(nodes)
        taken = (
            offered_hosts(nodes, refused)
            if self._hosts
            else self._seats.used(self._wanted, refused)
        )
        for node in (taken.keys() & nodes.keys()) - self._keepers.keys():
            if now >= self._not_before.get(node, 0.0):
                self._new_keeper(node)
        for node, keeper in list(self._keepers.items()):
            if keeper.follows is not None and ray.wait([keeper.follows], timeout=0)[0]:
                self._hear_following(node, keeper)
            if keeper.asked is not None and node in self._keepers:
                if not ray.wait([keeper.asked], timeout=0)[0]:
                    continue
                self._hear(node, keeper)
            if node not in self._keepers:
                continue
            self._ask(node, keeper, taken.get(node, ()), now)
        if not self._hosts:
            self._judge(taken)

    def _ask(self, node: str, keeper: _Keeper, seats: tuple[Seat, ...], now: float) -> None:
        handle = keeper.handle
        if keeper.seats is None:
            if seats:
                keeper.doing, keeper.seats = "begin", seats
                keeper.asked = handle.begin.remote(self._master, self._seats.needs, seats)
            else:
                self._dismiss(node, "it has no place for a worker")
        elif not seats:
            self._dismiss(node, "it has no place for a worker any more")
        elif {seat.key for seat in seats} != {seat.key for seat in keeper.seats}:
            keeper.doing, keeper.seats = "change", seats
            keeper.asked = handle.change.remote(seats)
        elif now >= keeper.next_news:
            keeper.doing, keeper.next_news = "news", now + NEWS_S
            keeper.asked = handle.news.remote()

    def _hear(self, node: str, keeper: _Keeper) -> None:
        """Take the answer of a keeper, or its death."""
        asked, keeper.asked = keeper.asked, None
        try:
            answer = ray.get(asked)
        except RayError as error:
            if raised_by(error) is None:
                self._died(node, keeper, error)
            elif meaning_of(error) is Meaning.BUG:
                self._refuse(node, why(error))
            else:  # of the master or the store: another keeper begins with its successor
                self._not_before[node] = time.monotonic() + AGAIN_S
                self._dismiss(node, f"the master did not answer this node: {why(error)}")
        else:
            if keeper.doing == "examine" and answer != node:
                self._end_keeper(node, keeper)
            if isinstance(answer, News):
                for text in answer.notes:
                    self._note(f"{keeper.name}: {text}")
                for text in answer.output:
                    self._note(text)
                if answer.last_died is not None:
                    self._refuse(node, f"every worker there died, the last: {answer.last_died}")

    def _hear_following(self, node: str, keeper: _Keeper) -> None:
        """A keeper that is not known to the present master must begin again."""
        follows, keeper.follows = keeper.follows, None
        try:
            ray.get(follows)
        except RayError as error:
            # A keeper that has died is heard of when it is asked; the successor of a master that has is followed.
            if not (is_gone(error) or is_gone(raised_by(error))):
                self._end_keeper(node, keeper)

    def _drop_gone(self, nodes: Mapping[str, object]) -> None:
        """End the keepers of nodes that are none of these: one that has not begun there waits for ever."""
        for node in (self._keepers.keys() | self._not_before.keys()) - nodes.keys():
            if (keeper := self._keepers.get(node)) is not None:
                self._end_keeper(node, keeper)
            del self._not_before[node]
            self._note(f"{_name_of(node)}: the node is gone")

    def _end_keeper(self, node: str, keeper: _Keeper) -> None:
        """Its workers end with it. A keeper that lives, and only cannot be reached, is ended, too."""
        del self._keepers[node]
        self._not_before[node] = time.monotonic() + AGAIN_S
        if self._master is not None and keeper.seats is not None:
            self._master.farewell.remote(keeper.name)
        with suppress(RayError):
            ray.kill(keeper.handle)

    def _died(self, node: str, keeper: _Keeper, error: RayError) -> None:
        """A keeper is gone: with its node, which Ray may call alive for some seconds more, or alone."""
        self._end_keeper(node, keeper)
        text = str(error)
        if "ModuleNotFoundError" in text or "ImportError" in text:
            lines = [line.strip() for line in text.splitlines()]
            errors = [
                line for line in lines if line.startswith(("ModuleNotFoundError", "ImportError"))
            ]
            self._refuse(
                node,
                f"SpeeDO cannot be imported by the Python of Ray there ({(errors or ['ImportError'])[-1]}): "
                "install speedo and pycaffe into it, on every node",
            )
            return
        if isinstance(error, NO_NODE) or node not in _alive():  # it is gone, or has just come
            return
        lived = time.monotonic() - keeper.since
        self._deaths[node] = 1 if lived > HEALTHY_S else self._deaths.get(node, 0) + 1
        if self._deaths[node] >= DEATHS:
            self._refuse(
                node, f"the process that keeps its workers died: {' '.join(text.split())[:1000]}"
            )

    def _refuse(self, node: str, why: str) -> None:
        keeper = self._keepers.get(node)
        name = keeper.name if keeper else _name_of(node)
        self._refused[node] = f"node {name}: {why}"
        self._note(f"node {name} is not used: {why}")
        if keeper is not None:
            self._dismiss(node, why)

    def _dismiss(self, node: str, cause: str) -> None:
        """A node has no part in the run any more; what it has left is tidied up beside us."""
        keeper = self._keepers.pop(node)

        def tidy() -> None:
            with suppress(RayError):
                asked = keeper.handle.leave.remote(cause)
                if ray.wait([asked], timeout=LEAVE_S)[0]:
                    self._bring_home(keeper, asked)
            with suppress(RayError):
                ray.kill(keeper.handle)

        thread = threading.Thread(target=tidy, daemon=True)
        thread.start()
        self._tidying = [one for one in self._tidying if one.is_alive()] + [thread]

    def _judge(self, taken: dict[str, tuple[Seat, ...]]) -> None:
        """Whether all is lost, or workers wait for room: said once each time."""
        if self._refused and not self._keepers and not taken and self._all_refused():
            self.last_died = list(self._refused.values())[-1]
        placed = sum(map(len, taken.values()))
        if placed < self._wanted and not self._said_full:
            self._note(
                f"{placed} of {self._wanted} workers have a place; the others start once the cluster has room"
            )
        self._said_full = placed < self._wanted

    def _all_refused(self) -> bool:
        """Whether every node that has room for a worker at all is refused."""
        able = {node for node, one in _alive().items() if self._seats.holds_one(one)}
        return able <= self._refused.keys()

    # ------------------------------------------------------------ keepers

    def _new_keeper(self, node: str) -> None:
        root = self._prepared.config.data_root
        name = _name_of(node)
        # The node that gets a keeper checks its own label. By `NodeAffinitySchedulingStrategy` one that came back at
        # once gets the keepers of its former id, too: it has the address that Ray knows for that one.
        keeper = actor_class(
            NodeKeeper,
            threads=KEEPER_THREADS,
            scheduling_strategy="DEFAULT",
            label_selector={NODE_LABEL: node},
        )
        handle = keeper.remote(
            node,
            name,
            root if root is None or uri_of(root) is not None else root.absolute(),
            self._prepared.run_dir.absolute(),
        )
        config, spec = self._prepared.config, self._prepared.settings.spec
        asked = handle.examine.remote(
            VERSION,
            spec,
            config.workers,
            config.splits_batch,
            self._prepared.records,
            config.data_share,
            self._prepared.settings.engine,
        )
        self._keepers[node] = _Keeper(name, handle, asked, "examine")

    def _bring_home(self, keeper: _Keeper, answer: Any) -> None:
        with suppress(RayError, SpeedoError, OSError):
            logs: dict[str, bytes] = ray.get(answer)
            folder = self._prepared.run_dir / HOSTS / keeper.name.replace(":", "-")
            for name, content in logs.items():
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)


def _alive() -> dict[str, Mapping[str, Any]]:
    """The nodes that Ray calls alive, by id: one that died remains so for 5 to 14 s, also beside its successor."""
    return {str(one["NodeID"]): one for one in ray.nodes() if one["Alive"]}


def _name_of(node: str) -> str:
    """A node's name for people: that of its host, and a part of its id."""
    for one in ray.nodes():
        if one["NodeID"] == node:
            return f"{one['NodeManagerHostname']}:{node[:6]}"
    return node[:6]
