"""Checks of what ends a run or a phase, before the start: alone, and with the solver and its test nets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from speedo.sgd_modes.conditions import check_condition, parse_best_by, parse_condition, watched_of
from speedo.sgd_modes.options import PhaseOptions
from speedo.watch.scores import short_scores


class Stops(Protocol):
    """The options of a run that are looked at here."""

    @property
    def target(self) -> str | None: ...
    @property
    def patience(self) -> int | None: ...
    @property
    def keep_best(self) -> bool: ...
    @property
    def best_by(self) -> str | None: ...
    @property
    def test_interval(self) -> int | None: ...
    @property
    def overlap(self) -> str: ...
    @property
    def sync_when(self) -> str | None: ...
    @property
    def staleness_scaling(self) -> bool | None: ...
    @property
    def phases(self) -> Sequence[PhaseOptions]: ...


def _problems_of_ends(phases: Sequence[PhaseOptions]) -> list[str]:
    """Each phase needs an end, except the last of several."""
    found = [
        f"phase {number} ({phase.mode}): {problem}"
        for number, phase in enumerate(phases, 1)
        for problem in check_condition("until", phase.until or "loss<0")
    ]
    return found + [
        f"phase {number} ({phase.mode}) has no end; give its iterations, as in {phase.mode}:500, or a condition, as "
        f"in {phase.mode}:accuracy>=0.8"
        for number, phase in enumerate(phases, 1)
        if phase.iterations is None and phase.until is None and not 1 < number == len(phases)
    ]


def problems_of_stopping(config: Stops) -> list[str]:
    """What is wrong with the ends of phases, and options of stopping and of turns that contradict each other."""
    found = _problems_of_ends(config.phases)
    if config.overlap != "none" and config.sync_when is not None:
        found.append(
            f"overlap is {config.overlap} together with sync_when, which ends turns early: the length of the next turn "
            "is fixed in advance; leave one of the two out"
        )
    if config.overlap != "none" and config.staleness_scaling:
        found.append(
            f"overlap is {config.overlap} together with staleness_scaling: a worker that continues before its result "
            "is merged adds it itself, and does not know its staleness yet; leave one of the two out"
        )
    if config.best_by is not None and not (config.patience or config.keep_best):
        found.append(
            f"best_by is {config.best_by}, but only patience and keep_best use it; give one of them, or leave "
            "best_by out"
        )
    needing = _need_tests(config)
    if config.test_interval == 0 and needing and not _phases_test(config):
        found.append(
            f"{needing[0]} looks at tests during training, but test_interval is 0; give a test_interval"
        )
    return found


def problems_with_tests(config: Stops, *, has_test: bool, test_interval: int) -> list[str]:
    """What needs tests that this solver does not make."""
    needing = _need_tests(config)
    if not has_test:
        those = [*needing, *(["keep_best"] if config.keep_best else [])]
        return [
            f"{name} needs a test net with a test_iter above 0, and the solver has none; add one, or leave {name} out"
            for name in those
        ]
    if needing and not (test_interval or _phases_test(config)):
        return [
            f"{needing[0]} looks at tests during training, but the solver's test_interval is 0; give --test-interval"
        ]
    return []


def problems_with_outputs(config: Stops, outputs: Sequence[str]) -> list[str]:
    """Outputs that the test nets do not have; `outputs` are the names that they have."""
    named = {"target": config.target}
    named |= {f"phase {n}: until": phase.until for n, phase in enumerate(config.phases, 1)}
    wanted = {name: parse_condition(text).output for name, text in named.items() if text}
    if config.best_by is not None:
        wanted["best_by"] = parse_best_by(config.best_by).output
    there = f"its outputs are {', '.join(short_scores(dict.fromkeys(outputs, 0.0)))}"
    found = [
        f"{name} is about {output}, which the test net does not have; {there}"
        for name, output in wanted.items()
        if output not in outputs
    ]
    chosen = watched_of(outputs, config.best_by or "", config.target or "")
    if (config.patience or config.keep_best) and chosen is None:
        found.append(
            f"patience and keep_best compare an accuracy or a loss, and the test net has none; {there}: give one of "
            "them with --best-by"
        )
    return found


def _need_tests(config: Stops) -> list[str]:
    found = [name for name in ("target", "patience") if getattr(config, name)]
    return found + [f"phase {n}" for n, phase in enumerate(config.phases, 1) if phase.until]


def _phases_test(config: Stops) -> bool:
    return any(phase.test_interval for phase in config.phases)
