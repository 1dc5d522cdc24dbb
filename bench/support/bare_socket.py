"""What one TCP connection carries between two processes of this machine, sent and taken in one piece.

    with bare_socket(nbytes) as (push, pull): ...

The other process keeps the bytes it was sent last, and sends them back. Nothing is parsed, checked or copied but by
the kernel.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.support.processes import child

Move = Callable[[memoryview], None]


@contextmanager
def bare_socket(nbytes: int) -> Iterator[tuple[Move, Move]]:
    """Functions that send so many bytes to the other process, and take them back."""
    command = [sys.executable, "-m", "bench.support.bare_socket", str(nbytes)]
    with (
        open(os.devnull, "w") as log,
        child(command, log=log, talk=True) as process,
    ):
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as ours:
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def push(body: memoryview) -> None:
                ours.sendall(b"<")
                ours.sendall(body)
                ours.recv(1)

            def pull(into: memoryview) -> None:
                ours.sendall(b">")
                receive(ours, into)

            yield push, pull


def receive(from_socket: socket.socket, into: memoryview) -> None:
    """Fill `into`."""
    done = 0
    while done < len(into):
        count = from_socket.recv_into(into[done:])
        if count == 0:
            raise ConnectionResetError("the other end has gone")
        done += count


def main(nbytes: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        theirs, _ = listener.accept()
    theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    kept = memoryview(bytearray(nbytes))
    while (asked := theirs.recv(1)) != b"":
        if asked == b"<":
            receive(theirs, kept)
            theirs.sendall(b".")
        else:
            theirs.sendall(kept)


if __name__ == "__main__":
    main(int(sys.argv[1]))
