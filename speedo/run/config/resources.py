"""What each worker asks of a Ray cluster (`--ray resources=...`): `cpu=1,gpu=0,NAME=1`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from speedo.errors import ConfigError
from speedo.system.bounds import said

# Ray's own names of what it counts by itself; all other names are custom resources of the cluster.
_OF_RAY: Final = {"cpu": "CPU", "gpu": "GPU", "memory": "memory"}
_RESERVED: Final = ("object_store_memory", "bundle", "node:")
_UNIT: Final = 0.0001  # Ray counts in steps of this


@dataclass(frozen=True, slots=True)
class Resources:
    """What one worker needs: cores, GPUs, bytes of memory, and units of the cluster's own resources."""

    cpu: float = 1.0
    gpu: float = 0.0
    memory: float = 0.0
    others: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        given = {"cpu": self.cpu, "gpu": self.gpu, "memory": self.memory, **self.others}
        return ",".join(f"{name}={_written(amount)}" for name, amount in given.items() if amount)

    @property
    def bundle(self) -> dict[str, float]:
        """The same by Ray's names, for a placement group."""
        named = {"CPU": self.cpu, "GPU": self.gpu, "memory": self.memory, **self.others}
        return {name: amount for name, amount in named.items() if amount}

    @property
    def options(self) -> dict[str, Any]:
        """The same as options of an actor."""
        found: dict[str, Any] = {"num_cpus": self.cpu, "num_gpus": self.gpu}
        if self.memory:
            found["memory"] = self.memory
        return {**found, "resources": dict(self.others)} if self.others else found


def parse_resources(text: str) -> Resources:
    """Raises `ConfigError` with every problem. What is not named is as by default: one core."""
    found: dict[str, float] = {}
    problems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, amount = (word.strip() for word in part.partition("="))
        key = name.lower() if name.lower() in _OF_RAY else name
        value = _number(amount)
        if not sign or not name:
            problems.append(f"resources has {said(part)}; write NAME=AMOUNT, as in cpu=1")
        elif key in found:
            problems.append(f"resources names {name} twice; give one amount")
        elif key.startswith(_RESERVED):
            problems.append(f"resources names {name}, which Ray gives out by itself; leave it out")
        elif value is None:
            problems.append(f"resources has {said(amount)} of {name}; use a number from 0 on")
        elif value > 1 and value != int(value):
            problems.append(f"resources has {amount} of {name}; above 1 use a whole number")
        elif 0 < value < _UNIT:
            problems.append(f"resources has {amount} of {name}; use 0, or {_UNIT:g} or more")
        else:
            found[key] = value
    others = {name: value for name, value in found.items() if name not in _OF_RAY and value}
    made = Resources(found.get("cpu", 1.0), found.get("gpu", 0.0), found.get("memory", 0.0), others)
    if not problems and not made.bundle:
        problems.append("resources asks for nothing; give at least one, for example cpu=1")
    if problems:
        raise ConfigError(problems)
    return made


def _written(amount: float) -> str:
    """Bytes without an exponent."""
    return str(int(amount)) if amount == int(amount) else f"{amount:g}"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
