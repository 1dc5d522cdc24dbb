"""Actors on this node only, and without Ray's automatic restarts and retries."""

from __future__ import annotations

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
    made: Any = ray.remote(kind)
    return made.options(**{**ours, **options})
