"""One configuration for a run: every option, its default with the default's source, and every check.

Options come from the command line, a YAML file or Python alike. All mistakes are reported at once, each
with its value and its remedy.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from speedo.bounds import (
    LARGEST_COUNT,
    LARGEST_INT32,
    LARGEST_SEED,
    digits,
    float32,
    in_float32,
    said,
    seconds,
    whole,
)
from speedo.config.formats import parse_compression, read_options
from speedo.config.mode_options import MODES, WHOLE_RUN, Mode, ModeOptions, PhaseConfig
from speedo.errors import ConfigError
from speedo.system.files import problem_with_name

__all__ = ["DEFAULT_PORT", "MODES", "ModeOptions", "PhaseConfig", "RunConfig", "make_config"]

DEFAULT_PORT: Final = 56126  # the original SpeeDO's master; Ray and Redis both want 6379
OVERLAPPING: Final = ("async", "easgd")  # modes in which no turn waits for another worker's
LARGEST_WORKERS: Final = (
    10_000  # slots are small integers; beyond this a mistake is likelier than a wish
)


Overlap = Literal["far", "all", "none"]


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

    compress: str = "none"
    compress_center: Literal["none", "bfloat16"] = "none"

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    redis: str | None = None
    redis_tls: bool = False
    same_node: Literal["shared-memory", "redis"] = "shared-memory"
    pace: bool = True
    same_core: bool = True
    overlap: Overlap = "none"
    timeout: float = 120.0
    join_timeout: float | None = None
    min_workers: int = 1
    checkpoint_interval: float = 60.0
    resume: Path | None = None
    take_over: bool = False
    restarts: int = 5
    reshard_after: float = 60.0
    data_root: Path | None = None
    python_layers: str | None = None
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

    @property
    def python_modules(self) -> tuple[str, ...]:
        """Modules from beyond the solver's folder that its Python layers may name."""
        names = (self.python_layers or "").split(",")
        return tuple(name.strip() for name in names if name.strip())

    def problems(self) -> list[str]:
        """Everything in this configuration that cannot work, a sentence each."""
        found = self.problems_in(self.mode) + self.too_many_backups(self.workers)
        if not 1 <= self.workers <= LARGEST_WORKERS:
            found.append(f"workers is {digits(self.workers)}: use 1 to {LARGEST_WORKERS}")
        if not 1 <= self.min_workers <= max(self.workers, 1):
            found.append(
                f"min_workers is {digits(self.min_workers)}: use 1 up to the {digits(self.workers)} of workers"
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
            found += phase.problems(number, self.workers)
        found += self._problems_of_overlap() + self._problems_of_compression()
        found += self._problems_of_paths()
        found += self._problems_of_numbers()
        if self.redis_tls and self.redis is not None:
            found.append(
                "redis_tls is for the Redis that is started, but redis names one of yours; "
                "leave redis_tls out, and write its URL as rediss://..."
            )
        if self.resume is not None and self.run_dir is not None and os.path.isdir(self.resume):
            found.append(
                "run_dir and resume name two directories: a resumed run goes on in its own; leave run_dir out"
            )
        for module in self.python_modules:
            if not all(part.isidentifier() for part in module.split(".")):
                found.append(
                    f"python_layers names {module!r}, which is no module; use names as in layers.scale,others"
                )
        if self.weights is not None and not os.path.isfile(self.weights):
            found.append(f"weights names {self.weights}, which is no file; give a .caffemodel")
        return found

    def _problems_of_numbers(self) -> list[str]:
        """Every number that what takes it cannot hold."""
        found: list[str] = []
        for name, least in (("max_iter", 1), ("test_interval", 0), ("batch", 1)):
            found += whole(name, getattr(self, name), least, LARGEST_INT32)
        found += whole("seed", self.seed, 0, LARGEST_SEED, ", as Caffe's generator takes 32 bits")
        found += float32("lr", self.lr, "a learning rate above 0", zero=False)
        if self.momentum is not None and not 0 <= in_float32(self.momentum) < 1:
            found.append(f"momentum is {self.momentum}: use 0 up to, not including, 1")
        found += float32("weight_decay", self.weight_decay, "0 or more", zero=True)
        found += whole("restarts", self.restarts, 0, LARGEST_COUNT)
        if not 1 <= self.port <= 65535:
            found.append(f"port is {digits(self.port)}: use 1 to 65535, {DEFAULT_PORT} by default")
        found += seconds("timeout", self.timeout) + seconds("join_timeout", self.join_timeout)
        found += seconds("checkpoint_interval", self.checkpoint_interval, zero="the end alone")
        found += seconds("reshard_after", self.reshard_after, zero="never")
        return found

    def _problems_of_paths(self) -> list[str]:
        """Names that Caffe, or the system, could not take."""
        found: list[str] = []
        for name in ("solver", "weights", "resume", "data_root", "run_dir"):
            path: Path | None = getattr(self, name)
            if path is None:
                continue
            if "\0" in str(path):
                found.append(f"{name} is {str(path)!r}, with a zero byte in it; use a path")
            elif (problem := problem_with_name(path)) is not None:
                found.append(f"{name} names {str(path)!a}, which {problem}")
        return found

    def _problems_of_overlap(self) -> list[str]:
        if self.overlap == "none":
            return []
        if self.mode not in OVERLAPPING:
            problem = (
                f"overlap is {self.overlap}, but in mode {self.mode} turns wait for others' results"
            )
            return [f"{problem}; use --mode async or easgd, or leave overlap out"]
        if self.server_gradient:
            problem = f"overlap is {self.overlap} together with server_gradient, whose updates only the master can make"
            return [f"{problem}; leave one of the two out"]
        return []

    def _problems_of_compression(self) -> list[str]:
        try:
            name, _ = parse_compression(self.compress)
        except ConfigError as error:
            return list(error.problems)
        parts: tuple[RunConfig | PhaseConfig, ...] = self.phases or (self,)
        if name != "topk" or not any(part.is_elastic_in(part.mode) for part in parts):
            return []
        problem = (
            f"compress is {self.compress}, but elastic averaging sends weights, and a few of them make no model; "
            "use bfloat16 or int8"
        )
        return [problem]


def make_config(options: Mapping[str, Any], *, file: Path | None = None) -> RunConfig:
    """The configuration from a YAML file, if any, with `options` (those that are not None) before it.

    Raises `ConfigError` with every problem found.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if file is None and given.get("resume"):
        former = Path(given["resume"]) / "config.yaml"
        file = former if os.path.isfile(former) else None
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
        return f"{name} is {said(value)}; use one of {detail['ctx']['expected']}"
    if kind == "missing":
        return f"{name} is missing; give it"
    remedy = next((words for start, words in _REMEDIES.items() if kind.startswith(start)), None)
    return f"{name} is {said(value)}; {remedy or detail['msg']}"


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
