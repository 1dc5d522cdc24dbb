"""The process that forks commands and actors of the product: `python -m tests.support.forked.server SOCKET`."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import pickle
import random
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

GLOG: Final = "GLOG_minloglevel"
SOCKET: Final = "SPEEDO_FORKS"  # in the environment: where the server listens
FOLDER: Final = "SPEEDO_FORKED_ACTORS"  # the same: for the sockets of a command's actors
PADDING: Final = (
    24_000  # bytes of the server's environment and arguments, in which a fork writes its own
)
MOST_FILES: Final = 8
_LENGTH: Final = struct.Struct("<Q")
_GLOG_LEVEL: Final = (
    "_ZN3fLI17FLAGS_minloglevelE"  # fLI::FLAGS_minloglevel, read when glog was loaded
)
_ARG_START: Final = 48  # the first of four fields of /proc/self/stat, counted as proc(5) does


@dataclass(frozen=True, slots=True)
class Order:
    """What to fork: `function` is `module:name`, called with `arguments` and the descriptors that came behind the
    standard ones; `words` is the command line that others see."""

    function: str
    arguments: tuple[Any, ...]
    words: Sequence[str]
    environment: Mapping[str, str]
    folder: str


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


class Server:
    """Forks what it is asked for, in one thread, and sends the status of each fork to who has asked."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(128)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)  # its end is that of the tests
        self._asking: dict[int, socket.socket] = {}  # by the descriptor of the process

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    return
                if key.fileobj is self._listener:
                    self._fork()
                else:
                    self._ended(key.fd, key.data)

    def _fork(self) -> None:
        connection, _ = self._listener.accept()
        try:
            size, files, _, _ = socket.recv_fds(connection, _LENGTH.size, MOST_FILES)
            order: Order = pickle.loads(_exactly(connection, _LENGTH.unpack(size)[0]))
        except (OSError, struct.error):
            connection.close()
            return
        number = os.fork()
        if number == 0:
            self._leave_to_the_server(connection)
            become(order, files)
        for one in files:
            os.close(one)
        process = os.pidfd_open(number)
        self._selector.register(process, selectors.EVENT_READ, number)
        self._asking[process] = connection
        with suppress(OSError):
            connection.sendall(_LENGTH.pack(number))

    def _leave_to_the_server(self, connection: socket.socket) -> None:
        for process, asking in self._asking.items():
            os.close(process)
            asking.close()
        self._selector.close()
        self._listener.close()
        connection.close()

    def _ended(self, process: int, number: int) -> None:
        _, status = os.waitpid(number, 0)
        self._selector.unregister(process)
        os.close(process)
        with self._asking.pop(process) as asking, suppress(OSError):
            asking.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))


# ---------------------------------------------------------------- in a fork


def become(order: Order, files: Sequence[int]) -> None:
    """Be the process of this order, and end with its status."""
    status = 1
    try:
        os.setsid()
        for standard, file in enumerate(files[:3]):
            os.dup2(file, standard)
            os.close(file)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _take_environment(order)
        os.chdir(order.folder)
        _forget()
        _look_into_pythonpath()
        module, _, name = order.function.partition(":")
        getattr(importlib.import_module(module), name)(*order.arguments, *files[3:])
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


def _take_environment(order: Order) -> None:
    """Its environment and command line, also for those who read /proc."""
    os.environ.clear()  # the former strings are used by nobody then
    os.environ.update(order.environment)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    words, words_end, values, values_end = map(int, fields[_ARG_START - 3 :][:4])
    _write(order.words, words, words_end)
    _write([f"{name}={value}" for name, value in order.environment.items()], values, values_end)


def _write(texts: Sequence[str], start: int, end: int) -> None:
    block = "".join(f"{text}\0" for text in texts).encode()[: end - start]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block, len(block))


def _forget() -> None:
    """What modules have read of the server's environment when they were imported."""
    from speedo.system import failpoints

    failpoints._armed = failpoints._points()
    glog = ctypes.CDLL(_loaded("libglog"))
    level = ctypes.c_int.in_dll(glog, _GLOG_LEVEL)
    level.value = int(os.environ.get(GLOG, "2"))
    tempfile.tempdir = None
    random.seed()


def _loaded(library: str) -> str:
    """The file of a library that this process has loaded."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in maps if f"/{library}" in line)


def _look_into_pythonpath() -> None:
    """As Python does when it starts: its folders come first, and may have something to run at once."""
    folders = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[:0] = [one for one in folders if one not in sys.path]
    for folder in folders:
        if (own := Path(folder, "sitecustomize.py")).is_file():
            runpy.run_path(str(own), run_name="sitecustomize")


def main(path: str) -> None:
    from tests.support.forked.actors import take_the_place_of_ray
    from tests.support.forked.programs import take_the_place_of_children

    take_the_place_of_ray()
    take_the_place_of_children()
    import speedo.actors.control_answers
    import speedo.actors.launch
    import speedo.actors.master_process
    import speedo.actors.server_host
    import speedo.actors.worker_host
    import speedo.cli.main
    import speedo.engines.net_trial
    import speedo.run.open_store  # noqa: F401
    from speedo.engines.caffe_import import load_caffe

    load_caffe()
    with suppress(ImportError):
        import torch  # noqa: F401
    atexit._clear()  # a fork has its own; Ray would shut itself down
    gc.collect()
    gc.freeze()
    server = Server(path)
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    from tests.support.forked.server import main as imported_main  # its messages are of this name

    imported_main(sys.argv[1])
