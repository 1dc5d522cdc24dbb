"""Collectives between real processes: each member is a Python program of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedo.errors import ConfigError, TeamBrokenError
from speedo.exchange.collective import Collective

LIMIT_S = 60.0
BEGIN = """
import os, random, sys, time
from pathlib import Path
import numpy as np
from speedo.errors import ConfigError, TeamBrokenError
from speedo.exchange import collective, member_memory
from speedo.exchange.collective import Collective
folder, rank, size, patience_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

def join():
    return Collective(folder, rank, size, patience_s=patience_s)

def arrays(seed, shape, dtype):
    "Those of all members; any of them can make them."
    made = []
    for one in range(size):
        values = np.random.default_rng([seed, one]).standard_normal(shape)
        made.append(np.asarray(values * 1000 if dtype.startswith("int") else values).astype(dtype))
    return made

def expected(parts, op):
    total = parts[0].copy()
    for part in parts[1:]:
        total = np.maximum(total, part) if op == "max" else total + part
    return np.asarray(total / size if op == "mean" else total, parts[0].dtype)

def same(found, wanted):
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes(), (found, wanted)
"""


@contextmanager
def members(
    folder: Path, size: int, program: str, patience_s: float = 30.0, ranks: range | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """Members that carry out `program`; all have ended afterwards."""
    found = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", BEGIN + program),
                *map(str, (folder, rank, size, patience_s)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ranks or range(size)
    ]
    try:
        yield found
    finally:
        for one in found:
            one.kill()
            one.communicate()


def outputs(folder: Path, size: int, program: str, patience_s: float = 30.0) -> list[str]:
    """What the members said; all ended well and left nothing in the folder."""
    with members(folder, size, program, patience_s) as found:
        said = [one.communicate(timeout=LIMIT_S)[0] for one in found]
        assert [one.returncode for one in found] == [0] * size, said
    assert os.listdir(folder) == []
    return said


ALL_CALLS = """
with join() as c:
    for shape in ((0,), (), (1,), (7, 3), (5000,), (300, 1001)):
        for dtype in ("float32", "float64", "float16", "int32", "int64"):
            parts = arrays(1, shape, dtype)
            for op in ("sum", "max") if dtype.startswith("int") else ("sum", "mean", "max"):
                own = parts[rank].copy()
                assert c.all_reduce(own, op) is own
                same(own, expected(parts, op))
                own, out = parts[rank].copy(), np.empty_like(own)
                assert c.all_reduce(own, op, out) is out
                same(out, expected(parts, op))
                same(own, parts[rank])
            same(c.all_gather(parts[rank]), np.stack(parts))
            rows = np.stack([parts[rank]] * size)
            assert c.all_gather(rows[0, ...], rows) is rows
            same(rows, np.stack(parts))
            own = parts[rank].copy()
            assert c.broadcast(own, size - 1) is own
            same(own, parts[size - 1])
            c.barrier()
"""


@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_members_have_the_result_of_numpy_to_the_bit(tmp_path: Path, size: int) -> None:
    outputs(tmp_path, size, ALL_CALLS)


@pytest.mark.processes
def test_arrays_that_are_not_contiguous_are_changed_in_place(tmp_path: Path) -> None:
    program = """
with join() as c:
    parts = arrays(2, (40, 6), "float32")
    whole = np.zeros((40, 18), "float32")
    whole[:, ::3] = parts[rank]
    view = whole[:, ::3]
    assert c.all_reduce(view) is view
    same(whole[:, ::3].copy(), expected(parts, "sum"))
    assert not whole[:, 1::3].any()
    turned = np.asfortranarray(parts[rank])
    c.broadcast(turned, 1)
    same(turned.copy("C"), parts[1])
    shifted = np.zeros(241, "float32")
    shifted[:240] = parts[rank].ravel()
    c.all_reduce(shifted[:240], "sum", shifted[1:])
    same(shifted[1:], expected(parts, "sum").ravel())
"""
    outputs(tmp_path, 2, program)


FUZZ = """
collective.CHUNK, collective.LEAST_CHUNK, collective.WHOLE = 4096, 512, 256
publish, pauses = member_memory.MemberMemory.publish, random.Random(rank + 10 * seed)

def late(self, counter, value):
    if pauses.random() < 0.05:
        time.sleep(0.002 * pauses.random())
    publish(self, counter, value)

