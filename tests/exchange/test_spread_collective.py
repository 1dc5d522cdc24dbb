"""Collectives over several hosts, between real processes; each host has a folder, and a store is between them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import Rendezvous
from speedo.storage.memory_store import MemoryStore

LIMIT_S = 90.0
BEGIN = """
import os, sys, time
from pathlib import Path
import numpy as np
from speedo.errors import ConfigError, TeamBrokenError
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import Rendezvous
from speedo.exchange.spread_collective import SpreadCollective
from tests.support.ring_order import ring_sum
folder, rank, patience_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[4])
hosts = [[int(one) for one in host.split(",")] for host in sys.argv[3].split("/")]
size = sum(map(len, hosts))

def gone():
    return (folder / "gone").read_text() if (folder / "gone").exists() else ""

def join():
    own = next(str(at) for at, ranks in enumerate(hosts) if rank in ranks)
    leaders = [ranks[0] for ranks in hosts]
    return SpreadCollective(
        folder / own, rank, hosts,
        lambda at: HostExchange(
            Rendezvous(SharedMemoryStore(folder / "store"), "run", "group1", "127.0.0.1"),
            leaders, at, patience_s, gone,
        ),
        patience_s=patience_s,
    )

def arrays(shape, dtype):
    "Those of all members; any of them can make them."
    made = [np.random.default_rng(one).standard_normal(shape) for one in range(size)]
    return [np.asarray(one * 1000 if dtype.startswith("int") else one).astype(dtype) for one in made]

def folded(parts, op):
    total = parts[0].copy()
    for part in parts[1:]:
        total = np.maximum(total, part) if op == "max" else total + part
    return total

def expected(parts, op):
    "First each host's, then that of the hosts."
    of_hosts = [folded([parts[one] for one in ranks], op) for ranks in hosts]
    total = ring_sum(of_hosts, np.maximum if op == "max" else np.add)
    return np.asarray(total / size if op == "mean" else total, parts[0].dtype)

def same(found, wanted):
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes(), (found, wanted)
"""
HOSTS = ["0/1", "0,2/1", "0,1/2,3", "0/1,2/3"]


@contextmanager
def members(
    folder: Path, hosts: str, program: str, patience_s: float = 60.0
) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each member; all have ended afterwards."""
    (folder / "store").mkdir(exist_ok=True)
    for number in range(hosts.count("/") + 1):
        (folder / str(number)).mkdir(exist_ok=True)
    size = len(hosts.replace("/", ",").split(","))
    found = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", BEGIN + program),
                *map(str, (folder, rank, hosts, patience_s)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        yield found
    finally:
        for one in found:
            one.kill()
            one.communicate()


def outputs(folder: Path, hosts: str, program: str) -> list[str]:
    with members(folder, hosts, program) as found:
        said = [one.communicate(timeout=LIMIT_S)[0] for one in found]
        assert [one.returncode for one in found] == [0] * len(found), said
    return said


ALL_CALLS = """
c = join()
for shape in ((0,), (), (7, 3), (300, 1001)):
    for dtype in ("float32", "float64", "float16", "int32", "int64"):
        parts = arrays(shape, dtype)
        for op in ("sum", "max") + (() if dtype.startswith("int") else ("mean",)):
            mine = parts[rank].copy()
            assert c.all_reduce(mine, op) is mine
            same(mine, expected(parts, op))
        same(c.all_gather(parts[rank]), np.stack(parts))
        for root in range(size):
            mine = parts[rank].copy()
            same(c.broadcast(mine, root), parts[root])
    c.barrier()
turned = arrays((5, 4), "float32")
mine = np.asfortranarray(turned[rank])
c.all_reduce(mine)
same(np.ascontiguousarray(mine), expected(turned, "sum"))
c.barrier()
c.close()
"""


@pytest.mark.processes
@pytest.mark.parametrize("hosts", HOSTS)
def test_every_call_is_the_same_to_the_bit_on_every_host(tmp_path: Path, hosts: str) -> None:
    outputs(tmp_path, hosts, ALL_CALLS)
    left = [path.name for path in (tmp_path / "store").iterdir() if not path.name.startswith(".")]
    assert len(left) <= hosts.count("/") + 1, left  # that each leader has left


@pytest.mark.processes
def test_members_that_call_different_things_all_hear_of_it(tmp_path: Path) -> None:
    program = """
c = join()
try:
    c.all_reduce(np.zeros(3 if rank != 1 else 4, np.float32))
except ConfigError as error:
    print(error)
try:
    c.barrier()
except TeamBrokenError as error:
    print("broken")
"""
    for said in outputs(tmp_path, "0,2/1,3", program):
        problem, after = said.splitlines()
        assert "worker 1 calls all_reduce sum of float32 (4,)" in problem or (
            "worker 3 calls all_reduce sum of float32 (3,), worker 1 calls" in problem
        )
        assert after == "broken"


@pytest.mark.processes
@pytest.mark.parametrize(
    "call", ["c.barrier()", "c.all_reduce(np.ones(3))", "c.broadcast(np.ones(3), 3)"]
)
def test_all_know_after_a_call_that_the_first_asks_for_a_new_group(
    tmp_path: Path, call: str
) -> None:
    program = f"""
c = join()
c.barrier()
assert not c.regroups
c.asks = rank == 0
{call}
assert c.regroups and not c.is_broken
c.close()
"""
    outputs(tmp_path, "0,2/1,3", program)


@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 3])
def test_the_others_hear_of_a_member_that_is_killed(tmp_path: Path, victim: int) -> None:
    """A leader, whose host and the other hosts hear it in different ways, or another member."""
    program = f"""
c = join()
c.barrier()
if rank == {victim}:
    print("there", flush=True)
    time.sleep(60)
try:
    c.all_reduce(np.zeros(5, np.float32))
except TeamBrokenError as error:
    print(error)
"""
    with members(tmp_path, "0,1/2,3", program) as found:
        assert found[victim].stdout is not None
        assert found[victim].stdout.readline() == "there\n"  # type: ignore[union-attr]
        found[victim].send_signal(signal.SIGKILL)
        (tmp_path / "gone").write_text(f"worker {victim} is gone: it was killed")
        for rank, one in enumerate(found):
            if rank != victim:
                said, _ = one.communicate(timeout=LIMIT_S)
                assert one.returncode == 0, said
                assert f"worker {victim}" in said


