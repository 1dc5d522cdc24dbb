"""The sum of a vector over hosts, beside PyTorch's gloo over the same links, and what the links themselves take.

    python -m bench.ring [--megabits 100 1000] [--hosts 2 3 4] [--megabytes 1.7 53] [--rounds 5]

As root. Hosts are network namespaces joined by a bridge; the cable of each carries so much each way (`tc ... tbf`). In
each round every host in turn sends a part of 2 (n - 1) / n of the vector to the next over a bare socket, all at once
("bare"); then they sum it by our ring, then by gloo. Bytes are those that leave a host, of the one that sends most:
those of the interface, and those that the cable counts, with the headers of all packets. `of the rate` is the time
against what these bytes of the vector take at the nominal rate. Prints medians. Status 1 if a measurement failed.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.ddp import torch_version
from bench.support import table
from bench.support.arguments import parser_for, size, whole
from bench.support.arguments import rounds as said
from bench.support.link import megabits_between
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals
from speedo.exchange.host_exchange import HostExchange
from speedo.exchange.host_links import Rendezvous
from speedo.storage.shared_memory.store import SharedMemoryStore
from tests.support.network import Host, limit, network

ROUND_S: Final = 1.0  # about what the calls of one way take in a round, if they are short
MOST_CALLS: Final = 40
PATIENCE_S: Final = 60.0
LIMIT_S: Final = 900.0  # of all rounds of one size
BARE_PORT: Final = 34568
WAYS: Final = ("bare", "ours", "gloo")
COUNTER: Final = Path("/sys/class/net/eth0/statistics/tx_bytes")


@dataclass(frozen=True, slots=True)
class Took:
    """By one way in one round: seconds of a call, those of the processor, bytes of the interface, and of the cable."""

    seconds: float
    used: float
    sent: float
    carried: float


# ---------------------------------------------------------------- a member, on its host


def member(
    folder: Path, rank: int, addresses: Sequence[str], nbytes: int, calls: int, rounds: int
) -> None:
    """Print, for each round and way, what a call has taken here."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    hosts = len(addresses)
    at = Rendezvous(SharedMemoryStore(folder), "bench", "ring", addresses[rank])
    ours = HostExchange(at, range(hosts), rank, PATIENCE_S, str)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=hosts,
        timeout=timedelta(seconds=PATIENCE_S),
    )  # fmt: skip
    array = np.zeros(nbytes // 4, np.float32)  # sums of anything else would grow beyond all bounds
    array[:] = 0.0  # so that its pages are there
    tensor = torch.from_numpy(array)
    share = 2 * (hosts - 1) * nbytes // hosts
    bare = _bare(addresses, rank, bytearray(share))
    ways: dict[str, Callable[[], Any]] = {
        "bare": bare,
        "ours": lambda: ours.all_reduce("sum", array, np.add),
        "gloo": lambda: dist.all_reduce(tensor),
    }
    found = []
    for number in range(-1, rounds):  # the first is for all to be warm
        one = {}
        for way in WAYS if number % 2 else WAYS[::-1]:
            ours.barrier("begin")
            before, began, used = _counted(), time.perf_counter(), time.process_time()
            for _ in range(calls):
                ways[way]()
            took = time.perf_counter() - began, time.process_time() - used
            ours.barrier("end")
            after = _counted()
            one[way] = [
                part / calls
                for part in (*took, *(b - a for a, b in zip(before, after, strict=True)))
            ]
        if number >= 0:
            found.append(one)
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def _counted() -> tuple[int, int]:
    told = json.loads(subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"], capture_output=True, check=True, timeout=30
    ).stdout)  # fmt: skip
    return int(COUNTER.read_text()), next(one["bytes"] for one in told if one["kind"] == "tbf")


def _bare(addresses: Sequence[str], rank: int, sends: bytearray) -> Callable[[], None]:
    """Send so many bytes to the next host, and take as many from the one before."""
    with socket.create_server((addresses[rank], BARE_PORT)) as server:
        after = _connected(addresses[(rank + 1) % len(addresses)])
        prior, _ = server.accept()
    room = memoryview(bytearray(1 << 18))

    def call() -> None:
        sender = threading.Thread(target=after.sendall, args=(sends,))
        sender.start()
        left = len(sends)
        while left:
            left -= prior.recv_into(room[: min(left, len(room))]) or sys.exit(
                "the one before is gone"
            )
        sender.join()

    return call


