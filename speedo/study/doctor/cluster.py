"""Checks whether this node can join a master: token, address, versions, clocks; or whether its own ports are free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from speedo.actors.join.find_master import wait_for_master
from speedo.actors.join.master_facts import read_facts
from speedo.actors.ray_node import ports
from speedo.actors.token import TOKEN_VARIABLE, load_token, token_file
from speedo.errors import ClusterError, SpeedoError
from speedo.storage.redis.errors import clients_of
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.url import url_with_password
from speedo.study.doctor.base import Finding, NodeRequest, fail, ok, warn
from speedo.version import VERSION

REACH_S: Final = 4.0  # a running master answers at once; after this a line says that we wait
LARGEST_SKEW_S: Final = 2.0
LOOPBACK: Final = "127.0.0.1"


def token(request: NodeRequest) -> tuple[list[Finding], str | None]:
    """The token: whether it exists, is private to its owner, and is long enough. It is never shown."""
    try:
        secret = load_token(request.token_file)
    except ClusterError as error:
        path = request.token_file or token_file()
        if request.master is None and not os.path.lexists(path):
            return [ok("token", f"none yet: `speedo master` makes {path}")], None
        return [fail("token", str(error))], None
    from_environment = request.token_file is None and TOKEN_VARIABLE in os.environ
    place = (
        TOKEN_VARIABLE if from_environment else f"{request.token_file or token_file()}, mode 0600"
    )
    return [ok("token", f"in {place}")], secret


def examine_master(
    request: NodeRequest, secret: str | None
) -> tuple[list[Finding], dict[str, Any]]:
    """The master's facts, and whether this node could join it; without a master, no findings."""
    if request.master is None or request.facts is not None:
        return [], request.facts or {}
    if secret is None:
        return [warn("master", "not asked, because there is no token", "fix the token first")], {}
    try:
        wait_for_master([request.master], REACH_S, lambda _: None)
        facts, ahead = read_facts(request.master, secret)
    except ClusterError as error:
        return [fail("master", str(error))], {}
    if not facts:
        text = f"{request.master} accepts this node, but its master does not say what it runs"
        return [warn("master", text, "wait until it says that it waits for workers")], {}
    found = [
        ok(
            "master", f"{request.master} accepts this node: same Ray and Python, run {facts['run']}"
        ),
        _version(facts),
        _clock(ahead),
    ]
    return found, facts


def _version(facts: dict[str, Any]) -> Finding:
    theirs = facts["speedo"]
    if theirs != VERSION:
        return fail(
            "speedo", f"the master has SpeeDO {theirs}, this node {VERSION}",
            "install the same version on every node",
        )  # fmt: skip
    return ok("speedo", f"{theirs}, as the master's")


def _clock(ahead: float) -> Finding:
    if abs(ahead) > LARGEST_SKEW_S:
        side = "ahead of" if ahead > 0 else "behind"
        return warn(
            "clock", f"{abs(ahead):.1f} s {side} the master's: the run works, but its log times do not match",
            "synchronise the clocks, as with systemd-timesyncd or chrony",
        )  # fmt: skip
    return ok("clock", f"within {LARGEST_SKEW_S:.0f} s of the master's")


def free_ports(request: NodeRequest) -> Iterator[Finding]:
    """Whether the ports on which this node would listen are free: a master's, or those of a node with workers."""
    try:
        if request.master is None:
            address = ports.resolved(request.host)
            ports.require_free_port(address, request.port)
            with ports.master_ports(address, request.port):
                yield ok(
                    "ports", f"free at {request.host} from {request.port} on, for `speedo master`"
                )
        else:
            host, _, port = request.master.rpartition(":")
            address = ports.resolved(host)
            if ports.is_this_machine(address):
                return  # it has them already
            ours = ports.own_address_towards(address)
            with ports.member_ports(ours, int(port)):
                yield ok("ports", f"free at {ours}")
    except ClusterError as error:
        if request.master is None and request.host == LOOPBACK:
            yield warn("ports", str(error), "`speedo train` needs none")
        else:
            yield fail("ports", str(error))


def own_redis(request: NodeRequest) -> Iterator[Finding]:
    """The user's own Redis server, if the run would use one."""
    if request.redis is None:
        return
    try:
        store = RedisStore(url_with_password(request.redis))
        warnings = store.check_server(clients=clients_of(request.workers))
        address = store.address
        store.close()
    except SpeedoError as error:
        yield fail("store", str(error))
        return
    for text in warnings:
        yield warn("store", text, "")
    yield ok("store", f"{address} answers")
