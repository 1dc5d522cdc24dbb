"""What a stranger gets who calls each port of a node: `python -m tests.hosts.stranger ADDRESS PORT...`.

Prints a line of JSON: by port, the distinct answers. Of an HTTP port these are its statuses, of Redis its words,
of gRPC the statuses of one method of each service that Ray has. With STRANGER_TOKEN set, the caller is no stranger.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys

from tests.hosts.grpc_call import grpc_status

METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
)
PATHS = ("/", "/api/jobs/", "/get_or_create_runtime_env")


def answers(address: str, port: int, token: str | None) -> list[int | str]:
    """What the port says, whatever it speaks."""
    greeting = _say(address, port, b"PING\r\n")
    if greeting.startswith((b"-", b"+")):
        return [greeting.decode().split()[0]]
    if greeting.startswith(b"HTTP"):
        return sorted({_http(address, port, path, token) for path in PATHS})
    return sorted({grpc_status(address, port, method, token) for method in METHODS})


def _say(address: str, port: int, words: bytes) -> bytes:
    with socket.create_connection((address, port), timeout=5) as sock:
        sock.sendall(words)
        try:
            return sock.recv(4096)
        except (TimeoutError, ConnectionError):
            return b""


def _http(address: str, port: int, path: str, token: str | None) -> int:
    connection = http.client.HTTPConnection(address, port, timeout=5)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    status = connection.getresponse().status
    connection.close()
    return status


if __name__ == "__main__":
    given = os.environ.get("STRANGER_TOKEN")
    print(json.dumps({port: answers(sys.argv[1], int(port), given) for port in sys.argv[2:]}))
