"""Checks of what ends a run or a phase, before the start: alone, and with the solver and its test nets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speedo.sgd_modes.conditions import check_condition, parse_best_by, parse_condition, watched_of
from speedo.sgd_modes.options import PhaseOptions
from speedo.watch.scores import short_scores


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


def problems_of_stopping(config: Any) -> list[str]:
    """What is wrong with the ends of phases, and tests that are needed and are not made."""
    found = _problems_of_ends(config.phases)
    needing = _need_tests(config)
    if config.test_interval == 0 and needing and not _phases_test(config):
        found.append(
            f"{needing[0]} looks at tests during training, but test_interval is 0; give a test_interval"
        )
    return found


def problems_with_tests(config: Any, *, has_test: bool, test_interval: int) -> list[str]:
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


def problems_with_outputs(config: Any, outputs: Sequence[str]) -> list[str]:
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


def _need_tests(config: Any) -> list[str]:
    found = [name for name in ("target", "patience") if getattr(config, name)]
    return found + [f"phase {n}" for n, phase in enumerate(config.phases, 1) if phase.until]


def _phases_test(config: Any) -> bool:
    return any(phase.test_interval for phase in config.phases)
