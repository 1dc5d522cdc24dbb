"""Finds all modes and rules; gives their options, and makes their strategies.

A mode is a file here that declares `MODE`, a rule one in `rules/` that declares `RULE`; no other file names it. Those
of installed packages are found by their entry points (`speedo.sgd_modes.foreign`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar

from pydantic import BeforeValidator, create_model
from pydantic_core import PydanticCustomError

from caffenets.declared import declared_in
from speedo import sgd_modes
from speedo.errors import ConfigError
from speedo.exchange.vector import Vector
from speedo.messages import NO_TUNING, Kind, Tuning
from speedo.sgd_modes import rules as rule_files
from speedo.sgd_modes.base import Mode, OwnOption, Strategy, options_of
from speedo.sgd_modes.conditions import parse_condition
from speedo.sgd_modes.foreign import (
    BROKEN,
    MODE_ENTRIES,
    RULE_ENTRIES,
    as_mode,
    as_rule,
    installed,
    is_foreign,
    mode_at,
    rule_at,
)
from speedo.sgd_modes.hybrid import Hybrid
from speedo.sgd_modes.options import ModeOptions, PhaseOptions, RunOptions
from speedo.sgd_modes.phases import Phase
from speedo.sgd_modes.rules import MergeRule
from speedo.sgd_modes.rules.base import OfARun
from speedo.sgd_modes.turn_length import AdaptiveLength, LengthState, most_steps, turn_length
from speedo.system.bounds import Option, declared

OfPhase = Callable[[Vector, Vector, int], None]
Options = TypeVar("Options", bound=ModeOptions)
Run = TypeVar("Run", bound=RunOptions)


class Update(Protocol):
    """The solver's update of the center by a raw gradient, in place; `own` are the values of the phase."""

    def __call__(
        self, gradient: Vector, center: Vector, iteration: int, own: Tuning = NO_TUNING
    ) -> None: ...


HYBRID: Final = "hybrid"  # phases of the others


def _modes() -> Iterator[Mode]:
    ours = {mode.name: mode for mode in declared_in(sgd_modes.__name__, "MODE")}
    yield from ours.values()
    for name, mode in installed(MODE_ENTRIES, as_mode, (*ours, HYBRID)).items():
        yield replace(mode, name=name)


def _rules() -> Iterator[tuple[str, type[MergeRule]]]:
    ours = {rule.name: rule for rule in declared_in(rule_files.__name__, "RULE")}
    yield from {**ours, **installed(RULE_ENTRIES, as_rule, ours)}.items()


PLAIN: Final = {
    mode.name: mode for mode in sorted(_modes(), key=lambda mode: (mode.year, mode.name))
}
MODES: Final = (*PLAIN, HYBRID)
RULES: Final = dict(sorted(_rules(), key=lambda one: (one[1].year, one[0])))


def one_of(names: Sequence[str]) -> Any:
    """The type of an option that takes one of these names, or the place of a class."""

    def check(value: Any) -> Any:
        if value is None or value in names or is_foreign(value):
            return value
        if isinstance(value, str) and value in BROKEN:
            raise ConfigError(BROKEN[value])
        *others, last = map(repr, names)
        expected = f"{', '.join(others)} or {last}"
        raise PydanticCustomError("literal_error", "another name", {"expected": expected})

    return Annotated[Literal[tuple(names)] | str, BeforeValidator(check)]


RULE: Final = Option(
    "How results are merged; a rule of your own is written package.module:Class.",
    usual="the mode's",
    source="each mode's paper",
)


def mode_named(name: str) -> Mode | None:
    """The mode of this name or place; None for mode hybrid. Raises `ConfigError` for one that cannot be imported."""
    return mode_at(name) if is_foreign(name) else PLAIN.get(name)


def rule_named(name: str) -> type[MergeRule]:
    """The rule of this name or place. Raises `ConfigError` for one that cannot be imported."""
    return rule_at(name) if is_foreign(name) else RULES[name]


def rule_of(options: ModeOptions) -> type[MergeRule] | None:
    """The rule that `--rule` chose. Raises `ConfigError` for one that cannot be imported."""
    return None if options.rule is None else rule_named(options.rule)


# ---------------------------------------------------------------- options


def with_own_options(model: type[Options]) -> type[Options]:
    """A model that also has every mode's own options; an option that is not given is None."""
    fields: dict[str, Any] = {}
    for mode in PLAIN.values():
        for name, own in mode.own.items():
            fields.setdefault(name, (Annotated[own.kind | None, own.option], None))
    for rule in RULES.values():
        for name, own in options_of(rule).items():
            fields.setdefault(name, (Annotated[own.kind | None, own.option], None))
    fields["rule"] = (Annotated[one_of(tuple(RULES)) | None, RULE], None)
    return create_model(model.__name__, __base__=model, **fields)


