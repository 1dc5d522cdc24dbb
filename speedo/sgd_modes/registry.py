"""From a mode's name and options to its strategy; the one place that knows all modes."""

from __future__ import annotations

from collections.abc import Callable

from speedo.config.mode_options import DEFAULT_MAX_ADVANCE, DEFAULT_WINDOW, ModeOptions
from speedo.config.run_config import RunConfig
from speedo.sgd_modes.asynchronous import Asynchronous
from speedo.sgd_modes.base import Strategy
from speedo.sgd_modes.easgd import easgd
from speedo.sgd_modes.hybrid import Hybrid, Phase
from speedo.sgd_modes.partial import Partial
from speedo.sgd_modes.rules import AddDelta, AverageDeltas, Elastic, MergeRule, ServerGradient
from speedo.sgd_modes.synchronous import Synchronous
from speedo.sgd_modes.weed_out import WeedOut
from speedo.vectors.vector import Vector

Update = Callable[[Vector, Vector, int], None]


def make_strategy(
    config: RunConfig, batch: int, update: Update | None = None, *, samples: int = 0
) -> Strategy:
    """The strategy of this configuration. `batch` is the samples of one iteration, for hybrid phases.

    `update` applies a raw gradient to the center; it is needed with `server_gradient` alone. `samples` is what a
    resumed run had merged: its phases go on from there.
    """
    if config.mode != "hybrid":
        return _plain(config.mode, config, update)
    phases = [
        Phase(lambda phase=phase: _plain(phase.mode, phase, update), phase.iterations * batch)  # type: ignore[misc]
        for phase in config.phases
    ]
    index, merged = 0, samples % sum(phase.samples for phase in phases)
    while merged >= phases[index].samples:
        merged -= phases[index].samples
        index += 1
    return Hybrid(phases, index=index, merged=merged)


def needs_update(config: RunConfig) -> bool:
    """Whether the master must be able to apply gradients."""
    return bool(config.server_gradient) or any(phase.server_gradient for phase in config.phases)


def _plain(mode: str, options: ModeOptions, update: Update | None) -> Strategy:
    steps = options.local_steps
    if mode == "easgd":
        return easgd(options.moving_rate, steps)
    rule = _rule(mode, options, update)
    if mode == "sync":
        return Synchronous(rule, steps, options.backup_workers)
    if mode == "async":
        return Asynchronous(rule, steps)
    if mode == "partial":
        return Partial(rule, options.max_advance or DEFAULT_MAX_ADVANCE, steps)
    return WeedOut(rule, options.window or DEFAULT_WINDOW, steps)


def _rule(mode: str, options: ModeOptions, update: Update | None) -> MergeRule:
    if options.server_gradient:
        if update is None:
            raise ValueError("server_gradient needs the master's update")
        return ServerGradient(update)
    if options.moving_rate is not None:
        return Elastic(options.moving_rate)
    if mode == "sync":
        return AverageDeltas(options.delta_scale)
    return AddDelta(options.delta_scale)
