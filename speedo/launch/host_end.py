"""The end of `speedo launch` on a host: starts commands there, sends what they print and log, and ends them with ssh.

Nothing outlives the launcher: when standard input ends, or nothing comes for `SILENCE_S`, the commands get SIGTERM, and
after `GRACE_S` SIGKILL. If this process is killed itself, the kernel sends them SIGTERM.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from speedo.errors import SpeedoError
from speedo.launch.protocol import SILENCE_S, event, own_speedo
from speedo.system import dies_with_parent
from speedo.system.private_folders import make_private_folder
from speedo.version import VERSION

GRACE_S: Final = 60.0  # for a master to test and export what was trained
LOOK_S: Final = 0.3
DRAIN_S: Final = 2.0
CHUNK: Final = 48 * 1024
MOST_LINE: Final = 8 << 20  # of output; a longer one is sent in parts
MOST_LOG_BYTES: Final = 16 << 20  # of one file: its end
MOST_FILES: Final = 500
WAITING_LINES: Final = 5000
SEND_S: Final = 30.0
LOGS: Final = "logs"


class HostEnd:
    """The commands of one host, and the way to the launcher."""

    def __init__(self, descriptor_in: int, descriptor_out: int) -> None:
        self._in = descriptor_in
        self._out = _Out(descriptor_out)
        self._commands: dict[str, _Command] = {}
        # Folders whose logs were sent whole, by the command's name; they stay until the launcher has them.
        self._sent: dict[str, Path] = {}
        self._signalled = False
        self._hard = False

    def serve(self) -> None:
        """Obey until the input ends."""
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._out.put(event(hello=_hello()))
        try:
            for values in self._orders():
                self._obey(values)
        finally:
            self._end_all()
            self._wait_until_they_came()
            self._out.close()

    def _on_signal(self, number: int, frame: object) -> None:
        self._signalled = True

    def _wait_until_they_came(self) -> None:
        """A launcher that still listens says that it has the logs of what was ended last."""
        deadline = time.monotonic() + DRAIN_S
        self._signalled = False
        for values in self._orders(lambda: bool(self._sent) and time.monotonic() < deadline):
            self._obey({"got": values["got"]} if "got" in values else {})

    def _orders(self, going: Callable[[], bool] = lambda: True) -> Iterator[Mapping[str, Any]]:
        rest = b""
        heard = time.monotonic()
        while going() and not self._signalled and time.monotonic() - heard < SILENCE_S:
            if not select.select([self._in], [], [], LOOK_S)[0]:
                continue
            try:
                data = os.read(self._in, 65536)
            except OSError:
                return
            if not data:
                return
            heard = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def _obey(self, values: Mapping[str, Any]) -> None:
        if "start" in values:
            name = str(values["start"])
            try:
                self._commands[name] = _Command(name, values, self._out, self._sent)
            except (OSError, SpeedoError) as error:
                self._out.put(event(line=str(error), of=name, stream="err"))
                self._out.put(event(ended=name, status=1))
                self._out.put(event(filed=name))
        elif "fetch" in values:
            self._fetch(str(values["fetch"]), values)
        elif "stop" in values and (command := self._commands.get(str(values["stop"]))) is not None:
            command.send(signal.Signals[values["signal"]])
        elif "got" in values:
            shutil.rmtree(self._sent.pop(str(values["got"]), ""), ignore_errors=True)
        elif "hard" in values:
            self._hard = True

    def _fetch(self, name: str, values: Mapping[str, Any]) -> None:
        """Send what a command of an earlier connection has left."""
        folder = Path(values["folder"]) if values["folder"] else None
        roots = [_directory(values) / one for one in values.get("collect", ())]
        if folder is not None:
            roots.append(folder / LOGS)
        if _send_files(name, roots, self._out) and folder is not None:
            self._sent[name] = folder
        self._out.put(event(filed=name))

    def _end_all(self) -> None:
        for command in self._commands.values():
            command.send(signal.SIGTERM)
        deadline = time.monotonic() + (0 if self._hard else GRACE_S)
        for command in self._commands.values():
            command.end_by(deadline)


class _Command:
    """One command of speedo in a session of its own; the folder of its logs is in `sent` once they are on their way."""

    def __init__(
        self, name: str, values: Mapping[str, Any], out: _Out, sent: dict[str, Path]
    ) -> None:
        self._name, self._out, self._sent = name, out, sent
        directory = _directory(values)
        self._collect = [directory / one for one in values.get("collect", ())]
        self._folder: Path | None = None
        words = list(values["argv"])
        if "log_option" in values:
            self._folder = make_private_folder("speedo-launch-")
            at = words.index("--") if "--" in words else len(words)
            words[at:at] = [values["log_option"], str(self._folder / LOGS)]
            self._collect.append(self._folder / LOGS)
        with tempfile.TemporaryFile() as source:
            source.write(values.get("input", "").encode())
            source.seek(0)
            self._process = subprocess.Popen(
                dies_with_parent.command(own_speedo(*words), signal.SIGTERM),
                cwd=directory,
                env={**os.environ, **values.get("env", {})},
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        out.put(event(started=name, folder=str(self._folder or "")))
        self._readers = [
            self._thread(self._read, self._process.stdout, "out"),
            self._thread(self._read, self._process.stderr, "err"),
        ]
        self._waiter = self._thread(self._wait)

    def _thread(self, target: Any, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        return thread

    def send(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end_by(self, deadline: float) -> None:
        """Wait for its end, and force it at the deadline; then for its logs to be sent."""
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._waiter.join(DRAIN_S + 3.0)

    def _read(self, stream: IO[bytes], name: str) -> None:
        for line in iter(lambda: stream.readline(MOST_LINE), b""):
            text = line.rstrip(b"\n").decode(errors="backslashreplace")
            self._out.offer(event(line=text, of=self._name, stream=name))

    def _wait(self) -> None:
        status = self._process.wait()
        for reader in self._readers:
            reader.join(DRAIN_S)  # a process that it left may hold the pipe
        self._out.put(event(ended=self._name, status=status))
        try:
            if _send_files(self._name, self._collect, self._out) and self._folder is not None:
                self._sent[self._name] = self._folder
        finally:  # the launcher waits for it
            self._out.put(event(filed=self._name))


def _send_files(name: str, roots: Sequence[Path], out: _Out) -> bool:
    """Send each file, and those below each folder, as belonging to this command; False if not all could be sent."""
    count = 0
    for root in roots:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if not path.is_file() or path.is_symlink():
                continue
            count += 1
            if count > MOST_FILES or not _send_file(name, path, path.relative_to(root.parent), out):
                return False
    return True


def _send_file(name: str, path: Path, called: Path, out: _Out) -> bool:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - MOST_LOG_BYTES, 0))
            left = MOST_LOG_BYTES
            while True:
                part = file.read(min(CHUNK, left))
                left -= len(part)
                data = base64.b64encode(part).decode()
                if not out.put(event(file=str(called), of=name, data=data)):
                    return False
                if not part or not left:
                    return True
    except OSError:
        return True


class _Out:
    """Lines to the launcher, written by a thread: a network that hangs must not stop what runs here."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(WAITING_LINES)
        self._dead = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> bool:
        """Whether it could still be sent; waits a while for room."""
        try:
            self._lines.put(line, timeout=0 if self._dead else SEND_S)
        except queue.Full:
            self._dead = True
        return not self._dead

    def offer(self, line: bytes) -> None:
        """Send it if there is room."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line)

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(DRAIN_S)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line and not self._dead:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                self._dead = True


def _directory(values: Mapping[str, Any]) -> Path:
    return Path(values.get("directory") or "~").expanduser()


def serve_host() -> None:
    """`speedo launch-host`: standard input and output are the connection; whatever else is printed is an error."""
    out = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    HostEnd(0, out).serve()


def _hello() -> dict[str, Any]:
    """Versions, this process, and the addresses of both ends as this host's sshd sees them."""
    found = os.environ.get("SSH_CONNECTION", "").split()
    ends = {"launcher": found[0], "address": found[2]} if len(found) == 4 else {}
    python = ".".join(map(str, sys.version_info[:2]))
    return {"speedo": VERSION, "python": python, "pid": os.getpid(), **ends}
