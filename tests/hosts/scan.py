"""Which TCP ports of an address accept a connection: `python -m tests.hosts.scan ADDRESS`, as a line of JSON."""

from __future__ import annotations

import json
import socket
import sys


def open_ports(address: str) -> list[int]:
    """All of the 65535 are tried; on our networks a closed one refuses at once."""
    found = []
    for port in range(1, 65536):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.settimeout(2.0)
            if probe.connect_ex((address, port)) == 0:
                found.append(port)
    return found


if __name__ == "__main__":
    print(json.dumps(open_ports(sys.argv[1])))