def test_what_a_leader_that_is_gone_has_brought_does_not_stay_in_the_store() -> None:
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    at = Rendezvous(store, "run", "group1", "127.0.0.1")
    HostExchange(at, (0, 1), 0, 10.0, str).close("it has left")
    assert len(store.keys("speedo:run:")) == 1
    now[0] = 20.1  # nobody waits for it any more
    assert store.keys("speedo:run:") == []


@pytest.mark.processes
def test_a_member_that_leaves_ends_the_next_call_of_the_others(tmp_path: Path) -> None:
    program = """
c = join()
c.barrier()
if rank == 1:
    c.close()
    sys.exit()
try:
    c.barrier()
except TeamBrokenError as error:
    print(error)
"""
    first, _, third = outputs(tmp_path, "0/1,2", program)
    assert "worker 1 has left the collective" in first
    assert "worker 1 has" in third  # left, or ended: its process is of the same host


@pytest.mark.processes
@pytest.mark.parametrize(
    "call", ["all_reduce(np.zeros(2, np.int32), 'mean')", "broadcast(np.zeros(1), 5)"]
)
def test_what_no_collective_takes_is_refused_before_it_begins(tmp_path: Path, call: str) -> None:
    program = f"""
c = join()
try:
    c.{call}
except ConfigError as error:
    print(error)
c.barrier()
"""
    assert all("use" in said for said in outputs(tmp_path, "0/1", program))


@pytest.mark.processes
def test_a_host_waits_for_its_leader_as_long_as_a_slow_link_may_take(tmp_path: Path) -> None:
    """32 MB may take 8 s more than the patience of 2 s; here they take a little more than 3."""
    program = """
from speedo.exchange.host_ring import HostRing
c = join()
c.barrier()
c._patience_s = 2.0
if c._local is not None:
    c._local.wait_for(2.0)
if c._exchange is not None:
    c._exchange.wait_for(2.0)
write = HostRing._write
def slow(ring):
    time.sleep(0.1 if rank == 2 and not ring._sending and ring._queue else 0)  # before each message
    return write(ring)
HostRing._write = slow
mine = np.ones(2_000_000)
began = time.monotonic()
c.all_reduce(mine)
assert (mine == 3).all() and time.monotonic() - began > 2
"""
    outputs(tmp_path, "0,1/2", program)
