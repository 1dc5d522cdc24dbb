"""The process that forks commands and what they start: `... -m tests.support.forked.server SOCKET OWNER`.

It ends with its owner, a process of tests.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import pickle
import pkgutil
import random
import re
import runpy
import select
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import speedo
from tests.support.forked import interpreter

GLOG: Final = "GLOG_minloglevel"
# Bytes of the server's environment and arguments, in which a fork writes its own.
PADDING: Final = 24_000
MOST_FILES: Final = 64
LOG: Final = 900  # the least number of that file: no program has so many
_LENGTH: Final = struct.Struct("<Q")
_PEER: Final = struct.Struct("3i")  # of SO_PEERCRED: process, user, group
# FLI::FLAGS_minloglevel, read when glog was loaded.
_GLOG_LEVEL: Final = "_ZN3fLI17FLAGS_minloglevelE"
_SET_MEMORY, _ARG_END, _ENV_END = 35, 9, 11  # of prctl(2)
_COLLAPSE: Final = 25  # of madvise(2)
_HUGE: Final = 1 << 21  # bytes of a huge page
_ARG_START: Final = 48  # the first of four fields of /proc/self/stat, counted as proc(5) does


@dataclass(frozen=True, slots=True)
class Order:
    """The command `speedo` with these arguments, where others see `words` as its command line, and what it starts has
    `python` for Python."""

    arguments: tuple[str, ...]
    words: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    python: str


def ask(order: Order, files: Sequence[int], at: str) -> tuple[int, socket.socket]:
    """The number of the new process, and where its status comes once it has ended; `files` begin with the standard."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(at)
    body = pickle.dumps(order)
    socket.send_fds(connection, [_LENGTH.pack(len(body))], list(files))
    connection.sendall(body)
    return int(_LENGTH.unpack(_exactly(connection, _LENGTH.size))[0]), connection


def status_of(connection: socket.socket) -> int:
    """The exit status, as `subprocess` has it, from a connection that can be read."""
    answer = connection.recv(4)
    return int.from_bytes(answer, "little", signed=True) if answer else -signal.SIGKILL


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the server of forks is gone")
        data += more
    return data


# ---------------------------------------------------------------- the server


ray_flags: RayFlags
_log: int  # a file of the server's, which forks keep, too


class Server:
    """Forks what it is asked for, in one thread, and sends the status of each fork to who has asked.

    A fork ends with who has asked for it. What came with the question only the fork has open: programs of the product
    end all that has files of some folders open.
    """

    def __init__(self, path: str, owner: int) -> None:
        self._owner = os.pidfd_open(owner)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(128)
        self._hung_up = select.epoll()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._hung_up, selectors.EVENT_READ)
        self._selector.register(self._owner, selectors.EVENT_READ)
        self._asking: dict[int, socket.socket] = {}  # by the descriptor of the process
        self._asked: dict[int, int] = {}  # that, by the descriptor of the connection

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._owner:
                    return
                if key.fileobj is self._listener:
                    self._fork()
                elif key.fileobj is self._hung_up:
                    for connection, _ in self._hung_up.poll(0):
                        self._hung_up.unregister(connection)
                        signal.pidfd_send_signal(self._asked.pop(connection), signal.SIGKILL)
                elif key.fd in self._asking:
                    self._ended(key.fd, key.data)

    def _fork(self) -> None:
        connection, _ = self._listener.accept()
        number = os.fork()
        if number == 0:
            self._leave_to_the_server()
            become_what_is_asked(connection)
        process = os.pidfd_open(number)
        self._selector.register(process, selectors.EVENT_READ, number)
        self._hung_up.register(connection, select.EPOLLRDHUP)
        self._asking[process] = connection
        self._asked[connection.fileno()] = process

    def _leave_to_the_server(self) -> None:
        os.close(self._owner)
        for process, asking in self._asking.items():
            os.close(process)
            asking.close()
        self._selector.close()
        self._hung_up.close()
        self._listener.close()

    def _ended(self, process: int, number: int) -> None:
        _, status = os.waitpid(number, 0)
        self._selector.unregister(process)
        os.close(process)
        asking = self._asking.pop(process)
        if self._asked.pop(asking.fileno(), None) is not None:
            self._hung_up.unregister(asking)  # a fork that just begins may still have it open
        with asking, suppress(OSError):
            asking.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))


