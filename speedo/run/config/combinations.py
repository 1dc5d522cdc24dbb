"""The one table of options that exclude each other, or that have no effect beside another; docs/options.md has it, too.

`EXCLUDED` is refused before a run. `WITHOUT_EFFECT` is said when it begins: nothing that a user gave is ignored in
silence. What a mode, a phase or a rule takes at all is in `speedo.run.config.mode_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Final

from speedo.exchange.codecs import CODECS, is_fraction
from speedo.sgd_modes.registry import (
    HYBRID,
    PLAIN,
    is_elastic,
    may_overlap,
    mode_named,
    rule_class,
    waits_for_all,
)
from speedo.sgd_modes.rules import AddDelta, Elastic
from speedo.sgd_modes.rules.base import title_of
from speedo.sgd_modes.turn_length import most_steps
from speedo.system.bounds import said

_OVERLAPPING: Final = " or ".join(mode for mode in PLAIN if may_overlap(mode))
_WHOLE: Final = " or ".join(name for name in CODECS if name != "none" and not is_fraction(name))


@dataclass(frozen=True)
class Combination:
    """Options that do not go together `when` this holds for those of a run or a phase; `says` has their values."""

    options: tuple[str, ...]
    when: Callable[[Any], object]
    says: str

    def sentence(self, options: Any) -> str:
        names = [name for _, name, _, _ in Formatter().parse(self.says) if name]
        return self.says.format(**{name: _value(options, name) for name in names})


def _value(options: Any, name: str) -> str:
    if name == "rule_title":
        return title_of(rule_class(options))
    value = getattr(options, name)
    return said(value) if name == "local_steps" else str(value)


def _overlaps(one: Any) -> bool:
    return bool(one.overlap != "none" and may_overlap(one.mode))


def _parts(run: Any) -> Sequence[Any]:
    """The run, or its phases."""
    return run.phases or (run,)


def _rule_of(one: Any) -> Any:
    return rule_class(one) if mode_named(one.mode) is not None else AddDelta


# fmt: off
# Of a run of one mode, or of a phase of mode hybrid.
OF_A_MODE: Final = (
    Combination(("moving_rate", "delta_scale"), lambda one: None not in (one.moving_rate, one.delta_scale),
        "delta_scale is {delta_scale} together with moving_rate {moving_rate}: elastic averaging merges weights, not "
        "deltas; leave one of the two out"),
    Combination(("sync_when", "local_steps"),
        lambda one: one.sync_when is not None and most_steps(one.local_steps) == 1,
        "sync_when is {sync_when} with local_steps 1: each turn is one step already; give --local-steps the most steps "
        "of a turn"),
    Combination(("momentum_correction", "server_gradient"), lambda one: one.momentum_correction and one.server_gradient,
        "momentum_correction together with server_gradient, where workers have no momentum; leave one out"),
    Combination(("staleness_scaling", "server_gradient"), lambda one: one.staleness_scaling and one.server_gradient,
        "staleness_scaling together with server_gradient: it scales deltas; leave one out"),
    Combination(("staleness_scaling", "moving_rate"),
        lambda one: one.staleness_scaling and one.moving_rate is not None and not one.server_gradient,
        "staleness_scaling together with moving_rate: it scales deltas; leave one out"),
    Combination(("server_gradient", "moving_rate"), lambda one: one.server_gradient and one.moving_rate is not None,
        "server_gradient and elastic averaging cannot be combined; leave one out"),
    Combination(("server_gradient", "local_steps"), lambda one: one.server_gradient and most_steps(one.local_steps) > 1,
        "server_gradient with local_steps {local_steps}: a raw gradient is that of one set of weights; use local_steps "
        "1, and --batch for more samples per gradient"),
    Combination(("server_gradient", "delta_scale"), lambda one: one.server_gradient and one.delta_scale is not None,
        "server_gradient sends no deltas; leave delta_scale out"),
)
OF_AN_ENGINE: Final = (
    Combination(("engine", "device"), lambda run: run.engine == "caffe" and run.device.startswith("cuda"),
        "device is {device}, but with the engine caffe the solver's solver_mode decides about GPUs; leave device out, "
        "or use --engine torch"),
    Combination(("engine", "precision"), lambda run: run.engine == "caffe" and run.precision != "float32",
        "precision is {precision}, but Caffe computes with float32 alone; leave precision out, or use --engine torch"),
    Combination(("engine", "micro_batch"), lambda run: run.engine == "caffe" and run.micro_batch,
        "micro_batch is for the engine torch; leave it out and set iter_size in the solver, or use --engine torch"),
)
EXCLUDED: Final = (
    Combination(("mode", "phases"), lambda run: run.mode == HYBRID and not run.phases,
        "mode hybrid has no phases; give at least one, for example --phase sync:500 --phase easgd:1000"),
    Combination(("phases", "mode"), lambda run: run.mode != HYBRID and run.phases,
        "phases are given, but the mode is {mode}; use --mode hybrid"),
    Combination(("team", "rule"),
        lambda run: run.team == "host" and waits_for_all(run) and not _rule_of(run).by_mean,
        "team is host, but the workers of a host cannot sum for {rule_title}, the rule of mode {mode}, as it does not "
        "say by_mean; use --team off"),
    Combination(("overlap", "mode"), lambda run: run.overlap != "none" and not may_overlap(run.mode),
        "overlap is {overlap}, but in mode {mode} a turn needs other workers' results; "
        f"use --mode {_OVERLAPPING}, or leave overlap out"),
    Combination(("overlap", "server_gradient"), lambda run: _overlaps(run) and run.server_gradient,
        "overlap is {overlap} together with server_gradient, whose updates only the master can apply; leave one of the "
        "two out"),
    Combination(("overlap", "rule"),
        lambda run: _overlaps(run) and not run.server_gradient and not _rule_of(run).foreseen,
        f"overlap is given, but only with rule {AddDelta.name} or {Elastic.name} a worker knows what becomes of its "
        "result; leave it out with rule {rule_title}"),
    Combination(("overlap", "own"), lambda run: run.overlap == "far" and run.own,
        "overlap is far, but the scripts of a run overlap on all hosts or on none; use --overlap all"),
    Combination(("overlap", "sync_when"), lambda run: run.overlap != "none" and run.sync_when is not None,
        "overlap is {overlap} together with sync_when, which ends turns early: the length of the next turn is fixed in "
        "advance; leave one of the two out"),
    Combination(("overlap", "staleness_scaling"), lambda run: run.overlap != "none" and run.staleness_scaling,
        "overlap is {overlap} together with staleness_scaling: a worker that continues before its result is merged "
        "adds it itself, and does not know its staleness yet; leave one of the two out"),
    Combination(("compress", "moving_rate"),
        lambda run: is_fraction(run.compress) and any(map(is_elastic, _parts(run))),
        "compress is {compress}, but elastic averaging sends weights, and a fraction of them is not a model; "
        f"use {_WHOLE}"),
    Combination(("best_by", "patience", "keep_best"),
        lambda run: run.best_by is not None and not (run.patience or run.keep_best),
        "best_by is {best_by}, but only patience and keep_best use it; give one of them, or leave best_by out"),
    Combination(("redis_tls", "redis"), lambda run: run.redis_tls and run.redis is not None,
        "redis_tls is for the Redis that SpeeDO starts, but redis names your own; leave redis_tls out, and write its "
        "URL as rediss://..."),
    *OF_AN_ENGINE,
)
WITHOUT_EFFECT: Final = (
    Combination(("stretch", "compress"), lambda run: run.compress != "none",
        "a team reports after each round where results are compressed"),
    Combination(("stretch", "mode"), lambda run: not run.teams, "mode {mode} has no team here"),
    Combination(("factors", "mode"), lambda run: not run.teams, "mode {mode} has no team here"),
    Combination(("team", "mode"), lambda run: not waits_for_all(run),
        "in mode {mode} no round waits for all workers, so there is no team"),
    Combination(("batch_division", "mode"),
        lambda run: not ((run.splits_batch or run.own) and waits_for_all(run)),
        "a batch is divided by speed only where a round waits for all workers and splits the batch"),
    Combination(("reshard_after", "data_share"), lambda run: run.data_share not in ("shard", "own"),
        "with --data-share {data_share} there is nothing to distribute again"),
    Combination(("placement", "ray"), lambda run: run.ray is None, "no --ray names a cluster"),
    Combination(("resources", "ray"), lambda run: run.ray is None, "no --ray names a cluster"),
    Combination(("take_over", "resume"), lambda run: run.resume is None, "no --resume names a run"),
)
# fmt: on


def found_in(table: Sequence[Combination], options: Any) -> list[str]:
    """A sentence for each combination of the table that these options have."""
    return [one.sentence(options) for one in table if one.when(options)]


def without_effect(options: Any) -> list[str]:
    """What was given, and changes nothing: a sentence each."""
    usual = type(options).model_fields
    return [
        f"{name} is {getattr(options, name)} without effect: {one.sentence(options)}"
        for one in WITHOUT_EFFECT
        if getattr(options, name := one.options[0]) != usual[name].default and one.when(options)
    ]
