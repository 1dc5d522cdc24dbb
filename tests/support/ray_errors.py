"""An error of each class of Ray's, and a Ray whose n-th answer is late or fails: what cannot be provoked at will.

`python -m tests.support.ray_errors` prints what each class of the installed Ray means.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from ray import exceptions
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

from speedo.actors.ray_errors import meaning_of
from speedo.errors import ClusterError, FencedError, StoreUnavailableError

# What a called code raises; the last is a bug.
RAISED: Final = (
    StoreUnavailableError("Redis is away"),
    FencedError("another master has the run"),
    ActorDiedError(),
    GetTimeoutError("late"),
    ClusterError("no data there"),
    ZeroDivisionError("by a bug"),
)
WORDS: Final = "in words of Ray"


def errors_of_ray() -> dict[str, Exception]:
    """One of each class, by its name; of `RayTaskError` one for each of `RAISED`."""
    kinds = [one for one in vars(exceptions).values() if inspect.isclass(one)]
    found: dict[str, Exception] = {
        kind.__name__: _made(kind)
        for kind in kinds
        if issubclass(kind, RayError) and kind is not RayTaskError
    }
    for cause in RAISED:
        raised = RayTaskError("method", "traceback", cause).as_instanceof_cause()
        found[f"RayTaskError of {type(cause).__name__}"] = raised
    return found


def _made(kind: type[RayError]) -> RayError:
    """With a text, or whatever else it wants."""
    if kind.__init__ is Exception.__init__:
        return kind(WORDS)
    values = {
        "actor_id": b"\x01" * 16,
        "owner_address": b"",
        "ray_exception": SimpleNamespace(language=0, formatted_exception_string=WORDS),
    }
    wanted = [
        one
        for one in list(inspect.signature(kind.__init__).parameters.values())[1:]
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    return kind(*(values.get(one.name, WORDS) for one in wanted))


@dataclass(eq=False)
class Reference:
    """An answer of a stub. `late`: so many times it is not there yet when it is waited for."""

    value: Any = None
    error: Exception | None = None
    late: int = 0

    def future(self) -> Future[Any]:
        made: Future[Any] = Future()
        if self.error is None:
            made.set_result(self.value)
        else:
            made.set_exception(self.error)
        return made


class Stub:
    """An actor: `answers` are values, or functions of the arguments, by method."""

    def __init__(self, ray: StubRay, name: str, answers: Mapping[str, Any]) -> None:
        self.ray, self.name, self.answers = ray, name, answers
        self.asked: list[str] = []

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=partial(self._ask, method))

    def _ask(self, method: str, *arguments: Any) -> Reference:
        self.asked.append(method)
        count = self.asked.count(method)
        for key in ((self.name, method, count), (self.name, len(self.asked))):
            if (fault := self.ray.faults.get(key)) is not None:
                return fault()
        value = self.answers.get(method)
        return Reference(value(*arguments) if callable(value) else value)


@dataclass(eq=False)
class StubRay:
    """In place of the module `ray`, for code that hears actors.

    `faults` are the answers that differ, by (actor, n) of all that it is asked, or (actor, method, n).
    """

    faults: dict[Any, Callable[[], Reference]] = field(default_factory=dict)
    there: list[dict[str, Any]] = field(default_factory=list)
    actors: list[Stub] = field(default_factory=list)
    killed: list[Stub] = field(default_factory=list)

    def actor(self, name: str, answers: Mapping[str, Any]) -> Stub:
        made = Stub(self, name, answers)
        self.actors.append(made)
        return made

    def nodes(self) -> list[dict[str, Any]]:
        return self.there

    def wait(
        self, references: list[Reference], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Reference], list[Reference]]:
        ready = [one for one in references if one.late <= 0]
        for one in references:
            one.late -= 1
        return ready, [one for one in references if one not in ready]

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        if reference.late > 0 and timeout is not None:
            raise GetTimeoutError("late")
        if reference.error is not None:
            raise reference.error
        return reference.value

    def kill(self, actor: Stub) -> None:
        self.killed.append(actor)


if __name__ == "__main__":
    print(json.dumps({name: meaning_of(one).value for name, one in errors_of_ray().items()}))
