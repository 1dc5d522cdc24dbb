"""What a mode can be told, and what of it cannot work; `config.py` adds what a run as a whole is told."""

from __future__ import annotations

import math
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from speedo.bounds import LARGEST_COUNT, LARGEST_INT32, digits, whole

PlainMode = Literal["sync", "async", "partial", "weed-out", "easgd"]
Mode = Literal["sync", "async", "partial", "weed-out", "easgd", "hybrid"]
MODES: Final = get_args(Mode)
PLAIN_MODES: Final = get_args(PlainMode)

DEFAULT_MAX_ADVANCE: Final = 2  # the bound of the worked example in docs/modes.md
DEFAULT_WINDOW: Final = 3  # likewise; the bound in force is max(window, workers)

# What mode hybrid takes per phase alone, with the value that says nothing was given.
WHOLE_RUN: Final = (
    ("moving_rate", None),
    ("max_advance", None),
    ("window", None),
    ("delta_scale", None),
    ("server_gradient", None),
    ("local_steps", 1),
    ("backup_workers", 0),
)


class ModeOptions(BaseModel):
    """What a mode can be told; an option that the mode does not have is a mistake, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    moving_rate: float | None = Field(
        None, description="alpha of elastic averaging; default 0.9 / workers"
    )
    max_advance: int | None = Field(
        None, description="turns that partial lets a worker run ahead; default 2"
    )
    window: int | None = Field(
        None, description="staleness from which weed-out discards; default 3"
    )
    local_steps: int = Field(1, description="solver steps per turn (tau)")
    delta_scale: float | None = Field(
        None, description="factor on merged deltas; default min(1, 2 / workers), sync 1"
    )
    server_gradient: bool | None = Field(
        None,
        description="workers send raw gradients, the master applies the solver's update; "
        "default: where rounds are synchronous and the update is not linear in the gradient",
    )
    backup_workers: int = Field(0, description="results that a round of sync does not wait for")

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_a_number(cls, value: Any, field: ValidationInfo) -> Any:
        """`workers: yes` in YAML is a slip, not 1."""
        kind = str(cls.model_fields[field.field_name or ""].annotation)
        if isinstance(value, bool) and "bool" not in kind:
            raise PydanticCustomError(
                "float_type" if "float" in kind else "int_type", "no truth value"
            )
        return value

    def is_elastic_in(self, mode: str) -> bool:
        """Whether workers send weights, to be averaged elastically."""
        return mode == "easgd" or self.moving_rate is not None

    def problems_in(self, mode: str) -> list[str]:
        """What cannot work in this mode, a sentence each."""
        found: list[str] = []
        if self.local_steps < 1:
            found.append(
                f"local_steps is {digits(self.local_steps)}: a turn needs a step; use 1 or more"
            )
        found += [
            problem
            for name, most in (
                ("local_steps", LARGEST_COUNT),
                ("max_advance", LARGEST_INT32),
                ("window", LARGEST_INT32),
            )
            if (value := getattr(self, name)) is not None and value > most
            for problem in whole(name, value, 1, most)
        ]
        if self.moving_rate is not None:
            if not 0 < self.moving_rate < 1:
                found.append(
                    f"moving_rate is {self.moving_rate}: the pull must lie between 0 and 1, both excluded; "
                    "0.9 divided by the number of workers is the usual choice"
                )
            if mode in ("sync", "async"):
                found.append(
                    f"moving_rate is {self.moving_rate}, but mode {mode} has no elastic pull; "
                    "use --mode easgd, partial or weed-out, or leave moving_rate out"
                )
            if self.delta_scale is not None:
                found.append(
                    f"delta_scale is {self.delta_scale} together with moving_rate {self.moving_rate}: elastic "
                    "averaging merges weights, not deltas; leave one of the two out"
                )
        if self.max_advance is not None:
            if mode != "partial":
                found.append(
                    f"max_advance is {digits(self.max_advance)}, but mode {mode} has no bound; "
                    "use --mode partial, or leave max_advance out"
                )
            elif self.max_advance < 1:
                found.append(
                    f"max_advance is {digits(self.max_advance)}: every worker would wait for ever; use 1 or more"
                )
        if self.window is not None:
            if mode != "weed-out":
                found.append(
                    f"window is {digits(self.window)}, but mode {mode} has none; "
                    "use --mode weed-out, or leave window out"
                )
            elif self.window < 1:
                found.append(
                    f"window is {digits(self.window)}: every result would be discarded; use 1 or more"
                )
        if self.delta_scale is not None:
            if not 0 < self.delta_scale <= 10 or not math.isfinite(self.delta_scale):
                found.append(
                    f"delta_scale is {self.delta_scale}: use a factor above 0, usually at most 1"
                )
            if mode == "easgd":
                found.append(
                    f"delta_scale is {self.delta_scale}, but easgd merges no deltas; use moving_rate"
                )
        if self.server_gradient:
            if mode == "easgd" or self.moving_rate is not None:
                found.append(
                    "server_gradient and elastic averaging exclude each other; leave one out"
                )
            if self.local_steps > 1:
                found.append(
                    f"server_gradient with local_steps {self.local_steps}: a raw gradient belongs to one point; "
                    "use local_steps 1, and --batch for more samples per gradient"
                )
            if self.delta_scale is not None:
                found.append("server_gradient sends no deltas; leave delta_scale out")
        if self.backup_workers and mode != "sync":
            found.append(
                f"backup_workers is {digits(self.backup_workers)}, but mode {mode} has no rounds; "
                "use --mode sync, or leave backup_workers out"
            )
        elif self.backup_workers < 0:
            found.append(f"backup_workers is {digits(self.backup_workers)}: use 0 or more")
        return found

    def too_many_backups(self, workers: int) -> list[str]:
        """A round needs at least one result."""
        if not 0 < workers <= self.backup_workers:
            return []
        problem = (
            f"backup_workers is {digits(self.backup_workers)} of {workers} workers: a round would wait for nobody; "
            "use a number below that of workers"
        )
        return [problem]


class PhaseConfig(ModeOptions):
    """One phase of a hybrid run: a mode with its options, for so many iterations."""

    mode: PlainMode
    iterations: int

    def problems(self, number: int, workers: int) -> list[str]:
        found = self.problems_in(self.mode) + self.too_many_backups(workers)
        if not 1 <= self.iterations <= LARGEST_INT32:
            bound = "1 or more" if self.iterations < 1 else f"at most {LARGEST_INT32}"
            found.append(f"it lasts {digits(self.iterations)} iterations; use {bound}")
        return [f"phase {number} ({self.mode}): {problem}" for problem in found]