# ---------------------------------------------------------------- in a fork


def become_what_is_asked(connection: socket.socket) -> None:
    """Be the process that this connection asks for."""
    with connection:
        try:
            size, files, _, _ = socket.recv_fds(connection, _LENGTH.size, MOST_FILES)
            body = _exactly(connection, _LENGTH.unpack(size)[0])
            asks = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            connection.sendall(_LENGTH.pack(os.getpid()))
        except (OSError, struct.error):  # who has asked is gone
            os._exit(1)
    if body[:1] == pickle.PROTO:
        become(pickle.loads(body), files)
    become_python(_PEER.unpack(asks)[0], files, [int(one) for one in body.split(b",")])


def become(order: Order, files: Sequence[int]) -> None:
    """Be the process of this order, and end with its status."""

    def run() -> None:
        for standard, file in enumerate(files[:3]):
            os.dup2(file, standard)
            os.close(file)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _take_environment(order.words, order.environment)
        os.chdir(order.folder)
        _begin(order.python, order.words)
        from speedo.cli.main import main

        sys.argv = [str(interpreter.ROOT / "speedo" / "__main__.py"), *order.arguments]
        sys.path.append("")
        main()

    _end_with(run)


def become_python(program: int, files: Sequence[int], numbers: Sequence[int]) -> None:
    """Be what was typed behind the name of this process's program, which stands for Python."""

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        name, rest, environment = interpreter.typed(program)
        words = [interpreter.REAL, *rest]
        interpreter.take_what_a_child_has(program, files, numbers)
        _take_environment(words, environment)
        _begin(name, words)
        interpreter.run(rest)

    _end_with(begin)


def _end_with(run: Callable[[], None]) -> None:
    status = 1
    try:
        os.setsid()
        run()
        status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _begin(python: str, words: Sequence[str]) -> None:
    """What Python does when it starts, with the environment and files that this process has now."""
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    sys.executable = python
    faulthandler.enable(_log)  # a native death leaves the stack of Python there
    _forget()
    _look_into_pythonpath(words)


