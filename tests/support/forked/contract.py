"""What the product relies on in an actor: tried by the same program on Ray and on forks; it prints what it saw."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from speedo.actors.ray_node.actor_class import actor_class
from speedo.errors import StoreError

ANSWER_S = 60.0


class Adder:
    """Keeps what it is asked, in order."""

    def __init__(self, start: list[int]) -> None:
        self.seen = list(start)
        self.both = threading.Barrier(2)

    def add(self, number: int) -> list[int]:
        self.seen.append(number)
        return self.seen

    def fail(self) -> None:
        raise StoreError("no room")

    def fail_oddly(self) -> None:
        raise KeyError("odd")

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def meet(self) -> int:
        """Answers once two threads are here."""
        return self.both.wait(ANSWER_S)

    def pid(self) -> int:
        return os.getpid()

    def ask(self, other: Any) -> Any:
        """What another actor answers."""
        return ray.get(other.add.remote(7), timeout=ANSWER_S)

    def start_another(self) -> tuple[Any, int]:
        """An actor that this one owns."""
        self.own = actor_class(Adder).remote([])
        return self.own, ray.get(self.own.pid.remote(), timeout=ANSWER_S)

    def myself(self) -> Any:
        return ray.get_runtime_context().current_actor


class Refusing:
    def __init__(self) -> None:
        raise ValueError("cannot be made")

    def pid(self) -> int:
        return os.getpid()


def kind_of(call: Any) -> str:
    """The error of an answer, in the terms by which the product tells them apart."""
    try:
        ray.get(call, timeout=ANSWER_S)
    except RayTaskError as error:
        store = " and of the store" if isinstance(error, StoreError) else ""
        return f"task: {type(error.cause).__name__}: {error.cause}{store}"
    except RayActorError:
        return "actor"
    except GetTimeoutError:
        return "timeout"
    except RayError as error:
        return type(error).__name__
    return "none"


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def found() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    one = actor_class(Adder, name="adder").remote([1])
    calls = [one.add.remote(number) for number in (2, 3, 4)]
    seen["answers in order"] = ray.get(calls, timeout=ANSWER_S)[-1]
    seen["a named actor"] = ray.get(ray.get_actor("adder").add.remote(5), timeout=ANSWER_S)[-1]
    try:
        ray.get_actor("nobody")
    except ValueError:
        seen["an unknown name"] = "ValueError"
    seen["an error of ours"] = kind_of(one.fail.remote())
    seen["another error"] = kind_of(one.fail_oddly.remote())
    error = one.fail.remote().future().exception(ANSWER_S)
    seen["error of a future"] = [isinstance(error, kind) for kind in (RayTaskError, StoreError)]
    slow = one.sleep.remote(1.0)
    try:
        ray.get(slow, timeout=0.01)
    except GetTimeoutError as error:
        seen["late"] = isinstance(error, TimeoutError)
    seen["not ready"] = [len(part) for part in ray.wait([slow], timeout=0)]
    seen["ready"] = [len(part) for part in ray.wait([slow, one.pid.remote()], timeout=ANSWER_S)]
    seen["an answer asked twice"] = [ray.get(slow, timeout=ANSWER_S) for _ in range(2)]
    called = threading.Event()
    one.pid.remote().future().add_done_callback(lambda answer: called.set())
    seen["called back"] = called.wait(ANSWER_S)
    several = actor_class(Adder, threads=2).remote([])
    meeting = [several.meet.remote(), several.meet.remote()]
    seen["two threads meet"] = sorted(ray.get(meeting, timeout=ANSWER_S))
    seen["one actor asks another"] = ray.get(several.ask.remote(one), timeout=ANSWER_S)[-1]
    itself = ray.get(one.myself.remote(), timeout=ANSWER_S)
    pid = ray.get(one.pid.remote(), timeout=ANSWER_S)
    seen["it knows itself"] = ray.get(itself.pid.remote(), timeout=ANSWER_S) == pid
    seen["processes of their own"] = len({pid, os.getpid()}) == 2
    owned, owned_pid = ray.get(several.start_another.remote(), timeout=ANSWER_S)
    seen["an actor handed on"] = ray.get(owned.add.remote(8), timeout=ANSWER_S)
    ray.kill(several)
    seen["it ends with its owner"] = is_gone(owned_pid)
    waiting = one.sleep.remote(1000.0)
    ray.kill(one)
    seen["killed under a call"] = kind_of(waiting)
    seen["called when gone"] = kind_of(one.pid.remote())
    seen["its process is gone"] = is_gone(pid)
    seen["never made"] = kind_of(actor_class(Refusing).remote().pid.remote())
    return seen


def main() -> None:
    print(json.dumps(found()))
