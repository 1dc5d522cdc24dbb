"""`speedo worker`: waits for a master, takes part until the run ends, and waits again if the master is lost."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from speedo.actors.join.asked_to_leave import TOLD, under_control
from speedo.actors.join.find_master import MasterMonitor, wait_for_master
from speedo.actors.join.host_link import (
    FOLDER,
    RESOURCE,
    CommandLink,
    HostFailed,
    Leave,
    Offer,
    Over,
    Stopped,
)
from speedo.actors.join.host_node import NotAMasterError, host_node
from speedo.actors.ray_node import session
from speedo.actors.ray_node.folder import ray_folder
from speedo.actors.ray_node.node import START_S, Node
from speedo.actors.signals import end_as, stop_signals
from speedo.actors.token import load_token
from speedo.data.remote.uris import uri_of
from speedo.data.roots import default_data_root
from speedo.errors import ClusterError, ConfigError, EngineError
from speedo.run_dir.directory import make_own_folders
from speedo.system.cores import Bind, Core
from speedo.system.machine_notice import noticed
from speedo.system.private_folders import make_private_folder
from speedo.system.workplace import check_names, working_folder
from speedo.watch.console import Watch
from speedo.watch.status import Status

LOOK_S: Final = 0.2
HOST_LOG: Final = "host.log"  # what Ray's command said
CRASHES: Final = 3  # a stay that breaks is tried again so often
HEALTHY_S: Final = 60.0  # one that lasted so long counts as a first
LEAST_S: Final = 15.0  # for a node to start, whatever is left of the time
SLOW_S: Final = 5.0  # a start that waits longer for the master says so
GRACE_S: Final = 25.0  # Kubernetes and Slurm kill 30 s after SIGTERM, if nobody says otherwise
# What a stay that is asked to end may take for it, once its results are there.
LEAVE_S: Final = 10.0
UNKEPT_S: Final = 20.0  # for another keeper to take the place of one that died
BEFORE_S: Final = 3.0  # so long before its keeper a master may have died


@dataclass(frozen=True, slots=True)
class Lost:
    """The master is gone."""

    why: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """A process that this stay needs has died; a new stay may work."""

    why: str


def serve_worker(
    address: str,
    count: int,
    watch: Watch,
    *,
    timeout_s: float,
    data_root: Path | None,
    token_file: Path | None,
    threads: str | None = None,
    bind: Bind | None = None,
    cores: tuple[tuple[Core, ...], ...] = (),
    device: str | None = None,
    logs: Path | None = None,
    command: tuple[str, ...] = (),
    grace_s: float = GRACE_S,
    leave_on: str | None = None,
    leave_after_s: float = 0.0,
) -> Status | None:
    """Join the master at `address` with `count` workers and take part until the run ends. Raises `SpeedoError`.

    With a count of 0 this host only serves a range of the center. `threads`, `bind`, `cores` (of each worker) and
    `device` replace the master's for this host's workers. If the master is lost, waits up to `timeout_s` seconds for
    it, or for its standby, each time, and joins again. `command` is the script that each worker runs, here, for a
    master without a solver.
    `logs` is a folder that keeps the logs; without it they go with a run that ended well. After a signal, or a notice
    of the cloud `leave_on`, the workers train on for `leave_after_s` seconds, and then have `grace_s` seconds to hand
    in what they have; a second signal ends them at once. None: left by `speedo leave`, or by a notice.
    """
    if ignored := session.ignored_settings():
        watch.note(ignored)
    check_names({"the data root": data_root})
    kept = logs is not None
    logs = make_private_folder("speedo-worker-") if logs is None else _made(logs)
    root = data_root or default_data_root()
    if uri_of(root) is None:
        root = root.absolute()
    offer = Offer(
        *(address, count, logs, root, threads, bind, cores, device),
        command=command,
        folder=str(working_folder()) if command else "",
    )
    told_by = partial(Leave, within_s=grace_s, after_s=leave_after_s)
    stays = crashes = 0
    addresses = [address]  # and those at which a standby may take over
    while True:
        try:
            since = time.monotonic()
            token = _patient_token(token_file, timeout_s, watch.note)
            address = wait_for_master(
                addresses, timeout_s, watch.note, returning=stays > 0, since=since
            )
            stays += 1
            here = replace(offer, address=address, logs=logs / f"stay-{stays}")
            ending = _stay(here, token, timeout_s, since, told_by, leave_on, watch, addresses)
        except BaseException:
            if not kept and all(one.name == HOST_LOG for one in logs.rglob("*") if one.is_file()):
                shutil.rmtree(logs, ignore_errors=True)  # no worker has left its words there
            raise
        if isinstance(ending, Over | Stopped):
            if not kept:
                shutil.rmtree(logs, ignore_errors=True)
            return ending.status if isinstance(ending, Over) else None
        if isinstance(ending, HostFailed):
            raise ending.error
        if isinstance(ending, Lost):
            crashes = 0
            standby = " or at ".join(("there", *(one for one in addresses if one != address)))
            watch.note(
                f"the master at {address} is gone ({ending.why}); this host's workers were stopped; "
                f"waiting up to {timeout_s:.0f} s for a master to come back {standby}"
            )
            continue
        crashes = 1 if time.monotonic() - since > HEALTHY_S else crashes + 1
        if crashes >= CRASHES:
            raise EngineError(
                f"this host's stay in the cluster failed {crashes} times in a row, the last time: {ending.why}; "
                f"see {logs}"
            )
        watch.note(f"this host's part of the cluster failed: {ending.why}; it joins again")


def _made(logs: Path) -> Path:
    try:
        make_own_folders(logs)
    except OSError as error:
        raise ConfigError(
            f"the folder of logs {logs} cannot be made: {error.strerror}; give another with --logs"
        ) from None
    return logs.absolute()


def _stay(
    offer: Offer,
    token: str,
    timeout_s: float,
    since: float,
    told_by: Callable[[str], Leave],
    leave_on: str | None,
    watch: Watch,
    addresses: list[str],
) -> Over | Stopped | HostFailed | Lost | Crashed:
    """How a stay in the cluster ended. Raises what a signal asks for, and `ClusterError` for a master that refuses.

    `addresses` are the first one, that of this master and that of its latest standby.
    """
    lost: list[str] = []
    told: list[float] = []  # by `speedo leave`: the seconds
    notices: list[str] = []  # of the cloud
    with ExitStack() as signals, ExitStack() as stack:
        deadline = since + timeout_s
        offer.logs.mkdir(parents=True)
        node, link, block = stack.enter_context(
            _joined(offer.address, token, deadline, offer.logs / HOST_LOG, watch.note)
        )
        stopped = signals.enter_context(stop_signals())  # also while the node is taken down
        monitor = MasterMonitor(offer.address, lost.append)
        monitor.start()
        stack.callback(monitor.close)
        stack.enter_context(under_control(offer, told, watch.note))
        if leave_on is not None:
            stack.enter_context(noticed(leave_on, notices.append, watch.note))

        def wish() -> Leave | None:
            if why := stopped or notices:
                return told_by(why[0]) if len(stopped) < 2 else Leave(why[0])
            return Leave(TOLD, told[0]) if told else None

        here = replace(offer, block=block)
        ending = _follow(link, here, node, lost, monitor, wish, timeout_s, watch, addresses)
        if isinstance(ending, Crashed) and monitor.interrupted_within(2 * UNKEPT_S):
            ending = Lost("it was started again")
    if stopped:
        end_as(stopped[0])
    return ending


@contextmanager
def _joined(
    address: str, token: str, deadline: float, words: Path, note: Callable[[str], None]
) -> Iterator[tuple[Node, CommandLink, int]]:
    """A node of this host in the master's cluster, tried again until the deadline where no master answers yet.

    With it where its keeper will ask, and the first of the ports that are held for this host.
    """
    said = False
    while True:
        with ExitStack() as stack:
            folder = Path(ray_folder(stack))
            link = CommandLink(folder)
            stack.callback(link.close)
            limit_s = min(max(deadline - time.monotonic(), LEAST_S), START_S)
            offered = host_node(
                address, token, folder, {RESOURCE: 1}, {FOLDER: str(folder)}, words, limit_s
            )
            try:
                node, block = stack.enter_context(offered)
            except NotAMasterError:
                if time.monotonic() > deadline:
                    raise
                if not said:
                    left = deadline - time.monotonic()
                    note(
                        f"{address} accepts the connection, but no master answers there yet; waiting up to {left:.0f} s"
                    )
                    said = True
                continue
            yield node, link, block
            return


def _follow(
    link: CommandLink,
    offer: Offer,
    node: Node,
    lost: list[str],
    monitor: MasterMonitor,
    wish: Callable[[], Leave | None],
    timeout_s: float,
    watch: Watch,
    addresses: list[str],
) -> Over | Stopped | HostFailed | Lost | Crashed:
    """Show what the keeper of this host says until it reports how its stay ended, or whatever else ends it."""
    began = unkept = time.monotonic()
    deadline = leaves = math.inf
    was_kept = said = trains = False
    while (now := time.monotonic()) < deadline:
        if (leave := wish()) is not None:
            after_s = leave.after_s if trains else 0.0
            if after_s and leaves == math.inf:
                watch.note(f"{leave.why}: leaving in {after_s:g} s; the workers train on")
            leaves = min(leaves, now + after_s)
        if leave is not None and now >= leaves:
            if not link.is_kept:
                break
            if deadline == math.inf and leave.within_s and trains:
                watch.note(
                    f"{leave.why}: leaving; the workers have {leave.within_s:g} s to hand in what they have"
                )
            deadline = min(deadline, now + LEAVE_S + (leave.within_s if trains else 0.0))
            link.leave(leave)
        try:
            told = link.heard(offer, LOOK_S)
        except EOFError:
            unkept, told = now, None
            if not (lost or node.dead()):
                watch.note(
                    "the process that kept this host's workers died; the master starts another"
                )
        if isinstance(told, str):
            watch.note(told)
        elif isinstance(told, Status):
            watch.show(told)
            trains = True
            if told.standby:
                addresses[:] = _where_masters_may_be(addresses[0], offer.address, told.standby)
        elif isinstance(told, Over | HostFailed):
            return told
        elif isinstance(told, Stopped):
            break
        elif lost:  # and the keeper has said all
            return Lost(lost[0])
        elif node.dead():
            return Crashed("its Ray node died")
        was_kept = was_kept or link.is_kept
        alone_s = now - unkept if was_kept and not link.is_kept else 0.0
        # A master that was started again starts a keeper on the nodes of its own cluster, not on this one.
        if alone_s > UNKEPT_S or (alone_s and monitor.came_back_within(alone_s + BEFORE_S)):
            return Crashed("the process that keeps its workers died, and was not started again")
        if not was_kept and now > began + timeout_s:
            raise ClusterError(
                f"there is no SpeeDO master in the Ray cluster at {offer.address}: correct --master"
            )
        if not was_kept and not said and now > began + SLOW_S:
            said = True
            watch.note(
                f"Ray answers at {offer.address}; waiting up to {timeout_s:.0f} s for the master itself, "
                "which may still be starting"
            )
    return Stopped()


def _where_masters_may_be(first: str, present: str, standby: str) -> list[str]:
    """Former standbys have left, or have had the run: what listens there now may be of another one."""
    return list(dict.fromkeys((first, present, standby)))


def _patient_token(file: Path | None, timeout_s: float, note: Callable[[str], None]) -> str:
    """The token, waited for: on the master's machine its file may not exist before the master starts."""
    deadline = time.monotonic() + timeout_s
    said = False
    while True:
        try:
            return load_token(file)
        except ClusterError as error:
            if "there is no token" not in str(error) or time.monotonic() >= deadline:
                raise
            if not said:
                note(
                    f"no token yet; waiting up to {timeout_s:.0f} s for a master on this machine to create it"
                )
                said = True
            time.sleep(0.5)
