"""The nouns of the checker: what it is told of a run, and a turn as it remembers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from speedo.messages import Train

KINDS = {"DELTA": 2, "WEIGHTS": 3, "GRADIENT": 4}


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Turn:
    """A turn that was issued and not answered yet."""

    train: Train
    samples: int
    accepted_before: int
    issued: float
    event: int
    patience: int = 1


@dataclass(frozen=True)
class Rules:
    """What the checker is told of a run: the plan and the options, as a user would give them."""

    options: Mapping[str, Any]
    batch: int
    max_iter: int
    workers: int
    min_workers: int
    test_interval: int
    snapshot: int
    longest_turn_s: float
    start_s: float
    join_s: float
    gather_s: float = 0.0
