"""The ring of the leaders of hosts: bits, faults, strangers."""

from __future__ import annotations

import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from speedo.errors import ConfigError, SpeedoError, TeamBrokenError
from speedo.exchange import host_links, host_ring
from speedo.exchange.collective import DTYPES, SAME_CALLS
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import ANY_PORT, Rendezvous
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore
from speedo.system.json_lines import line_of, values_of
from tests.support.damaged_wire import DamagedWire, flipped
from tests.support.network import limit, network
from tests.support.ring_order import ring_sum

Answer = TypeVar("Answer")
Array = np.ndarray[Any, np.dtype[Any]]
LIMIT_S = 60.0


class Hosts:
    """The leaders of `count` hosts, each a thread: workers 10, 11, ..."""

    def __init__(
        self,
        count: int,
        patience_s: float = 20.0,
        address: str = "127.0.0.1",
        *,
        tls: bool = False,
        wired: bool = False,
    ) -> None:
        """If they are `wired`, all connections lead through the `wire`."""
        self.count, self.store = count, MemoryStore(clock=time.monotonic)
        self.wire = DamagedWire(self.store)
        self.gone = ""
        self.leaders = [10 + host for host in range(count)]
        at = Rendezvous(self.wire if wired else self.store, "run", "group1", address, ANY_PORT, tls)
        self.exchanges = [
            HostExchange(at, self.leaders, own, patience_s, lambda: self.gone)
            for own in range(count)
        ]
        self._pool = ThreadPoolExecutor(count)

    def all(self, do: Callable[[int, HostExchange], Answer]) -> list[Answer | SpeedoError]:
        """What all get from it, or raise."""

        def one(host: int) -> Answer | SpeedoError:
            try:
                return do(host, self.exchanges[host])
            except SpeedoError as error:
                return error

        return [
            one.result(LIMIT_S)
            for one in [self._pool.submit(one, host) for host in range(self.count)]
        ]

    def close(self) -> None:
        for one in self.exchanges:
            one.close("it is over")
        self.wire.close()
        self._pool.shutdown()

    def entry(self, host: int) -> dict[str, Any]:
        """Where this one listens, once it does."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with suppress(SpeedoError):
                found: dict[str, Any] = values_of(self.store.read_head(self.key(host))[0])
                return found
            time.sleep(0.005)
        raise AssertionError("it does not listen")

    def key(self, host: int) -> str:
        return keys.collective("run", self.leaders[host], "group1")


@contextmanager
def made(count: int, **options: Any) -> Iterator[Hosts]:
    with closing(Hosts(count, **options)) as hosts:
        yield hosts


def values(random_: np.random.Generator, size: int, dtype: str) -> Array:
    if dtype.startswith("int"):
        return random_.integers(-1000, 1000, size).astype(dtype)
    return (random_.standard_normal(size) * 10.0 ** random_.integers(-3, 3, size)).astype(dtype)


def barrier(host: int, exchange: HostExchange) -> None:
    exchange.barrier("barrier")


def by_parts(exchange: HostExchange, call: str, flat: Array, chance: random.Random) -> None:
    """Sum it while its parts become ready in an order of this host's own; what is not ready yet is nonsense."""
    whole, size = flat.copy(), flat.size
    flat[:] = 99
    cuts = sorted({0, size, *(chance.randrange(size + 1) for _ in range(chance.randrange(6)))})
    parts = list(pairwise(cuts))
    chance.shuffle(parts)
    reduction = exchange.begin_all_reduce(call, flat)
    for start, stop in parts:
        if chance.random() < 0.3:
            time.sleep(0.01 * chance.random())
        flat[start:stop] = whole[start:stop]
        reduction.ready(start, stop)
    if parts and chance.random() < 0.5:
        start, stop = parts[0]
        reduction.wait(start, stop)
        early = flat[start:stop].copy()
        reduction.finish()
        assert early.tobytes() == flat[start:stop].tobytes()
    else:
        reduction.finish()


