"""What an exporter is, what it may know of its run, and how its file declares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from speedo.exchange.vector import Layout, Vector
from speedo.messages import Action, Event
from speedo.run_dir.checkpoint_file import Counters
from speedo.sgd_modes.base import OwnOption, options_of

if TYPE_CHECKING:
    from speedo.engines.solver import SolverSpec
    from speedo.watch.status import Status

RECORDS: Final = "Output for other tools"  # the options' group


@dataclass(frozen=True, slots=True)
class CenterCopy:
    """The weights of the center at this iteration, for exporters that look at them."""

    iteration: int
    weights: Vector


Told = Event | Action | CenterCopy


class Exporter(Protocol):
    """Writes what happens in a run; called from one thread. `now` is seconds of the driver's clock.

    `name` is for people.
    """

    @property
    def name(self) -> str: ...

    @property
    def problem(self) -> str:
        """A sentence on what it cannot write at present, and the remedy; empty if all is well."""
        ...

    @property
    def wants_weights(self) -> bool:
        """Whether it is told a `CenterCopy` at each test; the driver copies the weights for that."""
        ...

    def take(self, told: Told, now: float) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """What an exporter may know of its run.

    `solver` is None where scripts train. `bytes_of` are those of a result and of a center. `resumed` is what the run
    had done at its checkpoint. `wall_s` is the wall clock's time when the driver's clock was 0. `note` tells people.
    """

    name: str
    folder: Path
    layout: Layout
    solver: SolverSpec | None
    status: Callable[[], Status]
    bytes_of: Callable[[], tuple[int, int]]
    resumed: Counters | None
    wall_s: float
    note: Callable[[str], None]


@dataclass(frozen=True)
class Export:
    """The declaration of an exporter: its file holds it as `EXPORT`, and is found by that.

    `make(run, ...)` gives it, or None where its options ask for nothing. The arguments that are annotated with an
    `Option` are its options. `check(resumed, ...)` is called with them before the start; it answers values that are to
    be replaced, or raises `ConfigError`. `conflicts` gives a sentence for each other option of the run that the
    exporter cannot work with. A run of scripts has none of the options in `of_solvers`.
    """

    make: Callable[..., Exporter | None]
    check: Callable[..., Mapping[str, Any]] = lambda resumed, **options: {}
    conflicts: Callable[[Any], list[str]] = lambda config: []
    of_solvers: tuple[str, ...] = ()

    @cached_property
    def own(self) -> dict[str, OwnOption]:
        """Its options by name."""
        return options_of(self.make)

    def values(self, config: object) -> dict[str, Any]:
        """Those of a run."""
        return {name: getattr(config, name) for name in self.own}
