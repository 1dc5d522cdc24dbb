"""Checks the options of a mode and its rule, and what the rule promises of itself."""

from __future__ import annotations

from collections.abc import Sequence

from speedo.messages import Kind
from speedo.run.config.combinations import OF_A_MODE, found_in
from speedo.sgd_modes.base import Mode, options_of
from speedo.sgd_modes.options import ModeOptions, RunOptions
from speedo.sgd_modes.registry import (
    HYBRID,
    PLAIN,
    given_options,
    mode_named,
    rivals,
    rule_class,
    rule_of,
    rules_with,
    takers,
)
from speedo.sgd_modes.rules.base import title_of
from speedo.system.bounds import declared, digits


def problems(options: ModeOptions, workers: int) -> list[str]:
    """Every problem of this mode's options for this many workers, a sentence each; not those of hybrid's phases."""
    mode = mode_named(options.mode)
    if mode is None:
        return []
    found = _problems_of_rule(options, mode)
    for name, own in {**mode.own, **options_of(rule_class(options))}.items():
        if name in options.foreign and own.option.bound:  # of a class of the user's
            found += own.option.bound(name, options.foreign[name])
    for name, value in given_options(options).items():
        told = digits(value) if type(value) is int else value
        option = declared(type(options).model_fields[name].metadata)
        theirs = rules_with(name)
        if mode.takes(name) or name in options_of(rule_class(options)):
            found += option.bound(name, value) if option.bound else []
            if option.below_workers and 0 < workers <= value:
                found.append(
                    f"{name} is {told} of {workers} workers: {option.below_workers}; "
                    "use a number below that of workers"
                )
        elif value is not False and theirs:
            found.append(
                f"{name} is {told}, but only rule {_listed(theirs)} uses it; give --rule, or leave {name} out"
            )
        elif value is not False:
            found.append(
                f"{name} is {told}, but mode {mode.name} does not use it; use --mode {_listed(takers(name))}, or leave "
                f"{name} out"
            )
    return found + found_in(OF_A_MODE, options)


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _problems_of_rule(options: ModeOptions, mode: Mode) -> list[str]:
    """Why this mode cannot merge by the rule that `--rule` chose, and options that set another rule."""
    rule, found = rule_of(options), list[str]()
    if rule is None:
        return found
    name = options.rule
    if not mode.fits(rule):
        fitting = [one.name for one in PLAIN.values() if one.fits(rule)]
        why = "merges the results of a round" if rule.rounds else "merges each result as it comes"
        if not any(one.payload is Kind.DELTA for one in mode.rules):
            why = "merges deltas, and workers of this mode send weights"
        elif rule.payload is not Kind.DELTA:
            why = f"merges {rule.payload.name.lower()}, which only workers of those modes send"
        where = f"use --mode {_listed(fitting)}" if fitting else "a rule of your own merges deltas"
        found.append(f"rule {name} does not go with mode {mode.name}: it {why}; {where}")
    for other in sorted(rivals(mode) - options_of(rule).keys()):
        if (value := getattr(options, other)) not in (None, False):
            found.append(
                f"{other} is {value}, but rule {name} does not use it; leave one of the two out"
            )
    return found


def problems_of_hybrid(options: RunOptions) -> list[str]:
    """Options that belong to a phase of this run."""
    if options.mode != HYBRID:
        return []
    return [
        f"{name} is given for mode hybrid; give it to a phase, as in --phase easgd:1000,{name}=..."
        for name in given_options(options)
    ]


def problems_of_ranges(options: ModeOptions) -> list[str]:
    """Why servers cannot merge by the rule, each in its range."""
    if mode_named(options.mode) is None or (rule := rule_class(options)).by_ranges:
        return []
    what = (
        f"rule {title_of(rule)} does not say by_ranges, so no server can merge its range by itself"
    )
    return [f"servers are asked for, but {what}; use --servers 0"]