@dataclass
class Drawn:
    """A call with random arrays of all hosts; what is not ready is nonsense, and ready in each host's own order."""

    what: str
    parts: list[Array]
    root: int
    seeds: list[int]
    wide: list[int]  # rows of each host

    @classmethod
    def by(cls, chance: random.Random, count: int) -> Drawn:
        few = chance.choice([0, 1, count - 1, count, chance.randrange(100)])
        size = chance.choice([few, chance.randrange(200_000)])
        dtype, numbers = chance.choice(DTYPES), np.random.default_rng(chance.randrange(1 << 30))
        return cls(
            chance.choice(["sum", "max", "begun", "gather", "broadcast", "barrier"]),
            [values(numbers, size, dtype) for _ in range(count)],
            chance.randrange(count),
            [chance.randrange(1 << 30) for _ in range(count)],
            [1 + chance.randrange(3) for _ in range(count)],
        )

    def made(self, host: int, exchange: HostExchange) -> bytes:
        what, mine = self.what, self.parts[host].copy()
        if what == "begun":
            by_parts(exchange, what, mine, random.Random(self.seeds[host]))
        elif what == "broadcast":
            exchange.broadcast(what, mine, self.root)
        elif what == "barrier":
            exchange.barrier(what)
        elif what == "gather":
            ends = np.cumsum(self.wide)
            ranks = [range(end - own, end) for end, own in zip(ends, self.wide, strict=True)]
            whole = np.zeros((ends[-1], mine.size), mine.dtype)
            exchange.all_gather(what, np.repeat(mine[None], self.wide[host], 0), ranks, whole)
            return whole.tobytes()
        else:
            exchange.all_reduce(what, mine, np.add if what == "sum" else np.maximum)
        return mine.tobytes()

    def expected(self, host: int) -> bytes:
        found = self.parts[host]
        if self.what in ("sum", "begun", "max"):
            found = ring_sum(self.parts, np.maximum if self.what == "max" else np.add)
        elif self.what == "broadcast":
            found = self.parts[self.root]
        elif self.what == "gather":
            found = np.repeat(np.stack(self.parts), self.wide, 0)
        return found.tobytes()


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(12))
def test_all_calls_give_the_same_bits_everywhere_and_those_of_the_order_by_position(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(host_ring, "PIECE", chance.choice([256, 4096, 1 << 18]))
    monkeypatch.setattr(host_ring, "LEAST_PIECE", chance.choice([64, 1 << 15]))
    count = 2 + seed % 4
    with made(count, tls=seed % 6 == 5) as hosts, np.errstate(over="ignore", invalid="ignore"):
        for _ in range(25):
            drawn = Drawn.by(chance, count)
            assert hosts.all(drawn.made) == [drawn.expected(host) for host in range(count)], drawn


def test_a_leader_that_asks_has_all_know_after_its_call_alone() -> None:
    with made(3) as hosts:
        hosts.all(barrier)
        hosts.exchanges[1].asks = True
        hosts.all(lambda host, exchange: exchange.all_reduce("sum", np.ones(9), np.add))
        assert [one.regroups for one in hosts.exchanges] == [True] * 3
        hosts.exchanges[1].asks = False
        hosts.all(barrier)
        assert [one.regroups for one in hosts.exchanges] == [False] * 3


@pytest.mark.processes
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_both_families_of_addresses_and_tls(address: str) -> None:
    with made(2, address=address, tls=True) as hosts:
        assert hosts.all(barrier) == [None, None]
        mine = hosts.exchanges[0]._ring
        assert mine is not None
        assert mine._prior.version() == mine._after.version() == "TLSv1.3"  # type: ignore[attr-defined]


# ---------------------------------------------------------------- a wire that damages

DAMAGED = "what worker 10 sent to worker 11 came damaged, and is not used"


def few_of_all(host: int, exchange: HostExchange) -> bytes:
    """Two sums, whose pieces go around as parts and as a whole, rows, and a vector of host 0: what they make here."""
    parts = [np.full(900, 1.0 + host, np.float32), np.arange(900.0) * (1 + host)]
    for flat in parts:
        exchange.all_reduce("sum", flat, np.add)
    rows = np.zeros((3, 300), np.int64)
    exchange.all_gather("rows", np.full((1, 300), host), [[0], [1], [2]], rows)
    flat = np.full(900, host, np.int32)
    exchange.broadcast("vector", flat, 0)
    return b"".join(one.tobytes() for one in (*parts, rows, flat))


@pytest.mark.slow
def test_one_bit_that_is_flipped_between_two_hosts_ends_the_call_and_is_in_no_result() -> None:
    with made(3, wired=True) as hosts:
        hosts.all(barrier)
        begin = len(hosts.wire.carried[hosts.key(1)])
        right = hosts.all(few_of_all)
        assert len({*right}) == 1
        length = len(hosts.wire.carried[hosts.key(1)]) - begin
    chance = random.Random(1)
    header = host_ring.HEADER.size + host_ring.CHECK.size
    for at in (*range(header + 3), *(chance.randrange(length) for _ in range(20))):
        with made(3, wired=True) as hosts:
            hosts.all(barrier)
            hosts.wire.damage(hosts.key(1), at, flipped(chance.randrange(8)))
            said = hosts.all(few_of_all)
            assert DAMAGED in str(said[1]), at
            assert all(isinstance(one, TeamBrokenError) or one in right for one in said), at
            assert all(isinstance(one, TeamBrokenError) for one in hosts.all(barrier))


@pytest.mark.parametrize("instead", [True, False], ids=["in its place", "before it"])
def test_a_former_message_that_comes_once_more_is_not_taken_for_the_next(instead: bool) -> None:
    with made(2, wired=True) as hosts:
        for _ in range(3):
            assert hosts.all(barrier) == [None] * 2
        length = host_ring.HEADER.size + host_ring.CHECK.size + len("barrier")
        former = bytes(hosts.wire.carried[hosts.key(1)][-length:])
        hosts.wire.damage(hosts.key(1), 0, lambda data: former + data[length * instead :])
        assert DAMAGED in str(hosts.all(barrier)[1])


# ---------------------------------------------------------------- those that call something else, or leave


@pytest.mark.parametrize("other", ["barrier", "sum of 4", "sum of 300000"])
def test_all_hear_that_they_call_different_things(other: str) -> None:
    def do(host: int, exchange: HostExchange) -> None:
        size = 4 if other == "sum of 4" else 300_000
        if host == 2 and other == "barrier":
            exchange.barrier("barrier")
        elif host == 2:
            exchange.all_reduce(other, np.ones(size), np.add)
        else:
            exchange.all_reduce("sum of 5", np.ones(300_000), np.add)

    with made(4) as hosts:
        for said in hosts.all(do):
            assert isinstance(said, ConfigError)
            assert SAME_CALLS in str(said)
            assert other in str(said)
            assert "worker 12 calls" in str(said)
        assert all(isinstance(one, TeamBrokenError) for one in hosts.all(barrier))


@pytest.mark.parametrize("begun", [False, True], ids=["before-they-connect", "between-calls"])
def test_one_that_leaves_is_heard_in_its_own_words_everywhere(begun: bool) -> None:
    def do(host: int, exchange: HostExchange) -> None:
        if begun:
            exchange.barrier("barrier")
        if host == 1:
            exchange.close("worker 11 has left for good")
        else:
            exchange.all_reduce("sum", np.ones(500_000), np.add)

    with made(4) as hosts:
        first, _, *rest = hosts.all(do)
        for said in (first, *rest):
            assert str(said) == "worker 11 has left for good"


def test_one_that_leaves_in_the_middle_of_a_sum_is_heard_in_its_own_words() -> None:
    def do(host: int, exchange: HostExchange) -> None:
        reduction = exchange.begin_all_reduce("sum", np.ones(2_000_000))
        reduction.ready(0, 2_000_000 if host != 1 else 1_000_000)
        if host == 1:
            exchange.close("worker 11 has had enough")
        reduction.finish()

    with made(3) as hosts:
        assert [str(said) for said in hosts.all(do)] == ["worker 11 has had enough"] * 3


@pytest.mark.slow
def test_one_that_has_all_may_leave_while_others_still_take_part() -> None:
    def do(host: int, exchange: HostExchange) -> None:
        for number in range(20):
            exchange.all_reduce(f"sum {number}", np.ones(1000), np.add)
        exchange.close(f"worker {10 + host} has left")

    for _ in range(10):
        with made(4) as hosts:
            assert hosts.all(do) == [None] * 4


@pytest.mark.slow
def test_who_does_not_come_is_named_on_all_hosts_within_the_patience() -> None:
    def do(host: int, exchange: HostExchange) -> None:
        exchange.barrier("barrier")
        if host != 2:
            exchange.all_reduce("sum", np.ones(100_000), np.add)

    with made(4, patience_s=1.0) as hosts:
        began = time.monotonic()
        said = [str(one) for one in hosts.all(do)]
        assert said.pop(2) == "None"
        assert said == ["worker 12 does not come within 1 s"] * 3
        assert time.monotonic() - began < 4


@pytest.mark.slow
def test_a_member_that_is_gone_ends_the_wait() -> None:
    with made(3) as hosts:
        hosts.all(barrier)
        hosts.gone = "worker 15 is gone"
        said = hosts.all(lambda host, exchange: barrier(host, exchange) if host else None)
        assert [str(one) for one in said[1:]] == ["worker 15 is gone"] * 2
        said = hosts.all(
            lambda host, exchange: exchange.begin_all_reduce("sum", np.ones(9)).finish()
        )
        assert "worker 15 is gone" in str(said[0])


# ---------------------------------------------------------------- processes that die, hang, are cut off

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from speedo.errors import SpeedoError
from speedo.exchange import host_ring
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import Rendezvous
from speedo.storage.shared_memory.store import SharedMemoryStore
folder, own, hosts, patience_s, address = Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]
exchange = HostExchange(Rendezvous(SharedMemoryStore(folder), "run", "g", address), range(hosts), own, patience_s, str)