def is_outside(made: Callable[..., object]) -> bool:
    """Whether a schedule or a rule is not of this package."""
    return not made.__module__.startswith(f"{sgd_modes.__name__}.")


def parts_outside(config: RunOptions) -> list[ModeOptions]:
    """The run, or those of its phases, whose mode or rule is not of this package."""
    return [
        part
        for part in config.phases or (config,)
        if (mode := mode_named(part.mode)) is not None
        and (is_outside(mode.schedule) or is_outside(rule_class(part)))
    ]


def rules_outside(config: RunOptions) -> tuple[str, ...]:
    """Where the rules of this run are that are not in the package, as `package.module:Class`."""
    parts = [part for part in config.phases or (config,) if part.mode != HYBRID]
    rules = dict.fromkeys(rule_class(part) for part in parts)
    return tuple(f"{rule.__module__}:{rule.__qualname__}" for rule in rules if is_outside(rule))


def folders_outside(config: RunOptions) -> str:
    """Where the modules of its classes that are not in the package are looked for, as `look_in` takes it."""
    folders = dict.fromkeys(part.code_from for part in (config, *config.phases) if part.code_from)
    return os.pathsep.join(folders)


def own_options(options: ModeOptions) -> dict[str, Any]:
    """The options that this mode alone declares, with the mode's defaults for those that were not given."""
    mode = mode_named(options.mode)
    return {} if mode is None else _values(mode.own, options)


def _values(own: Mapping[str, OwnOption], options: ModeOptions) -> dict[str, Any]:
    given = {name: options.foreign.get(name, getattr(options, name, None)) for name in own}
    return {name: own[name].default if value is None else value for name, value in given.items()}


def rules_with(option: str) -> tuple[str, ...]:
    """The rules that declare this option, if no mode has one of them unless `--rule` names it."""
    found = {name: rule for name, rule in RULES.items() if option in options_of(rule)}
    of_modes = {rule for mode in PLAIN.values() for rule in mode.rules}
    return () if of_modes & {*found.values()} else tuple(found)


def rules_own(rule: str) -> tuple[str, ...]:
    """The options that a run has only with this rule."""
    return tuple(name for name in options_of(RULES[rule]) if rules_with(name))


def takers(option: str) -> tuple[str, ...]:
    """The modes that use this option, by themselves or with a rule; none for an option of the run."""
    theirs = [RULES[name] for name in rules_with(option)]
    return tuple(
        name
        for name, mode in PLAIN.items()
        if mode.takes(option) or any(mode.fits(rule) for rule in theirs)
    )


def rivals(mode: Mode) -> set[str]:
    """The options of the mode's own rules, and those that choose them."""
    return {option for one in mode.rules for option in (*options_of(one), one.option) if option}


def uses(options: ModeOptions, option: str) -> bool:
    """Whether this mode with its rule uses the option; also those of every run."""
    mode, declared_own = mode_named(options.mode), options_of(rule_class(options))
    assert mode is not None
    if option in declared_own or option in mode.own:
        return True
    if options.rule is not None and option in rivals(mode):
        return False
    return mode.takes(option) or not takers(option)


def given_options(options: ModeOptions) -> dict[str, Any]:
    """The options of modes that differ from their defaults; a 0 that turns an option off counts as not given."""
    found: dict[str, Any] = {}
    for name, field in type(options).model_fields.items():
        value, bound = getattr(options, name), declared(field.metadata).bound
        if takers(name) and value != field.default:
            is_off = type(value) is int and value == 0 and bound is not None and not bound(name, 0)
            found |= {} if is_off else {name: value}
    return found


def has_rounds(*modes: str) -> bool:
    """Whether one of these modes merges the results of a round together."""
    found = (mode_named(mode) for mode in modes)
    return any(mode.rounds for mode in found if mode is not None)


def waits_for_all(options: ModeOptions) -> bool:
    """Whether each round waits for all workers, whose results are averaged: they may be summed on the way."""
    mode = mode_named(options.mode)
    return mode is not None and mode.sums and not own_options(options).get(mode.spare)


def may_overlap(mode: str) -> bool:
    """Whether turns of this mode can be issued ahead."""
    found = mode_named(mode)
    return found is not None and found.overlaps


def is_elastic(options: ModeOptions) -> bool:
    """Whether workers send weights, to be averaged elastically."""
    return mode_named(options.mode) is not None and rule_class(options).payload is Kind.WEIGHTS


def needs_update(config: RunOptions) -> bool:
    """Whether the master must apply gradients."""
    return bool(config.server_gradient) or any(phase.server_gradient for phase in config.phases)


