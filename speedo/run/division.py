"""How a run divides batches, records and tests among its processes, once the trial of its nets is over.

A division that would not give Caffe's step is not made, and a line says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from speedo.engines.net_trial import NEITHER, CaffeFacts
from speedo.engines.solver.division import (
    obstacle_to_parts,
    order_of_records,
    state_between_batches,
)
from speedo.engines.solver.proto import caffe_proto, parse_text
from speedo.errors import ConfigError, SolverError
from speedo.run.config.run_config import RunConfig
from speedo.run.prepare import Prepared, run_settings


def with_division(prepared: Prepared, facts: CaffeFacts, note: Callable[[str], None]) -> Prepared:
    """The run with its batches, records and tests divided only as its nets allow; `note` gets a line for each change.

    Raises `ConfigError` or `SolverError` for a division that was asked for and cannot be.
    """
    config, spec = prepared.config, prepared.spec
    solver = parse_text(spec.text, caffe_proto().SolverParameter())
    net = solver.train_net_param
    sequence = order_of_records(net)
    if config.splits_batch and config.workers > 1:
        obstacle = sequence or obstacle_to_parts(net)
        if reason := obstacle or facts.undivided:
            # Records that a trial found to depend on each other may be neighbours for a reason.
            sequence = sequence if obstacle else reason
            config = _with_whole_batch(config, reason, facts, note)
        elif facts.division == "sum":
            spec = replace(spec, sums_losses=True)
            note(
                "the loss of a batch is a sum over its records: the workers' gradients are added up"
            )
    if sequence and config.workers > 1:
        config = _with_offset(prepared, config, sequence, note)
    config = _with_tests_in_one(config, solver.test_net_param, note)
    if config is prepared.config and spec is prepared.spec:
        return prepared
    settings = run_settings(config, spec, prepared.run)
    return replace(prepared, config=config, settings=replace(settings, seed=prepared.settings.seed))


def _with_tests_in_one(
    config: RunConfig, nets: Iterable[Any], note: Callable[[str], None]
) -> RunConfig:
    """The options with one tester where a test must not be cut into parts."""
    if config.testers == 1 or not (state := state_between_batches(nets)):
        return config
    note(f"one tester (--testers 1): {state}")
    return config.model_copy(update={"testers": 1})


def _with_whole_batch(
    config: RunConfig, reason: str, facts: CaffeFacts, note: Callable[[str], None]
) -> RunConfig:
    if config.split_batch is None:
        note(
            f"each worker trains on whole batches (--whole-batch), as parts would not give Caffe's step: {reason}"
        )
        return config.model_copy(update={"split_batch": False})
    if facts.undivided not in ("", NEITHER):
        raise SolverError(f"--split-batch: {facts.undivided}; use --whole-batch")
    note(f"warning: with --split-batch the steps are not Caffe's: {reason}")
    return config


def _with_offset(
    prepared: Prepared, config: RunConfig, reason: str, note: Callable[[str], None]
) -> RunConfig:
    """Each worker reads all records in their order, from a place of its own."""
    if config.data_share in ("offset", "same"):
        return config
    if "data_share" in config.model_fields_set:
        note(
            f"warning: --data-share {config.data_share} gives each worker every so many-th record: {reason}"
        )
        return config
    if prepared.records is None:
        raise ConfigError(
            f"{reason}, so the records must stay in their order, but they cannot be counted to begin at several "
            "places: use --workers 1, or --data-share same"
        )
    note(
        f"each worker reads all records, beginning at another place (--data-share offset): {reason}"
    )
    return config.model_copy(update={"data_share": "offset"})