def at(method, does, number):
    "Do that at the call of this number of the ring's method."
    inner, calls = getattr(host_ring.HostRing, method), [0]
    def outer(*arguments, **named):
        calls[0] += 1
        if calls[0] == number:
            os.kill(os.getpid(), does)
        return inner(*arguments, **named)
    setattr(host_ring.HostRing, method, outer)

def calls():
    for number in range(1000):
        exchange.all_reduce(f"sum {number}", np.ones(1_000_000, np.float32), np.add)
        print("done", flush=True)

def until_broken():
    try:
        calls()
    except SpeedoError as error:
        print(error, flush=True)
        exchange.close("it is over")

"""


@contextmanager
def processes(
    folder: Path,
    program: str,
    hosts: int,
    patience_s: int,
    insides: list[tuple[str, ...]] | None = None,
    addresses: list[str] | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each host; all have ended afterwards."""
    with ExitStack() as stack:
        found = []
        for own in range(hosts):
            place = (folder, own, hosts, patience_s, addresses[own] if addresses else "127.0.0.1")
            command = [sys.executable, "-c", PROGRAM + program, *map(str, place)]
            inside = insides[own] if insides else ()
            one = subprocess.Popen(
                [*inside, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            stack.callback(one.communicate)
            stack.callback(one.kill)
            found.append(one)
        yield found


@pytest.mark.processes
@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize(
    ("method", "number"),
    [("_give", 30), ("_is_done", 30), ("put_through", 3)],
    ids=["in reduce-scatter", "in all-gather", "between calls"],
)
@pytest.mark.parametrize("does", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_hangs_is_named_by_all_others(
    tmp_path: Path, hosts: int, method: str, number: int, does: signal.Signals
) -> None:
    patience_s = 2
    program = f"if own == 1:\n    at({method!r}, {int(does)}, {number})\nuntil_broken()"
    with processes(tmp_path, program, hosts, patience_s) as found:
        began = time.monotonic()
        for own, one in enumerate(found):
            if own != 1:
                said = one.communicate(timeout=LIMIT_S)[0].splitlines()[-1]
                assert said.startswith("worker 1 "), said
        assert time.monotonic() - began < 20


@pytest.mark.processes
def test_a_host_that_is_cut_off_is_named_within_the_patience(tmp_path: Path) -> None:
    """Nothing comes from it, and nobody is told."""
    with network(3) as hosts:
        insides, addresses = [one.inside for one in hosts], [one.address for one in hosts]
        with processes(tmp_path, "until_broken()", 3, 2, insides, addresses) as found:
            for one in found:
                assert one.stdout is not None
                assert one.stdout.readline() == "done\n"
            hosts[1].pull_the_cable()
            began = time.monotonic()
            said = [one.communicate(timeout=LIMIT_S)[0].splitlines()[-1] for one in found]
            assert time.monotonic() - began < 12
    # On a busy machine the limit of the call may be over first.
    for one in (said[0], said[2]):
        assert re.search("worker 1 does not|to worker 1 is too slow", one), said
    assert re.search("worker 0 does not|from worker 1 to", said[1]), said


@pytest.mark.processes
def test_a_host_whose_cable_is_too_slow_ends_the_call_of_all(tmp_path: Path) -> None:
    """A round of 8 MB on each link may take the patience and 2 s."""
    with network(3) as hosts:
        insides, addresses = [one.inside for one in hosts], [one.address for one in hosts]
        with processes(tmp_path, "until_broken()", 3, 2, insides, addresses) as found:
            for one in found:
                assert one.stdout is not None
                assert one.stdout.readline() == "done\n"
            limit(hosts[1], 1)
            began = time.monotonic()
            said = {one.communicate(timeout=LIMIT_S)[0].splitlines()[-1] for one in found}
            assert time.monotonic() - began < 15
    # If the cable carries nothing at all for so long, the worker behind it is one that does not go on, and so is the
    # next one, which waits for it.
    assert all(
        re.search(
            r"worker [12] does not go on|worker 1 to worker 2 is too slow|to worker 1 is too slow",
            one,
        )
        for one in said
    ), said


# ---------------------------------------------------------------- who is no member


def proof_of_nothing(entry: dict[str, Any], stranger: socket.socket) -> None:
    stranger.sendall(bytes(32))
    stranger.recv(32)
    stranger.sendall(bytes(32))


def too_much(entry: dict[str, Any], stranger: socket.socket) -> None:
    with suppress(OSError):
        stranger.sendall(bytes(10_000_000))


def one_key_alone(entry: dict[str, Any], stranger: socket.socket) -> None:
    """As a member that knows where this one listens, but not the key of the one before."""
    key = bytes.fromhex(entry["key"])
    stranger.sendall(bytes(32))
    theirs = stranger.recv(32)
    stranger.sendall(host_links._proof(key + key, host_links.CONNECTS, bytes(32), theirs))


def nothing(entry: dict[str, Any], stranger: socket.socket) -> None:
    """Silent."""


STRANGERS = [proof_of_nothing, too_much, one_key_alone, nothing]


@pytest.mark.processes
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("does", STRANGERS)
def test_strangers_are_dropped_and_keep_no_member_out(does: Callable[..., None], tls: bool) -> None:
    with made(2, tls=tls) as hosts, ExitStack() as stack:
        first = hosts._pool.submit(barrier, 0, hosts.exchanges[0])
        entry = hosts.entry(0)
        strangers = []
        for _ in range(100 if does is nothing else 5):
            stranger = socket.create_connection((entry["address"], entry["port"]), timeout=10)
            strangers.append(stack.enter_context(stranger))
        began = time.monotonic()
        second = hosts._pool.submit(barrier, 1, hosts.exchanges[1])
        for stranger in strangers:
            with suppress(OSError):
                (too_much if tls and does is not nothing else does)(entry, stranger)
        assert [first.result(LIMIT_S), second.result(LIMIT_S)] == [None, None]
        assert time.monotonic() - began < 4
        if does in (proof_of_nothing, one_key_alone) and not tls:
            for stranger in strangers:
                assert stranger.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):  # nobody listens any more
            socket.create_connection((entry["address"], entry["port"]), timeout=10)


@pytest.mark.processes
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_of_very_many_strangers_the_first_are_dropped(
    tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is heard by a thread, also during the handshake of TLS."""
    monkeypatch.setattr(host_links, "PROOF_S", LIMIT_S)
    with made(2, tls=tls) as hosts, ExitStack() as stack:
        first = hosts._pool.submit(barrier, 0, hosts.exchanges[0])
        own = hosts.entry(0)
        # It accepts nobody before it knows where the one before it listens: here nobody does.
        hosts.store.write(hosts.key(1), line_of({**own, "port": 1}), memoryview(b"\0"))
        strangers = [
            stack.enter_context(socket.create_connection((own["address"], own["port"]), LIMIT_S))
            for _ in range(host_links.MOST_STRANGERS + 20)
        ]
        assert [one.recv(1) for one in strangers[:20]] == [b""] * 20
        assert not select.select(strangers[20:], [], [], 0)[0]
        hosts.gone = "worker 11 is gone"
        with pytest.raises(TeamBrokenError, match=hosts.gone):
            first.result(LIMIT_S)


@pytest.mark.slow
def test_a_handshake_that_was_recorded_opens_nothing() -> None:
    """A proxy records what the member says to the leader; said again, it is no proof."""
    with made(2, patience_s=3.0) as hosts, socket.create_server(("127.0.0.1", 0)) as proxy:
        first = hosts._pool.submit(barrier, 0, hosts.exchanges[0])
        entry = hosts.entry(0)
        moved = line_of({**entry, "port": proxy.getsockname()[1]})
        hosts.store.write(hosts.key(0), moved, memoryview(b"\0"))
        second = hosts._pool.submit(barrier, 1, hosts.exchanges[1])
        member, _ = proxy.accept()
        with socket.create_connection((entry["address"], entry["port"])) as there:
            nonce = member.recv(32)
            there.sendall(nonce)
            member.sendall(there.recv(32))
            proof = member.recv(32)
        member.close()
        for _ in range(2):
            with socket.create_connection((entry["address"], entry["port"]), timeout=10) as again:
                again.sendall(nonce)
                assert len(again.recv(32)) == 32
                again.sendall(proof)
                assert again.recv(32) == b""
        hosts.store.write(hosts.key(0), line_of(entry), memoryview(b"\0"))
        proxy.close()
        with suppress(SpeedoError):
            second.result(LIMIT_S)
        first.cancel()


@pytest.mark.processes
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_what_listens_there_and_does_not_know_the_keys_is_not_taken_for_the_leader(
    tls: bool,
) -> None:
    """An entry that names another key, or another certificate."""
    with made(2, patience_s=2.0, tls=tls) as hosts, made(2, patience_s=2.0, tls=tls) as others:
        hosts._pool.submit(barrier, 0, hosts.exchanges[0])
        others._pool.submit(barrier, 0, others.exchanges[0])
        own, foreign = hosts.entry(0), others.entry(0)
        what = "certificate" if tls else "key"
        damaged = line_of({**own, what: foreign[what]})
        hosts.store.write(hosts.key(0), damaged, memoryview(b"\0"))
        with pytest.raises(
            TeamBrokenError,
            match=r"worker 1[01] at 127.0.0.1 (cannot|does not) reach worker 1[01] at 127.0.0.1:\d+",
        ):
            barrier(1, hosts.exchanges[1])


@pytest.mark.slow
def test_a_leader_that_cannot_be_reached_is_named_with_both_addresses_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_links, "TRY_S", 0.5)
    with made(2) as hosts, socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        closed.close()
        entry = {"address": "127.0.0.1", "port": port, "key": bytes(32).hex(), "certificate": ""}
        hosts.store.write(hosts.key(0), line_of(entry), memoryview(b"\0"))
        with pytest.raises(TeamBrokenError) as caught:
            barrier(1, hosts.exchanges[1])
    assert str(caught.value) == (
        f"worker 11 at 127.0.0.1 cannot reach worker 10 at 127.0.0.1:{port} (Connection refused): open this port "
        "between the hosts"
    )


def test_ports_that_are_taken_are_passed_over_and_named_if_all_are() -> None:
    store = MemoryStore(clock=time.monotonic)
    with socket.create_server(("127.0.0.1", 0)) as one:
        taken = one.getsockname()[1]
        at = Rendezvous(store, "run", "g", "127.0.0.1", (taken,))
        with pytest.raises(TeamBrokenError, match=f"the ports {taken} to {taken} .*in use"):
            HostExchange(at, (0, 1), 0, 1.0, str).barrier("barrier")
