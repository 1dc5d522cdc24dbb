"""The unix socket by which `speedo status`, `stop` and `scale` reach a run, in a folder of mode 0700.

Nothing listens on a network. Each process that leads a run serves one socket, named after the run; the next command
removes the socket of a process that died. An exchange is one line of JSON each way: the request (`{"ask": "status"}`,
`{"ask": "stop"}`, `{"ask": "scale", "workers": 3}`, or `{"ask": "known"}`, which needs no master), then
`{"answer": ...}` or `{"error": ...}`.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from speedo.errors import ClusterError, SpeedoError
from speedo.system.json_lines import plain

RUNTIME_VARIABLE: Final = "SPEEDO_RUNTIME_DIR"
SUFFIX: Final = ".sock"  # of a run
HOST_SUFFIX: Final = ".host"  # of a `speedo worker` command
MOST_ASKED_BYTES: Final = 4096
MOST_ANSWERED_BYTES: Final = 16 << 20  # a status has some 200 bytes per worker
ASK_S: Final = 5.0  # for a line to arrive whole
ANSWER_S: Final = 30.0
KNOWN_S: Final = 5.0  # to what needs no master, which may hang
OTHER: Final = "use the same version of SpeeDO for the command as for the run"
AT_ONCE: Final = 16  # exchanges under way
UNBORN_S: Final = 60.0  # a socket that is not yet in place after so long belongs to nobody

Asked = Mapping[str, Any]


class RunGone(ClusterError):
    """The process that led the run has ended."""


def runtime_folders() -> tuple[Path, ...]:
    """The folders that may hold sockets, the preferred one first.

    `SPEEDO_RUNTIME_DIR` alone if it is set; otherwise `speedo` in `XDG_RUNTIME_DIR`, and a folder of this user's
    in the temporary folder: a run started in a login session and a command given without one must find each other.
    """
    if chosen := os.environ.get(RUNTIME_VARIABLE):
        return (Path(chosen).absolute(),)
    session = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    ours = Path(tempfile.gettempdir()) / f"speedo-{os.geteuid()}"
    return (session / "speedo", ours) if session.is_absolute() and session.is_dir() else (ours,)


@contextmanager
def private_folder(path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder, which must have mode 0700, belong to this user and be no symbolic link.

    Raises `ClusterError` if it is anything else, `FileNotFoundError` if it is missing and not to be made.
    """
    if create:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ClusterError(
            f"{path} cannot hold the sockets of runs ({error.strerror}): it must be a folder of yours; "
            f"remove it, or set {RUNTIME_VARIABLE} to another"
        ) from None
    try:
        facts = os.fstat(folder)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise ClusterError(
                f"{path} is open to other users or belongs to one: chmod 700 it if it is yours, "
                f"or set {RUNTIME_VARIABLE} to another folder"
            )
        yield folder
    finally:
        os.close(folder)


def _inside(folder: int, name: str) -> str:
    """A path to a name in an open folder: short enough for a socket, and independent of the folder's name."""
    return f"/proc/self/fd/{folder}/{name}"


# ---------------------------------------------------------------- the run's side


