"""The functions of Ray that a run on one machine calls, over processes that `server.py` forks.

An actor is a process with a socket: calls of one caller are carried out in their order, answers come in any. It ends
with its owner, who has started it. Errors are Ray's own classes.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import ray
from ray import cloudpickle
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError

from tests.support.forked.server import FOLDER, SOCKET, Order, ask

_LENGTH: Final = struct.Struct("<Q")
_OWNS: Final = "owns"
_numbers: Final = count()


# ---------------------------------------------------------------- what the product has of an actor


@dataclass(frozen=True)
class Handle:
    """An actor; may be sent to others."""

    _path: str
    _pid: int

    def __getattr__(self, name: str) -> Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return Method(self, name)


@dataclass(frozen=True)
class Method:
    handle: Handle
    name: str

    def remote(self, *arguments: Any, **named: Any) -> Reference:
        return Reference(_link_to(self.handle).call(self.name, arguments, named))


class Reference:
    """An answer that may not have come yet."""

    def __init__(self, answer: futures.Future[Any]) -> None:
        self._answer = answer

    def future(self) -> futures.Future[Any]:
        return self._answer


class Link:
    """This process's connection to an actor."""

    def __init__(self, path: str, *, owns: bool) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._calls: dict[int, tuple[str, futures.Future[Any]]] = {}
        self._ids, self._lock, self._gone = count(), threading.Lock(), False
        try:
            self._socket.connect(path)
            if owns:
                _send(self._socket, _OWNS)
        except OSError:
            self._gone = True
            return
        threading.Thread(target=self._listen, name="actor", daemon=True).start()

    def call(
        self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> futures.Future[Any]:
        answer: futures.Future[Any] = futures.Future()
        body = cloudpickle.dumps((name, arguments, named))
        with self._lock:
            if not self._gone:
                number = next(self._ids)
                self._calls[number] = (name, answer)
                with suppress(OSError):  # the listener says so
                    _send(self._socket, number, body)
                return answer
        answer.set_exception(ActorDiedError())
        return answer

    def _listen(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                number, good, body = _receive(self._socket)
                with self._lock:
                    name, answer = self._calls.pop(number)
                if good:
                    answer.set_result(pickle.loads(body))
                else:
                    answer.set_exception(_as_ray_has_it(name, *pickle.loads(body)))
        with self._lock:
            self._gone, left = True, list(self._calls.values())
            self._calls.clear()
        for _, answer in left:
            answer.set_exception(ActorDiedError())


def _as_ray_has_it(name: str, error: BaseException, trace: str, created: bool) -> Exception:
    failed = RayTaskError(name, trace, error)
    if not created:
        return ActorDiedError(failed)
    as_cause: Exception = failed.as_instanceof_cause()
    return as_cause


_links: dict[str, Link] = {}
_linking = threading.Lock()


def _link_to(handle: Handle, *, owns: bool = False) -> Link:
    with _linking:
        if handle._path not in _links:
            _links[handle._path] = Link(handle._path, owns=owns)
        return _links[handle._path]


def _send(connection: socket.socket, *values: Any) -> None:
    body = pickle.dumps(values)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def _receive(connection: socket.socket) -> tuple[Any, ...]:
    """Raises `EOFError` at the end."""
    read = connection.makefile("rb", buffering=0)
    values: tuple[Any, ...] = pickle.loads(_exactly(read, _LENGTH.unpack(_exactly(read, 8))[0]))
    return values


def _exactly(read: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = read.read(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


# ---------------------------------------------------------------- Ray's functions


class ActorClass:
    def __init__(self, kind: type, threads: int = 1, name: str | None = None) -> None:
        self._kind, self._threads, self._name = kind, threads, name

    def options(self, *, max_concurrency: int = 1, name: str | None = None, **_: Any) -> ActorClass:
        return ActorClass(self._kind, max_concurrency, name)

    def remote(self, *arguments: Any, **named: Any) -> Handle:
        folder = Path(os.environ[FOLDER])
        path = str(folder / f"{os.getpid()}-{next(_numbers)}")
        body = cloudpickle.dumps((self._kind, arguments, named))
        words = (f"ray::{self._kind.__name__}",)
        order = Order(
            f"{__name__}:be_actor",
            (body, self._threads, path),
            words,
            dict(os.environ),
            os.getcwd(),
        )
        with socket.socket(socket.AF_UNIX) as listener, open(os.devnull, "r+b") as nothing:
            listener.bind(path)
            listener.listen(64)
            log = os.open(folder / "actors.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            files = (nothing.fileno(), log, log, listener.fileno())
            number, connection = ask(order, files, os.environ[SOCKET])
            os.close(log)
        connection.close()  # nobody here waits for its status
        handle = Handle(path, number)
        _link_to(handle, owns=True)
        if self._name is not None:
            (folder / self._name).write_bytes(pickle.dumps(handle))
        return handle


def get(references: Any, *, timeout: float | None = None) -> Any:
    if isinstance(references, Sequence):
        return [get(one, timeout=timeout) for one in references]
    try:
        return references.future().result(timeout)
    except futures.TimeoutError:
        raise GetTimeoutError(f"no answer within {timeout} s") from None


def wait(
    references: Sequence[Reference], *, num_returns: int = 1, timeout: float | None = None
) -> tuple[list[Reference], list[Reference]]:
    assert num_returns == 1
    waited = {one.future(): one for one in references}
    done, _ = futures.wait(waited, timeout, return_when=futures.FIRST_COMPLETED)
    ready = [one for one in references if one.future() in done][:1]
    return ready, [one for one in references if one not in ready]


def kill(handle: Handle, *, no_restart: bool = True) -> None:
    """As Ray, which asks the process to end: one that is stopped does not hear it."""
    with suppress(OSError):
        state = Path(f"/proc/{handle._pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state != "T":
            os.kill(handle._pid, signal.SIGKILL)


def get_actor(name: str, namespace: str | None = None) -> Handle:
    try:
        handle: Handle = pickle.loads(Path(os.environ[FOLDER], name).read_bytes())
    except FileNotFoundError:
        raise ValueError(f"no actor has the name {name!r}") from None
    return handle


class Context:
    current_actor: Handle | None = None

    def get_node_id(self) -> str:
        return "0" * 56


_context: Final = Context()


class Head:
    """In place of a Ray head: there is nothing that could die."""

    def dead(self) -> str | None:
        return None

    def load(self) -> None:
        return None

    def connected(self) -> Any:
        return nullcontext(self)

    def require_token(self) -> None:
        return None


@contextmanager
def head(
    token: str, host: str, port: int | None, note: Callable[[str], None], actors: int = 1
) -> Iterator[Head]:
    yield Head()


def take_the_place_of_ray() -> None:
    """In this process and its forks."""
    from speedo.actors.ray_node import session

    own: dict[str, Any] = {
        "remote": ActorClass,
        "get": get,
        "wait": wait,
        "kill": kill,
        "get_actor": get_actor,
        "get_runtime_context": lambda: _context,
    }
    for name, function in own.items():
        setattr(ray, name, function)
    session.head = head  # type: ignore[assignment]


# ---------------------------------------------------------------- in the actor


class Calls:
    """What callers ask of this actor, in the order in which it came."""

    def __init__(self, listener: socket.socket) -> None:
        self.queue: queue.SimpleQueue[tuple[socket.socket, threading.Lock, int, bytes]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=self._listen, args=(caller,), daemon=True).start()

    def _listen(self, caller: socket.socket) -> None:
        owner, lock = False, threading.Lock()
        with suppress(OSError, EOFError):
            while True:
                values = _receive(caller)
                if values == (_OWNS,):
                    owner = True
                else:
                    self.queue.put((caller, lock, *values))
        if owner:
            os.kill(os.getpid(), signal.SIGKILL)


def be_actor(body: bytes, threads: int, path: str, listening: int) -> None:
    _links.clear()
    _context.current_actor = Handle(path, os.getpid())
    listener = socket.socket(fileno=listening)
    calls = Calls(listener)
    failed: tuple[BaseException, str] | None = None
    try:
        kind, arguments, named = pickle.loads(body)
        instance = kind(*arguments, **named)
    except BaseException as error:
        failed = error, traceback.format_exc()
        print(failed[1], file=sys.stderr)

    def carry_out(caller: socket.socket, lock: threading.Lock, number: int, call: bytes) -> None:
        try:
            if failed is not None:
                answer, good = _packed(*failed, False), False
            else:
                name, given, by_name = pickle.loads(call)
                answer, good = cloudpickle.dumps(getattr(instance, name)(*given, **by_name)), True
        except BaseException as error:
            answer, good = _packed(error, traceback.format_exc(), True), False
        with lock, suppress(OSError):
            _send(caller, number, good, answer)

    if threads == 1:
        while True:
            carry_out(*calls.queue.get())
    pool = futures.ThreadPoolExecutor(threads)
    while True:
        pool.submit(carry_out, *calls.queue.get())


def _packed(error: BaseException, trace: str, created: bool) -> bytes:
    try:
        body: bytes = cloudpickle.dumps((error, trace, created))
        pickle.loads(body)
    except Exception:
        body = cloudpickle.dumps((RuntimeError(str(error)), trace, created))
    return body