member_memory.MemberMemory.publish = late
choose = random.Random(seed)  # the same in all members
with join() as c:
    for number in range(250):
        shape = choose.choice([(0,), (1,), (60,), (65,), (900,), (3, 700), (9001,), (30000,)])
        dtype = choose.choice(["float32", "float64", "float16", "int32", "int64"])
        parts = arrays(1000 * seed + number, shape, dtype)
        own = parts[rank].copy()
        match choose.choice(["sum", "max", "mean", "gather", "broadcast", "barrier"]):
            case "gather":
                same(c.all_gather(own), np.stack(parts))
            case "broadcast":
                root = choose.randrange(size)
                same(c.broadcast(own, root), parts[root])
            case "barrier":
                c.barrier()
            case op:
                op = "sum" if dtype.startswith("int") else op
                same(c.all_reduce(own, op), expected(parts, op))
"""


@pytest.mark.processes
@pytest.mark.parametrize(("seed", "size"), [(1, 2), (2, 3), (3, 4)])
def test_any_sequence_of_calls_with_many_chunks_and_late_members(
    tmp_path: Path, seed: int, size: int
) -> None:
    outputs(tmp_path, size, f"seed = {seed}\n{FUZZ}")


@pytest.mark.processes
def test_with_the_barrier_of_processors_that_reorder_accesses(tmp_path: Path) -> None:
    program = """
from speedo.system import memory_fence
number = {"x86_64": 324}.get(memory_fence.platform.machine(), memory_fence.MEMBARRIER)
memory_fence.platform.machine, memory_fence.MEMBARRIER = lambda: "aarch64", number
"""
    outputs(tmp_path, 2, program + ALL_CALLS)


@pytest.mark.processes
def test_nothing_stays_open(tmp_path: Path) -> None:
    program = """
before = os.listdir("/proc/self/fd")
for number in range(20):
    with join() as c:
        assert os.listdir(folder) == []
        c.barrier()
        c.all_reduce(np.ones(9))
    c.close()
assert os.listdir("/proc/self/fd") == before
"""
    outputs(tmp_path, 2, program)


# ---------------------------------------------------------------- members that do not come

WORKS = """
try:
    with join() as c:
        big = np.ones(30_000_000, "float32")
        print("here", flush=True)
        while True:
            c.all_reduce(big, "mean")
