"""Finds all modes in this package; gives their options, the checks of these, and their strategies.

A mode is a file here that declares `MODE`; no other file names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Annotated, Any, Final, TypeVar

from pydantic import create_model

from speedo import sgd_modes
from speedo.bounds import declared, digits
from speedo.messages import Tuning
from speedo.sgd_modes.base import Mode, Strategy
from speedo.sgd_modes.conditions import parse_condition
from speedo.sgd_modes.hybrid import Hybrid
from speedo.sgd_modes.options import ModeOptions, PhaseOptions, RunOptions
from speedo.sgd_modes.phases import Phase
from speedo.sgd_modes.rules import (
    AddDelta,
    AverageDeltas,
    Elastic,
    MergeRule,
    RuleClass,
    ServerGradient,
)
from speedo.sgd_modes.turn_length import AdaptiveLength, LengthState, most_steps, turn_length
from speedo.vectors.vector import Vector

Update = Callable[[Vector, Vector, int], None]
Adjust = Callable[[Tuning], None]
Options = TypeVar("Options", bound=ModeOptions)
Run = TypeVar("Run", bound=RunOptions)


def _find() -> Iterator[Mode]:
    for module in pkgutil.iter_modules(sgd_modes.__path__):
        if module.name != "registry":
            found = importlib.import_module(f"{sgd_modes.__name__}.{module.name}")
            if isinstance(mode := getattr(found, "MODE", None), Mode):
                yield mode


HYBRID: Final = "hybrid"  # phases of the others
PLAIN: Final = {
    mode.name: mode for mode in sorted(_find(), key=lambda mode: (mode.year, mode.name))
}
MODES: Final = (*PLAIN, HYBRID)


# ---------------------------------------------------------------- options


def with_own_options(model: type[Options]) -> type[Options]:
    """A model that also has every mode's own options; an option that is not given is None."""
    fields: dict[str, Any] = {}
    for mode in PLAIN.values():
        for name, own in mode.own.items():
            fields.setdefault(name, (Annotated[own.kind | None, own.option], None))
    return create_model(model.__name__, __base__=model, **fields)


def own_options(options: ModeOptions) -> dict[str, Any]:
    """The options that this mode alone declares, with the mode's defaults for those that were not given."""
    mode = PLAIN.get(options.mode)
    own = {} if mode is None else mode.own
    given = {name: getattr(options, name) for name in own}
    return {name: own[name].default if value is None else value for name, value in given.items()}


def takers(option: str) -> tuple[str, ...]:
    """The modes that use this option; none for an option of the run."""
    return tuple(name for name, mode in PLAIN.items() if mode.takes(option))


def given_options(options: ModeOptions) -> dict[str, Any]:
    """The options of modes that differ from their defaults; a 0 that turns an option off counts as not given."""
    found: dict[str, Any] = {}
    for name, field in type(options).model_fields.items():
        value, bound = getattr(options, name), declared(field.metadata).bound
        if takers(name) and value != field.default:
            is_off = type(value) is int and value == 0 and bound is not None and not bound(name, 0)
            found |= {} if is_off else {name: value}
    return found


def problems(options: ModeOptions, workers: int) -> list[str]:
    """Every problem of this mode's options for this many workers, a sentence each; not those of hybrid's phases."""
    mode = PLAIN.get(options.mode)
    if mode is None:
        return []
    found: list[str] = []
    for name, value in given_options(options).items():
        said = digits(value) if type(value) is int else value
        option = declared(type(options).model_fields[name].metadata)
        if mode.takes(name):
            found += option.bound(name, value) if option.bound else []
            if option.below_workers and 0 < workers <= value:
                found.append(
                    f"{name} is {said} of {workers} workers: {option.below_workers}; "
                    "use a number below that of workers"
                )
        elif value is not False:
            *others, last = takers(name)
            modes = f"{', '.join(others)} or {last}" if others else last
            found.append(
                f"{name} is {said}, but mode {mode.name} does not use it; use --mode {modes}, or leave {name} out"
            )
    return found + options.conflicts()


def has_rounds(*modes: str) -> bool:
    """Whether one of these modes merges the results of a round together."""
    return any(PLAIN[mode].rounds for mode in modes if mode in PLAIN)


def waits_for_all(options: ModeOptions) -> bool:
    """Whether each round waits for all workers, whose results are averaged: they may be summed on the way."""
    mode = PLAIN.get(options.mode)
    if mode is None or not mode.rounds:
        return False
    return not any(own_options(options).values())


def problems_of_teams(options: ModeOptions) -> list[str]:
    """Why the workers of a host cannot sum among themselves: a team adds means, whatever the mode's rule says."""
    rule: Any = _rule_class(options) if waits_for_all(options) else AverageDeltas
    if rule in (AverageDeltas, ServerGradient):
        return []
    what = f"cannot merge by {rule.__name__}, the rule of mode {options.mode}"
    return [f"team is host, but the workers of a host {what}; use --team off"]


def may_overlap(mode: str) -> bool:
    """Whether turns of this mode can be issued ahead."""
    return mode in PLAIN and PLAIN[mode].overlaps


def is_elastic(options: ModeOptions) -> bool:
    """Whether workers send weights, to be averaged elastically."""
    return options.mode in PLAIN and _rule_class(options) is Elastic


