"""Cores: what /sys says, how workers share them, and a process that is bound."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedo.errors import MachineError
from speedo.system.cores import (
    Bind,
    Core,
    CoreOptions,
    CoreShare,
    Machine,
    deal,
    list_of,
    numbers_in,
    quota_of,
    share_of,
    this_machine,
    threads_of,
)

# Two sockets with three cores each; the CPUs alternate between the sockets, as on many boards.
TWO_SOCKETS = Machine((((0,), (2,), (4,)), ((1,), (3,), (5,))))
ONE_SOCKET = Machine((((0,), (1,), (2,), (3,)),))


def write_cpu(root: Path, cpu: int, socket: int, siblings: str) -> None:
    folder = root / f"cpu{cpu}" / "topology"
    folder.mkdir(parents=True)
    (folder / "physical_package_id").write_text(f"{socket}\n")
    (folder / "core_cpus_list").write_text(f"{siblings}\n")


def test_sockets_and_cores_are_those_of_sys_within_what_is_allowed(tmp_path: Path) -> None:
    """Two sockets, two cores each, two hardware threads a core; CPU 6 is not allowed."""
    for cpu in range(8):
        write_cpu(tmp_path, cpu, cpu % 2, f"{cpu % 4},{cpu % 4 + 4}")
    machine = this_machine(tmp_path, {0, 1, 2, 3, 4, 5, 7}, tmp_path)
    assert machine.sockets == (((0, 4), (2,)), ((1, 5), (3, 7)))
    assert machine.cores == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert machine.cpus([(0, 0), (1, 1)]) == (0, 3, 4, 7)


def test_without_sys_each_cpu_is_a_core_of_one_socket(tmp_path: Path) -> None:
    assert this_machine(tmp_path, {3, 1}, tmp_path).sockets == (((1,), (3,)),)


def test_this_machine_has_the_cpus_that_this_process_may_use() -> None:
    machine = this_machine()
    assert set(machine.cpus(machine.cores)) == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000", None), ("150000 100000", 1.5), ("", None), ("nonsense", None)],
)
def test_the_quota_of_a_container_is_read(tmp_path: Path, text: str, quota: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert quota_of(tmp_path) == quota


@pytest.mark.parametrize(
    ("threads", "quota", "workers", "each"),
    [("3", None, 2, 3), ("auto", None, 2, 3), ("auto", None, 4, 1), ("auto", None, 9, 1), ("auto", 2.5, 1, 2)],
)  # fmt: skip
def test_auto_shares_the_cores_among_the_workers(
    threads: str, quota: float | None, workers: int, each: int
) -> None:
    machine = Machine(TWO_SOCKETS.sockets, quota)
    assert threads_of(CoreOptions(threads), machine, workers) == each


@pytest.mark.parametrize(
    ("machine", "workers", "threads", "bind", "dealt"),
    [
        (ONE_SOCKET, 3, 1, "core", ["0:0", "0:1", "0:2"]),
        (ONE_SOCKET, 2, 2, "core", ["0:0 0:1", "0:2 0:3"]),
        (ONE_SOCKET, 6, 1, "core", ["0:0", "0:1", "0:2", "0:3", "0:0", "0:1"]),
        (ONE_SOCKET, 2, 9, "core", ["0:0 0:1 0:2 0:3"] * 2),
        (TWO_SOCKETS, 4, 1, "core", ["0:0", "1:0", "0:1", "1:1"]),
        # The third finds two cores on neither socket, and takes the last of each.
        (TWO_SOCKETS, 3, 2, "core", ["0:0 0:1", "1:0 1:1", "0:2 1:2"]),
        (TWO_SOCKETS, 3, 1, "socket", ["0:0 0:1 0:2", "1:0 1:1 1:2", "0:0 0:1 0:2"]),
        (TWO_SOCKETS, 2, 1, "none", ["", ""]),
    ],
)  # fmt: skip
def test_cores_are_dealt_round_robin(
    machine: Machine, workers: int, threads: int, bind: Bind, dealt: list[str]
) -> None:
    def written(cores: tuple[Core, ...]) -> str:
        return " ".join(f"{socket}:{core}" for socket, core in cores)

    assert [written(one) for one in deal(machine, workers, threads, bind)] == dealt
    # Those that come later, as after `speedo scale`, change nothing for the first.
    assert [written(one) for one in deal(machine, workers + 5, threads, bind)][:workers] == dealt


def test_a_worker_is_told_its_cpus_as_the_kernel_numbers_them() -> None:
    options = CoreOptions("auto", "core")
    assert share_of("alpha", options, TWO_SOCKETS, 2, 1) == CoreShare("alpha", 3, (1, 3, 5), 1, 2)
    assert share_of("alpha", CoreOptions("2"), TWO_SOCKETS, 2, 1) == CoreShare("alpha", 2, (), 1, 2)


@pytest.mark.parametrize(
    ("numbers", "text"), [([0], "0"), ([3, 0, 1, 5, 2], "0-3,5"), ([7, 8], "7-8"), ([1, 3], "1,3")]
)
def test_lists_of_cpus_are_written_as_the_kernel_does(numbers: list[int], text: str) -> None:
    assert list_of(numbers) == text
    assert numbers_in(text) == sorted(numbers)


@pytest.mark.parametrize("text", ["", "-1", "1-", "2-1", "a", "1,,2", "²", "99999", "0x1"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        numbers_in(text)


BOUND = """
import os, threading, time
from speedo.system.cores import CoreShare
before = threading.Event()
threading.Thread(target=before.wait, daemon=True).start()
last = max(os.sched_getaffinity(0))
CoreShare("", 1, (last,)).bind()
after = threading.Event()
threading.Thread(target=after.wait, daemon=True).start()
lists = set()
for thread in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{thread}/status") as status:
        lists |= {line.split()[1] for line in status if line.startswith("Cpus_allowed_list")}
print(len(os.listdir("/proc/self/task")), lists == {str(last)})
"""


@pytest.mark.processes
def test_every_thread_of_a_process_is_bound_those_before_and_those_after() -> None:
    done = subprocess.run([sys.executable, "-c", BOUND], capture_output=True, text=True, check=True)
    assert done.stdout == "3 True\n"


def test_a_share_without_cpus_binds_nothing() -> None:
    before = os.sched_getaffinity(0)
    CoreShare("", 4).bind()
    assert os.sched_getaffinity(0) == before


def test_cpus_that_are_not_there_are_told() -> None:
    with pytest.raises(
        MachineError, match=r"cannot be bound to the CPUs 1023 .*use --threads bind=none"
    ):
        CoreShare("", 1, (1023,)).bind()