def with_whole_gradient(config: Run) -> Run:
    """For an update that is not linear in the gradient: in modes with rounds the master applies it, once per round.

    Only then is the result that of sequential Caffe; workers that each apply it would train another model.
    """
    exact = {"server_gradient": True}

    def needs_it(options: ModeOptions) -> bool:
        free = (options.server_gradient, options.delta_scale, options.rule) == (None, None, None)
        return has_rounds(options.mode) and free and options.local_steps == 1

    phases = tuple(
        phase.model_copy(update=exact) if needs_it(phase) else phase for phase in config.phases
    )
    return config.model_copy(update={"phases": phases, **(exact if needs_it(config) else {})})


def adds_deltas(options: ModeOptions) -> bool:
    """Whether workers send deltas, each of which is added when it arrives."""
    mode = mode_named(options.mode)
    if mode is None or mode.rounds:
        return False
    return rule_class(options).payload is Kind.DELTA


# ---------------------------------------------------------------- strategies


def make_strategy(
    config: RunOptions,
    batch: int,
    update: Update | None = None,
    *,
    samples: int = 0,
    place: tuple[int, int] | None = None,
    batch_size: int | None = None,
    turns: LengthState | None = None,
    own_optimizers: bool = False,
) -> Strategy:
    """The strategy of this configuration. `batch` is the samples of one iteration, for hybrid phases.

    `update` applies a raw gradient to the center; only `server_gradient` needs it. `batch_size` is the run's, of which
    that of a phase is a multiple. `samples` is what a resumed run had merged, and `place` the index of its phase and
    the samples merged in it: its phases continue from there.
    `turns` is what its adaptive length of turns was decided by: `AdaptiveLength.state`. With `own_optimizers`, those of
    users' scripts, momentum is neither known nor corrected.
    """
    strategy: Strategy
    if config.mode == HYBRID:
        size = batch_size or batch
        phases = [_phase(one, batch, size, update, own_optimizers) for one in config.phases]
        if place is None or place[0] >= len(phases):
            place = _place_after(samples, phases)
        strategy = Hybrid(phases, index=place[0], merged=place[1])
    else:
        strategy = plain_strategy(config, update, own_optimizers=own_optimizers)
    length = strategy.local_steps
    if isinstance(length, AdaptiveLength) and turns is not None:
        length.state = turns
    return strategy


def _phase(
    options: PhaseOptions, batch: int, batch_size: int, update: Update | None, own_optimizers: bool
) -> Phase:
    batches = 1 if options.batch is None else max(1, options.batch // batch_size)
    tuning = Tuning(options.lr, options.momentum, options.weight_decay, batches)
    tuned = None if update is None else partial(update, own=tuning)
    return Phase(
        lambda: plain_strategy(options, tuned, own_optimizers=own_optimizers),
        (options.iterations or 0) * batch,
        None if options.until is None else parse_condition(options.until),
        tuning,
        options.test_interval,
    )


def _place_after(samples: int, phases: Sequence[Phase]) -> tuple[int, int]:
    """The phase after this many merged samples, and those merged in it, if each phase had its length exactly.

    The first, if some phase ends by a condition.
    """
    if not all(phase.samples for phase in phases):
        return 0, 0
    index, merged = 0, samples % sum(phase.samples for phase in phases)
    while merged >= phases[index].samples:
        merged -= phases[index].samples
        index += 1
    return index, merged


def plain_strategy(
    options: ModeOptions, update: OfPhase | None, *, own_optimizers: bool = False
) -> Strategy:
    """The strategy of a mode that is not hybrid; see `make_strategy`."""
    mode = mode_named(options.mode)
    assert mode is not None
    named = {} if is_outside(mode.schedule) else {"name": mode.name}
    return mode.schedule(
        rule=_rule(options, update, own_optimizers),
        local_steps=turn_length(options.local_steps, options.sync_when),
        **named,
        **own_options(options),
    )


def rule_class(options: ModeOptions) -> type[MergeRule]:
    """The rule that was chosen, or whose option was given; else the default."""
    if (asked := rule_of(options)) is not None:
        return asked
    mode = mode_named(options.mode)
    assert mode is not None
    usual, *others = mode.rules
    chosen = [rule for rule in others if getattr(options, rule.option) not in (None, False)]
    return chosen[0] if chosen else usual


def _rule(options: ModeOptions, update: OfPhase | None, own_optimizers: bool) -> MergeRule:
    rule = rule_class(options)
    uncorrected = own_optimizers and most_steps(options.local_steps) > 1
    run = OfARun(update, bool(options.momentum_correction), uncorrected)
    return rule.made(_values(options_of(rule), options), run)