def needs_update(config: RunOptions) -> bool:
    """Whether the master must apply gradients."""
    return bool(config.server_gradient) or any(phase.server_gradient for phase in config.phases)


def with_whole_gradient(config: Run) -> Run:
    """For an update that is not linear in the gradient: in modes with rounds the master applies it, once per round.

    Only then is the result that of sequential Caffe; workers that each apply it would train another model.
    """
    exact = {"server_gradient": True}

    def needs_it(options: ModeOptions) -> bool:
        free = options.server_gradient is None and options.delta_scale is None
        return has_rounds(options.mode) and free and options.local_steps == 1

    phases = tuple(
        phase.model_copy(update=exact) if needs_it(phase) else phase for phase in config.phases
    )
    return config.model_copy(update={"phases": phases, **(exact if needs_it(config) else {})})


def adds_deltas(options: ModeOptions) -> bool:
    """Whether workers send deltas, each of which is added when it arrives."""
    return options.mode in PLAIN and _rule_class(options) is AddDelta


# ---------------------------------------------------------------- strategies


def make_strategy(
    config: RunOptions,
    batch: int,
    update: Update | None = None,
    *,
    samples: int = 0,
    place: tuple[int, int] | None = None,
    adjust: Adjust | None = None,
    batch_size: int | None = None,
    turns: LengthState | None = None,
    own_optimizers: bool = False,
) -> Strategy:
    """The strategy of this configuration. `batch` is the samples of one iteration, for hybrid phases.

    `update` applies a raw gradient to the center; only `server_gradient` needs it, and `adjust` gives it the solver
    values of a phase. `batch_size` is the run's, of which that of a phase is a multiple. `samples` is what a resumed
    run had merged, and `place` the index of its phase and the samples merged in it: its phases continue from there.
    `turns` is what its adaptive length of turns was decided by: `AdaptiveLength.state`. With `own_optimizers`, those of
    users' scripts, momentum is neither known nor corrected.
    """
    strategy = _strategy(
        config, batch, update, samples, place, adjust, batch_size or batch, own_optimizers
    )
    length = strategy.local_steps
    if isinstance(length, AdaptiveLength) and turns is not None:
        length.state = turns
    return strategy


def _strategy(
    config: RunOptions,
    batch: int,
    update: Update | None,
    samples: int,
    place: tuple[int, int] | None,
    adjust: Adjust | None,
    batch_size: int,
    own_optimizers: bool,
) -> Strategy:
    if config.mode != HYBRID:
        return _plain(config, update, own_optimizers)
    phases = [
        _phase(one, batch, batch_size, update, adjust, own_optimizers) for one in config.phases
    ]
    if place is None or place[0] >= len(phases):
        place = _place_after(samples, phases)
    return Hybrid(phases, index=place[0], merged=place[1])


def _phase(
    options: PhaseOptions,
    batch: int,
    batch_size: int,
    update: Update | None,
    adjust: Adjust | None,
    own_optimizers: bool,
) -> Phase:
    batches = 1 if options.batch is None else max(1, options.batch // batch_size)
    tuning = Tuning(options.lr, options.momentum, options.weight_decay, batches)

    def tuned(gradient: Vector, center: Vector, iteration: int) -> None:
        assert update is not None
        if adjust is not None:
            adjust(tuning)
        update(gradient, center, iteration)

    return Phase(
        lambda: _plain(options, None if update is None else tuned, own_optimizers),
        (options.iterations or 0) * batch,
        None if options.until is None else parse_condition(options.until),
        tuning,
        options.test_interval,
    )


def _place_after(samples: int, phases: Sequence[Phase]) -> tuple[int, int]:
    """The phase after so many merged samples, and those merged in it, if each phase had its length exactly.

    The first, if some phase ends by a condition.
    """
    if not all(phase.samples for phase in phases):
        return 0, 0
    index, merged = 0, samples % sum(phase.samples for phase in phases)
    while merged >= phases[index].samples:
        merged -= phases[index].samples
        index += 1
    return index, merged


def _plain(options: ModeOptions, update: Update | None, own_optimizers: bool) -> Strategy:
    mode = PLAIN[options.mode]
    return mode.schedule(
        rule=_rule(options, update, own_optimizers),
        local_steps=turn_length(options.local_steps, options.sync_when),
        name=mode.name,
        **own_options(options),
    )


def _rule_class(options: ModeOptions) -> RuleClass:
    """The rule whose option was given, else the default."""
    usual, *others = PLAIN[options.mode].rules
    chosen = [rule for rule in others if getattr(options, rule.option) not in (None, False)]
    return chosen[0] if chosen else usual


def _rule(options: ModeOptions, update: Update | None, own_optimizers: bool) -> MergeRule:
    rule = _rule_class(options)
    if rule is ServerGradient:
        if update is None:
            raise ValueError("server_gradient needs the master's update")
        return rule(update)
    if rule is AddDelta:
        by_staleness = bool(options.staleness_scaling)
        whole = inf if by_staleness else 4.0 if options.momentum_correction else 2.0
        if own_optimizers and not by_staleness and most_steps(options.local_steps) > 1:
            whole = min(whole, 1.0)
        return AddDelta(options.delta_scale, whole, by_staleness)
    return rule(getattr(options, rule.option))
