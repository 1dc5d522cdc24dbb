"""One configuration for a run: every option, its default with the default's source, and every check.

Options come from the command line, a YAML file or Python alike. All mistakes are reported at once, each
with its value and its remedy.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from speedo.config_file import read_options
from speedo.errors import ConfigError

PlainMode = Literal["sync", "async", "partial", "weed-out", "easgd"]
Mode = Literal["sync", "async", "partial", "weed-out", "easgd", "hybrid"]
MODES: Final = get_args(Mode)
PLAIN_MODES: Final = get_args(PlainMode)

DEFAULT_PORT: Final = 56126  # the original SpeeDO's master; Ray and Redis both want 6379
DEFAULT_MAX_ADVANCE: Final = 2  # the bound of the worked example in docs/modes.md
DEFAULT_WINDOW: Final = 3  # likewise; the bound in force is max(window, workers)
LARGEST_WORKERS: Final = (
    10_000  # slots are small integers; beyond this a mistake is likelier than a wish
)


# What mode hybrid takes per phase alone, with the value that says nothing was given.
WHOLE_RUN: Final = (
    ("moving_rate", None),
    ("max_advance", None),
    ("window", None),
    ("delta_scale", None),
    ("server_gradient", None),
    ("local_steps", 1),
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

    def problems_in(self, mode: str) -> list[str]:
        """What cannot work in this mode, a sentence each."""
        found = []
        if self.local_steps < 1:
            found.append(f"local_steps is {self.local_steps}: a turn needs a step; use 1 or more")
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
                    f"max_advance is {self.max_advance}, but mode {mode} has no bound; "
                    "use --mode partial, or leave max_advance out"
                )
            elif self.max_advance < 1:
                found.append(
                    f"max_advance is {self.max_advance}: every worker would wait for ever; use 1 or more"
                )
        if self.window is not None:
            if mode != "weed-out":
                found.append(
                    f"window is {self.window}, but mode {mode} has none; "
                    "use --mode weed-out, or leave window out"
                )
            elif self.window < 1:
                found.append(
                    f"window is {self.window}: every result would be discarded; use 1 or more"
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
        return found


class PhaseConfig(ModeOptions):
    """One phase of a hybrid run: a mode with its options, for so many iterations."""

    mode: PlainMode
    iterations: int

    def problems(self, number: int) -> list[str]:
        found = self.problems_in(self.mode)
        if self.iterations < 1:
            found.append(f"it lasts {self.iterations} iterations; use 1 or more")
        return [f"phase {number} ({self.mode}): {problem}" for problem in found]


class RunConfig(ModeOptions):
    """Everything that one run is told. None means: as the solver says, or the default of the mode."""

    mode: Mode = "sync"
    workers: int = 2
    phases: tuple[PhaseConfig, ...] = ()

    solver: Path | None = None
    weights: Path | None = None
    max_iter: int | None = None
    test_interval: int | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    batch: int | None = None
    split_batch: bool | None = None
    seed: int | None = None
    cpu: bool = False

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    redis: str | None = None
    timeout: float = 120.0
    join_timeout: float | None = None
    min_workers: int = 1
    data_root: Path | None = None
    run_dir: Path | None = None

    @property
    def splits_batch(self) -> bool:
        """Whether the solver's batch is spread over the workers: by default wherever rounds are synchronous."""
        if self.split_batch is not None:
            return self.split_batch
        return self.mode == "sync" or any(phase.mode == "sync" for phase in self.phases)

    @property
    def seconds_to_join(self) -> float:
        """How long a run that has lost its workers waits for new ones."""
        return self.timeout if self.join_timeout is None else self.join_timeout

    def problems(self) -> list[str]:
        """Everything in this configuration that cannot work, a sentence each."""
        found = self.problems_in(self.mode)
        if not 1 <= self.workers <= LARGEST_WORKERS:
            found.append(f"workers is {self.workers}: use 1 to {LARGEST_WORKERS}")
        if not 1 <= self.min_workers <= max(self.workers, 1):
            found.append(
                f"min_workers is {self.min_workers}: use 1 up to the {self.workers} of workers"
            )
        if self.mode == "hybrid" and not self.phases:
            found.append(
                "mode hybrid has no phases; give at least one, for example --phase sync:500 --phase easgd:1000"
            )
        if self.mode != "hybrid" and self.phases:
            found.append(f"phases are given, but the mode is {self.mode}; use --mode hybrid")
        if self.mode == "hybrid":
            found += [
                f"{name} is given to mode hybrid as a whole; give it to a phase, as in --phase easgd:1000,{name}=..."
                for name, usual in WHOLE_RUN
                if getattr(self, name) != usual
            ]
        for number, phase in enumerate(self.phases, 1):
            found += phase.problems(number)
        for name, least in (("max_iter", 1), ("test_interval", 0), ("batch", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                found.append(f"{name} is {value}: use {least} or more")
        if self.lr is not None and not (self.lr > 0 and math.isfinite(self.lr)):
            found.append(f"lr is {self.lr}: use a learning rate above 0")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            found.append(f"momentum is {self.momentum}: use 0 up to, not including, 1")
        if self.weight_decay is not None and not (
            self.weight_decay >= 0 and math.isfinite(self.weight_decay)
        ):
            found.append(f"weight_decay is {self.weight_decay}: use 0 or more")
        if not 1 <= self.port <= 65535:
            found.append(f"port is {self.port}: use 1 to 65535, {DEFAULT_PORT} by default")
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            found.append(f"timeout is {self.timeout}: use a number of seconds above 0")
        if self.join_timeout is not None and not (
            self.join_timeout > 0 and math.isfinite(self.join_timeout)
        ):
            found.append(f"join_timeout is {self.join_timeout}: use a number of seconds above 0")
        if self.weights is not None and not self.weights.is_file():
            found.append(f"weights names {self.weights}, which is no file; give a .caffemodel")
        return found


def make_config(options: Mapping[str, Any], *, file: Path | None = None) -> RunConfig:
    """The configuration from a YAML file, if any, with `options` (those that are not None) before it.

    Raises `ConfigError` with every problem found.
    """
    given = {name: value for name, value in options.items() if value is not None}
    read = read_options(file) if file is not None else {}
    origins = {name: f" in {file}" for name in read if name not in given}
    try:
        config = RunConfig.model_validate({**read, **given})
    except ValidationError as error:
        raise ConfigError([_sentence(dict(detail), origins) for detail in error.errors()]) from None
    problems = config.problems()
    if problems:
        raise ConfigError(problems)
    return config


def _sentence(detail: dict[str, Any], origins: Mapping[str, str]) -> str:
    """One of pydantic's findings in our own form: name, value, remedy."""
    place = [str(part) for part in detail["loc"]]
    in_phase = place[0] == "phases" and len(place) > 1
    name = f"phase {int(place[1]) + 1}" if in_phase else place[0]
    if in_phase and len(place) > 2:
        name += f": {place[2]}"
    name += origins.get(place[0], "")
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        known = list(PhaseConfig.model_fields if in_phase else RunConfig.model_fields)
        close = difflib.get_close_matches(place[-1], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"
        return f"{name} is no option{hint}"
    if kind == "literal_error":
        return f"{name} is {value!r}; use one of {detail['ctx']['expected']}"
    if kind == "missing":
        return f"{name} is missing; give it"
    remedy = next((words for start, words in _REMEDIES.items() if kind.startswith(start)), None)
    return f"{name} is {value!r}; {remedy or detail['msg']}"


# Kinds of pydantic's findings, by how their names begin.
_REMEDIES: Final = {
    "int": "use a whole number",
    "float": "use a number",
    "bool": "use true or false",
    "path": "use a path",
    "string": "use text",
    "tuple": "use a list of phases, each with mode and iterations",
    "model": "use a phase with mode and iterations",
}
