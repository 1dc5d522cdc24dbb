"""Which TCP ports of an address accept a connection: `python -m tests.hosts.scan ADDRESS`, as a line of JSON."""

from __future__ import annotations

import json
import socket
import sys


def open_ports(address: str) -> list[int]:
    """All of the 65535 are tried; on our networks a closed one refuses at once."""
    found = []
    probe = socket.socket()
    for port in range(1, 65536):
        if probe.connect_ex((address, port)) == 0:
            found.append(port)
            probe.close()
            probe = socket.socket()
    probe.close()
    return found


if __name__ == "__main__":
    print(json.dumps(open_ports(sys.argv[1])))
