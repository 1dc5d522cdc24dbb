"""A signal that comes while `speedo worker` takes its node down: the node is taken down nevertheless."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

# A stay in a cluster whose node takes as long to end as the test wants; all else is the command's own.
STAY = """
import sys, time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from speedo.actors.join import worker_command
from speedo.actors.join.host_link import CommandLink, Leave, Offer

@contextmanager
def joined(*_):
    link, said = CommandLink(Path()), []
    node = SimpleNamespace(dead=lambda: None if said else said.append(print("trains", flush=True)))
    yield node, link, 0
    print("ending", flush=True)
    sys.stdin.readline()
    link.close()
    print("ended", flush=True)

worker_command._joined = joined
offer = Offer(sys.argv[1], 1, Path("logs"), Path())
watch = SimpleNamespace(show=print, note=print)
worker_command._stay(offer, "0" * 64, 60.0, time.monotonic(), lambda why: Leave(why, 25.0), None, watch, [])
"""


@pytest.mark.processes
def test_a_second_sigterm_does_not_keep_a_node_from_its_end(tmp_path: Path) -> None:
    """The handlers were gone by then: it killed the command, and Ray's folder stayed."""
    with (
        socket.create_server(("127.0.0.1", 0)) as master,
        subprocess.Popen(
            [sys.executable, "-c", STAY, f"127.0.0.1:{master.getsockname()[1]}"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as command,
    ):
        assert command.stdin is not None
        assert command.stdout is not None
        for said in ("trains", "ending"):
            assert command.stdout.readline().strip() == said
            command.send_signal(signal.SIGTERM)
        out, _ = command.communicate("\n", timeout=60)
    assert (out, command.returncode) == ("ended\n", 143)