class ControlServer:
    """A context that answers the commands of this user by `answer`, in separate threads.

    `answer` takes the request and returns plain data; a `SpeedoError` is sent to the command as its error.
    """

    def __init__(self, run: str, answer: Callable[[Asked], Any], suffix: str = SUFFIX) -> None:
        self._name, self._answer = f"{run}{suffix}", answer
        self._closing = threading.Event()
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._inode = 0

    def __enter__(self) -> Self:
        """Raises `ClusterError` or `OSError` if no socket can be served."""
        try:
            self._folder = runtime_folders()[0]
            name, unborn = self._name, f".{self._name}"
            with private_folder(self._folder, create=True) as folder:
                with suppress(FileNotFoundError):
                    os.unlink(unborn, dir_fd=folder)
                self._socket.bind(_inside(folder, unborn))
                os.chmod(unborn, 0o600, dir_fd=folder)
                self._socket.listen(AT_ONCE)
                # In place only now: a socket that nobody listens to would be taken for a dead run's.
                os.rename(unborn, name, src_dir_fd=folder, dst_dir_fd=folder)
                self._inode = os.stat(name, dir_fd=folder).st_ino
            self._socket.settimeout(0.5)
            threading.Thread(target=self._serve, name="control", daemon=True).start()
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with suppress(OSError, ClusterError), private_folder(self._folder) as folder:
            if os.stat(self._name, dir_fd=folder).st_ino == self._inode:  # else a successor's
                os.unlink(self._name, dir_fd=folder)
        self._socket.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # closed, or out of descriptors for a moment
                self._closing.wait(0.2)
                continue
            if not self._free.acquire(blocking=False):
                with connection, suppress(OSError):
                    connection.sendall(b'{"error": "the run has too much to answer: try again"}\n')
                continue
            threading.Thread(target=self._exchange, args=(connection,), daemon=True).start()

    def _exchange(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(ASK_S)
                connection.sendall(json.dumps(self._answered(connection)).encode() + b"\n")
        finally:
            self._free.release()

    def _answered(self, connection: socket.socket) -> dict[str, Any]:
        try:
            asked = json.loads(_line(connection, MOST_ASKED_BYTES, ASK_S).decode("utf-8"))
            if not isinstance(asked, dict):
                raise ClusterError("the request is not a JSON object")
            return {"answer": plain(self._answer(asked))}
        except (ValueError, RecursionError):
            return {"error": "the request is not JSON"}
        except SpeedoError as error:
            return {"error": str(error)}
        except Exception as error:  # the asker must not take this for the end of the run
            return {"error": f"the run could not answer: {type(error).__name__}: {error}"}


# ---------------------------------------------------------------- the commands' side


@dataclass(frozen=True, slots=True)
class RunSocket:
    """A run that a process of this user on this machine leads."""

    run: str
    folder: Path
    suffix: str = SUFFIX

    def ask(self, what: str, timeout_s: float = ANSWER_S, **more: Any) -> dict[str, Any]:
        """The answer; raises `RunGone` if no process listens, `ClusterError` for other failures."""
        late = f"run {self.run} did not answer within {timeout_s:.0f} s: its process is stopped or overloaded"
        try:
            with self._connected(timeout_s) as connection:
                connection.sendall(json.dumps({"ask": what, **more}).encode() + b"\n")
                line = _line(connection, MOST_ANSWERED_BYTES, timeout_s)
            said = json.loads(line)
        except TimeoutError:
            raise ClusterError(late) from None
        except (ConnectionError, FileNotFoundError, ValueError, RecursionError):
            raise RunGone(f"run {self.run} has ended") from None
        if isinstance(said, dict) and "error" in said:
            raise ClusterError(str(said["error"]))
        if not isinstance(said, dict) or not isinstance(said.get("answer"), dict):
            raise ClusterError(f"run {self.run} gave an answer that cannot be read: {OTHER}")
        answer: dict[str, Any] = said["answer"]
        return answer

    @property
    def run_dir(self) -> Path:
        """Its directory, as the process that leads it knows it, whatever its master does. Raises `ClusterError`."""
        return Path(self.ask("known", timeout_s=KNOWN_S)["run_dir"])

    def is_served(self) -> bool:
        """Whether a process listens; the socket of an ended process is removed."""
        try:
            with self._connected(ASK_S):
                return True
        except TimeoutError:
            return True  # stopped, but there
        except OSError:
            return False

    @contextmanager
    def _connected(self, timeout_s: float) -> Iterator[socket.socket]:
        name = f"{self.run}{self.suffix}"
        with (
            private_folder(self.folder) as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            connection.settimeout(timeout_s)
            try:
                connection.connect(_inside(folder, name))
            except ConnectionRefusedError:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                raise
            yield connection


def running(suffix: str = SUFFIX) -> list[RunSocket]:
    """The runs that this user leads on this machine, by name; sockets of ended processes are removed.

    With `HOST_SUFFIX` the `speedo worker` commands.
    """
    found: dict[str, RunSocket] = {}
    for place in runtime_folders():
        try:
            with private_folder(place) as folder:
                for name in os.listdir(folder):
                    if name.startswith("."):
                        _remove_unborn(folder, name)
                    elif name.endswith(suffix):
                        run = name.removesuffix(suffix)
                        found.setdefault(run, RunSocket(run, place, suffix))
        except FileNotFoundError:
            continue
    return [found[run] for run in sorted(found) if found[run].is_served()]


def leader_of(run_dir: Path) -> RunSocket | None:
    """Who leads the run in this directory; None also where no socket can be looked for."""
    folder = Path(os.path.realpath(run_dir))
    with suppress(ClusterError):
        for one in running():
            with suppress(ClusterError, KeyError):
                if one.run_dir == folder:
                    return one
    return None


def _remove_unborn(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISSOCK(facts.st_mode) and facts.st_mtime < time.time() - UNBORN_S:
            os.unlink(name, dir_fd=folder)


# ---------------------------------------------------------------- both


def _line(connection: socket.socket, most: int, timeout_s: float) -> bytes:
    """One line; raises `ValueError` if it is incomplete or longer than `most`, `TimeoutError` if it is late."""
    deadline = time.monotonic() + timeout_s
    parts, size = [], 0
    while True:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(65536)
        parts.append(part)
        size += len(part)
        if not part or size > most:
            raise ValueError("no line, or a line that is too long")
        if b"\n" in part:  # what follows would be a second question
            return b"".join(parts)
