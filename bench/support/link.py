"""Links of a known rate between hosts that are network namespaces, what they carry, and what was sent over them."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil

from bench.support.figures import MeasureError
from tests.support.network import Host, tc

PORT = 34567
LINK_BYTES = (20_000_000, 220_000_000)  # of the two transfers that are compared
LOOPBACK_BYTES = (100_000_000, 2_100_000_000)

# One end counts what the other sends; each is a process on its host.
RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    server.settimeout(30)
    print("ready", flush=True)
    with server.accept()[0] as peer:
        peer.settimeout(30)
        whole, came, buffer = int(sys.argv[3]), 0, bytearray(1 << 20)
        came = peer.recv_into(buffer)
        first, began = came, time.monotonic()
        while came < whole:
            came += peer.recv_into(buffer) or sys.exit("the sender is gone")
        print((came - first) * 8 / (time.monotonic() - began))
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30) as peer:
    peer.sendall(bytes(int(sys.argv[3])))
"""


def sent(host: Host) -> tuple[int, int]:
    """Bytes on the cable since it was limited, with all headers: from this host, and to it."""
    return _bytes(host.name, "eth0"), _bytes(host.bridge, host.port)


def megabits_between(sender: Host, receiver: Host, size: int = 50_000_000) -> float:
    """What one TCP connection carries, Mbit/s without headers."""
    given = (receiver.address, str(PORT))
    with subprocess.Popen(
        [*receiver.inside, sys.executable, "-c", RECEIVE, *given, str(size)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            subprocess.run(
                [*sender.inside, sys.executable, "-c", SEND, *given, str(size)],
                timeout=60,
                check=True,
            )
            return float(process.communicate(timeout=60)[0]) / 1e6
        except (subprocess.SubprocessError, ValueError) as error:
            raise MeasureError(f"the link carries nothing: {error}") from None
        finally:
            process.kill()


def packet_work(sender: Host, receiver: Host) -> float:
    """Seconds of processor that a byte costs on this way beyond what it costs within a host.

    Between namespaces this machine does all that a network card, a switch and another machine's kernel would do.
    """
    link = _work(sender, receiver, LINK_BYTES)
    return max(0.0, link - _work(receiver, receiver, LOOPBACK_BYTES))


def _work(sender: Host, receiver: Host, sizes: tuple[int, int]) -> float:
    """Seconds of processor for a byte; two sizes, because starting sender and receiver costs something, too."""
    busy = []
    for size in sizes:
        before = _busy()
        megabits_between(sender, receiver, size)
        busy.append(_busy() - before)
    return (busy[1] - busy[0]) / (sizes[1] - sizes[0])


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.softirq + times.irq)


def _bytes(namespace: str, device: str) -> int:
    told = json.loads(tc("-n", namespace, "-s", "-j", "qdisc", "show", "dev", device))
    return int(next(one["bytes"] for one in told if one["kind"] == "tbf"))
