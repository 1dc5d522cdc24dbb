"""The arithmetic of merging, apart from the schedules: a file for each rule, in place on the float32 center.

A file that declares `RULE`, a class, is found by `speedo.sgd_modes.registry`, and `--rule` takes its name.
"""

from __future__ import annotations

from speedo.sgd_modes.rules.add_delta import AddDelta
from speedo.sgd_modes.rules.average_deltas import AverageDeltas
from speedo.sgd_modes.rules.base import (
    BLOCK,
    Contribution,
    MergeRule,
    add_mean,
    add_scaled,
    add_sums,
    average_into,
    blocks,
    mean_into,
    merge_by,
    scratch_blocks,
    shares_of,
    sum_into,
)
from speedo.sgd_modes.rules.elastic import Elastic, pull_towards
from speedo.sgd_modes.rules.server_gradient import ServerGradient, by_servers
from speedo.sgd_modes.rules.state import NO_STATE, State
from speedo.sgd_modes.rules.take_center import TakeCenter

__all__ = [
    "BLOCK",
    "NO_STATE",
    "AddDelta",
    "AverageDeltas",
    "Contribution",
    "Elastic",
    "MergeRule",
    "ServerGradient",
    "State",
    "TakeCenter",
    "add_mean",
    "add_scaled",
    "add_sums",
    "average_into",
    "blocks",
    "by_servers",
    "mean_into",
    "merge_by",
    "pull_towards",
    "scratch_blocks",
    "shares_of",
    "sum_into",
]
