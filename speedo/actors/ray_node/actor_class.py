"""Actors on this node only, and without Ray's automatic restarts and retries."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def actor_class(kind: type, *, name: str | None = None, threads: int = 1, **options: Any) -> Any:
    """Whose `remote` starts an actor of this class on the node of this process, unless Ray's `options` say otherwise.

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
    made: Any = ray.remote(_called_by_name(kind))
    return made.options(**{**ours, **options})


def _called_by_name(kind: type) -> type:
    """A class with the methods of this one, whose module is imported in the actor's process alone.

    Ray imports the class of an actor also wherever a handle of it arrives: each worker would import the master.
    """
    module, qualified = kind.__module__, kind.__qualname__

    def make(self: Any, *arguments: Any, **named: Any) -> None:
        self.made = getattr(import_module(module), qualified)(*arguments, **named)

    def calling(method: str) -> Any:
        return lambda self, *arguments, **named: getattr(self.made, method)(*arguments, **named)

    methods = {one: calling(one) for one in dir(kind) if not one.startswith("_")}
    return type(kind.__name__, (), {"__init__": make, **methods})