except TeamBrokenError as error:
    print(error, flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "patience_s", "message"),
    [
        (signal.SIGKILL, 60.0, "the process of worker 1 has ended"),
        (signal.SIGSTOP, 2.0, "worker 1 does not come within 2 s"),
    ],
)
def test_a_member_lost_in_a_call_is_told_to_the_others(
    tmp_path: Path, number: signal.Signals, patience_s: float, message: str
) -> None:
    with members(tmp_path, 3, WORKS, patience_s) as found:
        for one in found:
            assert one.stdout is not None
            assert one.stdout.readline() == "here\n"
        time.sleep(0.5)
        found[1].send_signal(number)
        began = time.monotonic()
        said = [found[rank].communicate(timeout=20)[0].strip() for rank in (0, 2)]
        took = time.monotonic() - began
    left = {f"worker {rank} has left the collective" for rank in (0, 2)}
    assert message in said
    assert set(said) - {message} <= (set() if number == signal.SIGKILL else left)
    assert took < 15
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_member_that_never_comes(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(TeamBrokenError, match=r"worker 1 does not come within 0\.5 s"):
        Collective(tmp_path, 0, 2, patience_s=0.5)
    assert 0.5 <= time.monotonic() - began < 5
    assert os.listdir(tmp_path) == []


@pytest.mark.processes
def test_a_member_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    program = """
c = join()
c.barrier()
if rank == 1:
    c.close()
    time.sleep(3)
else:
    began = time.monotonic()
    for again in range(2):
        try:
            c.barrier()
        except TeamBrokenError as error:
            print(error)
    assert time.monotonic() - began < 2
"""
    assert outputs(tmp_path, 2, program)[0].splitlines() == [
        "worker 1 has left the collective",
        "no barrier in this collective any more: worker 1 has left the collective",
    ]


@pytest.mark.processes
def test_the_file_of_a_member_that_was_killed_while_it_waited_stops_nobody(tmp_path: Path) -> None:
    with members(tmp_path, 2, "join()", ranks=range(1, 2)):
        deadline = time.monotonic() + LIMIT_S
        while "collective-1" not in os.listdir(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert os.listdir(tmp_path) == ["collective-1"]
    outputs(tmp_path, 2, "with join() as c: c.barrier()")


# ---------------------------------------------------------------- calls that do not match


@pytest.mark.processes
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            "c.barrier()",
            "c.all_reduce(np.zeros(10, 'float32'))",
            "worker 1 calls all_reduce sum of float32 (10,), worker 0 calls barrier: all workers must",
        ),
        (
            "c.all_reduce(np.zeros(3_000_000, 'float32'))",
            "c.all_reduce(np.zeros(3_000_001, 'float32'))",
            "worker 1 calls all_reduce sum of float32 (3000001,), worker 0 calls all_reduce sum of float32 (3000000,):",
        ),
        (
            "c.all_reduce(np.zeros(8), 'mean')",
            "c.all_reduce(np.zeros(8), 'max')",
            "worker 1 calls all_reduce max of float64 (8,), worker 0 calls all_reduce mean of float64 (8,):",
        ),
        (
            "c.all_gather(np.zeros(4, 'int32'))",
            "c.all_gather(np.zeros(4, 'float32'))",
            "worker 1 calls all_gather of float32 (4,), worker 0 calls all_gather of int32 (4,):",
        ),
        (
            "c.broadcast(np.zeros(4), 0)",
            "c.broadcast(np.zeros(4), 1)",
            "worker 1 calls broadcast from worker 1 of float64 (4,), worker 0 calls broadcast from worker 0 of",
        ),
    ],
)
def test_different_calls_are_an_error_in_every_member(
    tmp_path: Path, first: str, second: str, message: str
) -> None:
    program = f"""
with join() as c:
    c.barrier()
    try:
        if rank == 1:
            {second}
        else:
            {first}
    except ConfigError as error:
        print(error)
"""
    for said in outputs(tmp_path, 3, program):
        assert message in said


@pytest.mark.processes
def test_members_that_expect_different_numbers_of_workers(tmp_path: Path) -> None:
    program = """
size += rank
try:
    join()
except (ConfigError, TeamBrokenError) as error:
    print(error)
"""
    said = outputs(tmp_path, 2, program, patience_s=3.0)
    assert any("worker 1 is one of 3 workers, worker 0 one of 2" in one for one in said) or any(
        "worker 0 is one of 2 workers, worker 1 one of 3" in one for one in said
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("c.all_reduce([1.0])", "a collective of list: use a NumPy array of float32,"),
        ("c.all_reduce(np.zeros(3, 'uint8'))", "a collective of uint8: use a NumPy array"),
        ("c.all_reduce(np.zeros(3, '>f4'))", "use the byte order of this machine"),
        ("c.all_reduce(np.zeros(3), 'min')", "op is 'min': use one of sum, mean, max"),
        ("c.all_reduce(np.zeros(3, int), 'mean')", "the mean of int64 values: use a float type"),
        ("c.all_reduce(np.zeros(3), out=np.zeros(4))", r"out is float64 \(4,\): use a writable"),
        ("c.all_reduce(np.frombuffer(bytes(8)))", r"out is float64 \(1,\), read-only: use a"),
        ("c.all_gather(np.zeros(3), np.zeros(3))", r"use a writable array of float64 \(1, 3\)"),
        ("c.broadcast(np.zeros(3), 1)", "root is 1: use 0 to 0"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, call: str, message: str) -> None:
    import numpy as np

    with (
        Collective(tmp_path, 0, 1, patience_s=1) as collective,
        pytest.raises(ConfigError, match=message),
    ):
        eval(call, {"c": collective, "np": np})


def test_a_rank_outside_the_workers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rank is 2: use 0 to 1, with 2 workers"):
        Collective(tmp_path, 2, 2, patience_s=1)


@pytest.mark.processes
def test_all_know_after_a_call_that_one_asks_for_a_new_group(tmp_path: Path) -> None:
    program = """
with join() as c:
    c.barrier()
    assert not c.regroups
    c.asks = rank == 1
    same(c.all_gather(np.array([rank])), np.arange(size).reshape(size, 1))
    assert c.regroups and not c.is_broken
"""
    outputs(tmp_path, 3, program)
