"""Actors on this node only, and without Ray's automatic restarts and retries."""

from __future__ import annotations

from concurrent.futures import Future
from importlib import import_module
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def actor_class(
    kind: type,
    *,
    name: str | None = None,
    threads: int = 1,
    made_later: bool = False,
    **options: Any,
) -> Any:
    """Whose `remote` starts an actor of this class on the node of this process, unless Ray's `options` say otherwise.

    One that is `made_later` loads what it needs, and gets the arguments by its method `make`: calls wait until then.
    Ray must not repeat calls: SpeeDO itself guarantees that a result is merged once, and a repeated call could merge it
    twice.
    """
    node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    ours = {
        "num_cpus": 0,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": threads,
        "scheduling_strategy": node,
        "name": name,
    }
    made: Any = ray.remote(_called_by_name(kind, made_later=made_later))
    return made.options(**{**ours, **options})


def _called_by_name(kind: type, *, made_later: bool) -> type:
    """A class with the methods of this one, whose module is imported in the actor's process alone.

    Ray imports the class of an actor also wherever a handle of it arrives: each worker would import the master.
    """
    module, qualified = kind.__module__, kind.__qualname__

    def load(self: Any, *arguments: Any, **named: Any) -> None:
        self.kind, self.made = getattr(import_module(module), qualified), Future()
        if not made_later:
            make(self, *arguments, **named)

    def make(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            self.made.set_result(self.kind(*arguments, **named))
        except BaseException as error:
            self.made.set_exception(error)
            raise

    def calling(method: str) -> Any:
        return lambda self, *given, **named: getattr(self.made.result(), method)(*given, **named)

    methods = {one: calling(one) for one in dir(kind) if not one.startswith("_")}
    called = type(kind.__name__, (), {"__init__": load, "make": make, **methods})
    # Ray disassembles what a class defines itself, to find those that are exported too often.
    return type(kind.__name__, (called,), {})