def _take_environment(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Its environment and command line, also for those who read /proc."""
    os.environ.clear()  # the former strings are used by nobody then
    os.environ.update(environment)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end, values, values_end = map(int, fields[_ARG_START - 3 :][:4])
    _write(words, start, end, _ARG_END)
    pairs = [f"{name}={value}" for name, value in environment.items()]
    _write(pairs, values, values_end, _ENV_END)


def _write(texts: Sequence[str], start: int, end: int, which_end: int) -> None:
    block = "".join(f"{text}\0" for text in texts).encode()[: end - start]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block, len(block))
    # Who reads it gets no more than that, if this may be said; else zeros follow.
    ctypes.CDLL(None).prctl(_SET_MEMORY, which_end, ctypes.c_ulong(start + len(block)), 0, 0)


def _forget() -> None:
    """What modules have read of the server's environment when they were imported."""
    from speedo.actors.ray_node import session
    from speedo.system import failpoints

    failpoints._armed = failpoints._points()
    ray_flags.read_again(os.environ)
    session.load_ray = partial(_load_ray_again, session.load_ray)
    ray: Any = sys.modules["ray"]
    ray.init = partial(_init_ray, ray.init)
    glog = ctypes.CDLL(_loaded("libglog"))
    level = ctypes.c_int.in_dll(glog, _GLOG_LEVEL)
    level.value = int(os.environ.get(GLOG, "2"))
    tempfile.tempdir = None
    random.seed()


class RayFlags:
    """What Ray's library has read of the environment when it was loaded, and Python cannot set: two strings.

    The server is started with other values, by which they are found: the bytes behind a length and a capacity, as the
    std::string has them that Ray is built with (_GLIBCXX_USE_CXX11_ABI=0).
    """

    _STANDING_IN: Final = {"RAY_JOB_ID": "speedo-test-job", "RAY_RAYLET_PID": "speedo-test-pid"}
    _HEAD_BYTES: Final = 24  # length, capacity, references

    def __init__(self, load: Callable[[], object]) -> None:
        os.environ.update(self._STANDING_IN)
        load()
        self._places = dict[str, int]()
        patterns = {name: self._pattern(text) for name, text in self._STANDING_IN.items()}
        for line in Path("/proc/self/maps").read_text().splitlines():
            where, rights, *_, last = line.split()
            start, end = (int(one, 16) for one in where.split("-"))
            if rights.startswith("rw") and not last.startswith("[v"):
                content = ctypes.string_at(start, end - start)
                for name, pattern in patterns.items():
                    if (found := pattern.search(content)) is not None:
                        self._places.setdefault(name, start + found.start())
        if lacking := patterns.keys() - self._places.keys():
            raise LookupError(f"Ray has {', '.join(lacking)} nowhere as it was found before")

    @staticmethod
    def _pattern(text: str) -> re.Pattern[bytes]:
        """Not what it finds: plain bytes would find themselves, and forks would write into any memory of Python's.

        What is between the references and the text is left as it was in memory, often not 0.
        """
        size = f"\\x{len(text):02x}\\x00{{7}}"  # its length, and again its capacity
        return re.compile(f"{size}{size}\\x00{{4}}[\\s\\S]{{4}}{text}".encode())

    def read_again(self, environment: Mapping[str, str]) -> None:
        for name, place in self._places.items():
            text = environment.get(name, "").encode()
            ctypes.memmove(place, len(text).to_bytes(8, "little"), 8)
            ctypes.memmove(place + self._HEAD_BYTES, text + b"\0", len(text) + 1)
        config: Any = sys.modules["ray._raylet"].Config
        config.initialize(json.dumps({"AUTH_MODE": environment.get("RAY_AUTH_MODE", "disabled")}))


def _load_ray_again(load: Callable[[str], None], token: str) -> None:
    """Ray was imported in the server, with no settings of its own."""
    session: Any = sys.modules["speedo.actors.ray_node.session"]
    session.set_environment(token)
    load(token)


def _init_ray(init: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    ray_flags.read_again(os.environ)
    return init(*arguments, **options)


def _loaded(library: str) -> str:
    """The file of a library that this process has loaded."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in maps if f"/{library}" in line)


def _look_into_pythonpath(words: Sequence[str]) -> None:
    """As Python does when it starts: its folders come first, and may have something to run at once."""
    folders = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[:0] = [one for one in folders if one not in sys.path]
    for folder in folders:
        if interpreter.has_others(folder):
            os.execv(interpreter.REAL, words)
        if (own := Path(folder, "sitecustomize.py")).is_file():
            runpy.run_path(str(own), run_name="sitecustomize")


def _import_all() -> None:
    """All modules of the product, and Ray's own command.

    None of them may draw one of Ray's random names: all forks would draw the same ones after it.
    """
    for module in pkgutil.walk_packages(speedo.__path__, "speedo."):
        if not module.name.endswith("__main__") and not module.name.startswith(
            "speedo.integrations."
        ):
            importlib.import_module(module.name)
    from speedo.actors.ray_node import lean_import, start_command

    (entry,) = entry_points(group="console_scripts", name="ray")
    with lean_import.left_for_later():
        start_command.load_command(entry)
    importlib.import_module("h5py")  # as a trial of the nets does


def _use_huge_pages() -> None:
    """Half the price of a fork, which copies a list of all pages; where the system cannot, all goes on as before."""
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, rights, *_, last = line.split()
        if rights == "rw-p" and last in ("0", "[heap]"):
            start, end = (int(one, 16) for one in where.split("-"))
            for at in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                madvise(ctypes.c_void_p(at), ctypes.c_size_t(_HUGE), _COLLAPSE)


def main(path: str, owner: int) -> None:
    from speedo.actors.ray_node import lean_import, session

    os.environ.update(session.environment("none"))  # Ray reads some of it when it is imported
    global ray_flags, _log
    ray_flags = RayFlags(lean_import.import_ray)
    from speedo.engines.caffe_import import load_caffe

    _import_all()
    load_caffe()
    with suppress(ImportError):
        import torch  # noqa: F401
    atexit._clear()  # a fork has its own; Ray would shut itself down
    gc.collect()
    gc.freeze()
    _use_huge_pages()
    _log = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, LOG)
    server = Server(path, owner)
    print("ready", flush=True)
    server.serve()
    os._exit(0)  # its libraries do not end well in a process that has cleared their last calls


if __name__ == "__main__":
    from tests.support.forked.server import main as imported_main  # its messages are of this name

    imported_main(sys.argv[1], int(sys.argv[2]))