def _connected(address: str) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((address, BARE_PORT), timeout=PATIENCE_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


# ---------------------------------------------------------------- all of them


def measure(
    hosts: Sequence[Host], megabits: float, nbytes: int, rounds: int
) -> dict[str, list[Took]]:
    """For each way and round, of the host where it took longest or most."""
    share = 2 * (len(hosts) - 1) / len(hosts) * nbytes
    calls = max(1, min(MOST_CALLS, int(ROUND_S / (8 * share / megabits / 1e6))))
    with tempfile.TemporaryDirectory(prefix="speedo-bench-", dir="/dev/shm") as folder:
        members = [
            subprocess.Popen(
                [
                    *(
                        *host.inside,
                        sys.executable,
                        "-m",
                        "bench.ring",
                        "--member",
                        folder,
                        str(rank),
                    ),
                    *(",".join(one.address for one in hosts), *map(str, (nbytes, calls, rounds))),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(hosts)
        ]
        try:
            said = [one.communicate(timeout=LIMIT_S)[0] for one in members]
            if any(one.returncode for one in members):
                raise RuntimeError("a member failed; what it said stands above")
        finally:
            for one in members:
                one.kill()
                one.wait()
    found: dict[str, list[Took]] = {way: [] for way in WAYS}
    for of_hosts in zip(*map(json.loads, said), strict=True):
        for way in WAYS:
            found[way].append(
                Took(*(max(column) for column in zip(*(one[way] for one in of_hosts), strict=True)))
            )
    return found


HEADING: Final = [
    *(
        "Mbit/s",
        "hosts",
        "MB",
        "least ms",
        "bare",
        "ours",
        "gloo",
        "of the rate",
        "of bare",
        "gloo/ours",
    ),
    *("least to most", "by processor time", "bytes", "with headers", "gloo's"),
]


def row(megabits: float, hosts: int, nbytes: int, found: dict[str, list[Took]]) -> list[str]:
    """A line of the table."""
    share = 2 * (hosts - 1) / hosts * nbytes
    least_s = 8 * share / megabits / 1e6

    def median(way: str, part: str) -> float:
        return statistics.median(getattr(one, part) for one in found[way])

    def ratios(way: str, other: str) -> list[float]:
        return [a.seconds / b.seconds for a, b in zip(found[way], found[other], strict=True)]

    used = [a.used / b.used for a, b in zip(found["gloo"], found["ours"], strict=True)]

    against = ratios("gloo", "ours")
    return [
        *(f"{megabits:g}", str(hosts), f"{nbytes / 1e6:g}", f"{1e3 * least_s:.1f}"),
        *(f"{1e3 * median(way, 'seconds'):.1f}" for way in WAYS),
        f"{median('ours', 'seconds') / least_s:.3f}",
        f"{statistics.median(ratios('ours', 'bare')):.3f}",
        f"{statistics.median(against):.2f}",
        f"{min(against):.2f} to {max(against):.2f}",
        f"{statistics.median(used):.2f}",
        f"{median('ours', 'sent') / share:.4f}",
        f"{median('ours', 'carried') / share:.4f}",
        f"{median('gloo', 'carried') / share:.4f}",
    ]


def main() -> int:
    parser = parser_for("bench.ring", __doc__)
    parser.add_argument("--megabits", nargs="+", type=whole, default=[100, 1000], metavar="N")
    parser.add_argument("--hosts", nargs="+", type=whole, default=[2, 3, 4], metavar="N")
    parser.add_argument("--megabytes", nargs="+", type=size, default=[1.7, 53.0], metavar="MB")
    asked = parser.parse_args()
    end_by_signals()
    version = torch_version(sys.executable)
    _, say = heading("bench.ring")
    os.environ.update(GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1")
    lines, failures = [HEADING], []
    with network(max(asked.hosts)) as hosts:
        for megabits in asked.megabits:
            for host in hosts:
                limit(host, megabits)
            say(
                f"cables of {megabits} Mbit/s; one TCP connection gets {megabits_between(*hosts[:2]):.0f}"
            )
            for count in asked.hosts:
                for megabytes in asked.megabytes:
                    nbytes = int(1e6 * megabytes) // 4 * 4
                    try:
                        found = measure(hosts[:count], megabits, nbytes, asked.rounds)
                    except (RuntimeError, ValueError, subprocess.SubprocessError) as error:
                        failures.append(
                            f"{megabits} Mbit/s, {count} hosts, {megabytes:g} MB: {error}"
                        )
                        continue
                    lines.append(row(megabits, count, nbytes, found))
                    say(" ".join(lines[-1]))
    write = table.markdown if asked.markdown else table.text
    print(f"\nPyTorch {version}, medians of {said(asked.rounds)}\n\n{write(lines)}")
    return status_of(failures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        folder, rank, addresses, *numbers = sys.argv[2:]
        member(Path(folder), int(rank), addresses.split(","), *map(int, numbers))
    else:
        sys.exit(main())
