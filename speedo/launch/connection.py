"""A connection to a host: ssh as a child process, its orders and events, by threads that never block the launcher."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

import psutil

from speedo.errors import MachineError
from speedo.launch.cluster import HostAccess, is_here
from speedo.launch.protocol import BEAT_S, MOST_LINE, EventError, order, read_event
from speedo.launch.ssh import cause, host_command
from speedo.system.foreign_text import clean_text

KEPT_ERRORS: Final = 200
MOST_ERROR: Final = 64 << 10  # bytes of a line


def signal_name(number: int) -> str:
    """`SIGKILL`; most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Connection:
    """A host whose events are told to `tell`, in a thread; the last one is `closed`, with the cause.

    They come with `key`, which tells several connections to one host apart. The host hears that we are here.
    """

    def __init__(
        self,
        name: str,
        access: HostAccess,
        ssh_config: str | None,
        tell: Callable[[str, Mapping[str, Any]], None],
        key: str | None = None,
    ) -> None:
        self.name, self.access, self.key = name, access, key or name
        self.greeted = False
        self.rejected = ""  # what was wrong with an event of its
        self._tell = tell
        self.errors: list[str] = []
        self._orders: queue.Queue[bytes | None] = queue.Queue()
        # In a session of its own: Ctrl-C at the terminal is the launcher's to answer.
        command = host_command(name, access, ssh_config)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(
                f"{command[0]} cannot be started ({error.strerror}): apt-get install openssh-client"
            ) from None
        self._errors = self._thread(self._read_errors)
        self._thread(self._read_events)
        self._thread(self._write)

    def send(self, **values: Any) -> None:
        """Send an order; what a lost host does not get is lost with it."""
        self._orders.put(order(**values))

    def close(self) -> None:
        """End all that runs there."""
        self._orders.put(None)

    def reject(self, why: str) -> None:
        """End the connection for what the host has sent; `closed` follows, with this cause."""
        self.rejected = self.rejected or why
        self.kill()

    def kill(self) -> None:
        """End ssh itself; the host notices."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def own_address(self) -> str | None:
        """This machine's address of ssh's own connection; None if ssh has none, as behind a jump host."""
        with contextlib.suppress(psutil.Error, OSError):
            process: Any = psutil.Process(self._process.pid)
            # psutil 6 has renamed it.
            sockets = getattr(process, "net_connections", None) or process.connections
            found = [one.laddr.ip for one in sockets("inet") if one.status == "ESTABLISHED"]
            return str(found[0]) if len(found) == 1 else None
        return None

    def _thread(self, target: Any) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"{self.name} {target.__name__}", daemon=True)
        thread.start()
        return thread

    def _write(self) -> None:
        pipe: IO[bytes] | None = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):
            while (line := self._next_order()) is not None:
                pipe.write(line)
                pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()

    def _next_order(self) -> bytes | None:
        try:
            return self._orders.get(timeout=BEAT_S)
        except queue.Empty:
            return order(beat=True)

    def _read_errors(self) -> None:
        pipe = self._process.stderr
        assert pipe is not None
        with pipe:
            for line in iter(lambda: pipe.readline(MOST_ERROR), b""):
                text = line.rstrip(b"\r\n").decode(errors="backslashreplace")
                self.errors.append(clean_text(text))
                del self.errors[:-KEPT_ERRORS]

    def _read_events(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        try:
            for line in iter(lambda: pipe.readline(MOST_LINE), b""):
                values = read_event(line)
                if values is not None:
                    self.greeted = True
                    self._tell(self.key, values)
        except EventError as error:
            self.reject(str(error))
        except Exception as error:  # nobody would hear of this host again
            self.reject(f"what it sends cannot be read: {clean_text(repr(error))}")
        pipe.close()
        status = self._process.wait()
        self._errors.join(1.0)
        why = cause(self.name, self.access, status, self.errors)
        if self.greeted:
            why = self.errors[-1] if self.errors else self._end(status)
        self._tell(self.key, {"closed": status, "why": self.rejected or why})

    def _end(self, status: int) -> str:
        who = "SpeeDO's process here" if is_here(self.name) else "ssh"
        if status < 0:
            return f"{who} was killed by {signal_name(-status)}"
        return f"{who} ended with status {status}"
