"""The interface to the SGD modes: a strategy decides who is merged and who trains next; a `Mode` declares one.

A strategy sees worker ids, sample counts and staleness; never arrays, clocks or the network. It owns the merge rule
for its decisions. Every worker that it lets train answers once, by a result or by leaving; the coordinator ensures
that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property
from typing import Any, Protocol, get_args, get_type_hints

from speedo.messages import Decision, Kind, Result
from speedo.sgd_modes.rules import MergeRule
from speedo.sgd_modes.turn_length import Length as Length
from speedo.system.bounds import Option


class Strategy(Protocol):
    """One SGD mode."""

    @property
    def name(self) -> str:
        """The mode's name as `--mode` takes it."""
        ...

    @property
    def rule(self) -> MergeRule:
        """The arithmetic of the next merge."""
        ...

    @property
    def local_steps(self) -> Length:
        """Solver steps per turn (tau), which may depend on the iteration."""
        ...

    def on_join(self, workers: tuple[int, ...]) -> Decision:
        """These workers have joined and are idle: at the start all at once, later usually one."""
        ...

    def on_result(self, result: Result) -> Decision:
        """A worker has finished its turn and is idle now."""
        ...

    def on_leave(self, worker: int) -> Decision:
        """This worker has left; a result of it that was not merged yet may still be merged."""
        ...


@dataclass(frozen=True)
class OwnOption:
    """An option that a mode's schedule or a rule declares: its type, its default, and its declaration."""

    kind: Any
    default: Any
    option: Option


@cache
def options_of(maker: Callable[..., object]) -> dict[str, OwnOption]:
    """The arguments of a schedule or a rule that are annotated with an `Option`, by name."""
    arguments = inspect.signature(maker).parameters
    if isinstance(maker, type) and not is_dataclass(maker):
        hints = get_type_hints(maker.__init__, include_extras=True)  # type: ignore[misc]
    else:
        hints = get_type_hints(maker, include_extras=True)
    found = {}
    for name, hint in hints.items():
        for extra in getattr(hint, "__metadata__", ()):
            if isinstance(extra, Option) and name in arguments:
                found[name] = OwnOption(get_args(hint)[0], arguments[name].default, extra)
    return found


@dataclass(frozen=True)
class Mode:
    """The declaration of a mode: its file holds it as `MODE`, and the registry finds it there.

    `schedule(rule=, local_steps=, name=, ...)` makes the strategy; its arguments that are annotated with an `Option`
    are the mode's own options. The first of `rules` is the default; the others are chosen by their option, or by
    `--rule`, which also takes any other rule that `fits`.
    `rounds`: results are merged together, once all workers of a round have reported. `overlaps`: no turn waits for
    another worker's, so `--overlap` may issue turns ahead. `spare` is the own option that says how many results a
    round may close without, empty for none. `sums`: where that is 0, every round merges the mean of all results, so
    workers may sum them on the way, as a team. `paper` and `year` say where it comes from; modes are listed by year.
    """

    name: str
    schedule: Callable[..., Strategy]
    rules: tuple[type[MergeRule], ...]
    paper: str
    year: int
    rounds: bool = False
    overlaps: bool = False
    spare: str = ""
    sums: bool = False

    @cached_property
    def own(self) -> dict[str, OwnOption]:
        """The options that this mode alone declares, by name."""
        return options_of(self.schedule)

    def fits(self, rule: type[MergeRule]) -> bool:
        """Whether this schedule can merge by the rule: by its own ones, and by others of the same payloads."""
        if rule in self.rules:
            return True
        kinds = {own.payload for own in self.rules} - {Kind.GRADIENT}
        return rule.payload in kinds and rule.rounds in (None, self.rounds)

    def takes(self, option: str) -> bool:
        """Whether this mode uses the option."""
        chosen = {"local_steps", "rule", *(rule.option for rule in self.rules)}
        chosen |= {option for rule in self.rules for option in options_of(rule)}
        if not self.rounds:  # whose workers are waited for, so that none ends its turn earlier
            chosen.add("sync_when")
        if any(rule.foreseen and rule.payload is not Kind.GRADIENT for rule in self.rules):
            chosen.add("momentum_correction")
        return option in chosen or option in self.own
