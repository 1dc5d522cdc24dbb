"""Each row of the table of combinations holds for some options, and is said in its own words."""

from __future__ import annotations

from typing import Any

import pytest

from speedo.errors import ConfigError
from speedo.run.config.combinations import (
    EXCLUDED,
    OF_A_MODE,
    OF_AN_ENGINE,
    WITHOUT_EFFECT,
    Combination,
    without_effect,
)
from speedo.run.config.run_config import make_config

ASYNC, PARTIAL = {"mode": "async"}, {"mode": "partial"}
HYBRID = {"mode": "hybrid", "phases": [{"mode": "sync", "iterations": 5}]}
# Options of a run that each row refuses, in the order of the table.
REFUSED: list[dict[str, Any]] = [
    {**PARTIAL, "moving_rate": 0.3, "delta_scale": 0.5},
    {**ASYNC, "sync_when": "norm>1"},
    {**ASYNC, "momentum_correction": True, "server_gradient": True},
    {**ASYNC, "staleness_scaling": True, "server_gradient": True},
    {**PARTIAL, "staleness_scaling": True, "moving_rate": 0.3},
    {**PARTIAL, "server_gradient": True, "moving_rate": 0.3},
    {"server_gradient": True, "local_steps": 2},
    {"server_gradient": True, "delta_scale": 0.5},
    {"mode": "hybrid"},
    {"mode": "sync", "phases": HYBRID["phases"]},
    {"mode": "sync", "rule": "tests.run.config.test_combinations:Sum"},
    {"mode": "sync", "overlap": "all"},
    {**ASYNC, "overlap": "all", "server_gradient": True},
    {**ASYNC, "overlap": "all", "rule": "delay-compensated"},
    {**ASYNC, "overlap": "far", "own": True},
    {**ASYNC, "overlap": "all", "sync_when": "norm>1", "local_steps": 5},
    {**ASYNC, "overlap": "all", "staleness_scaling": True},
    {**PARTIAL, "moving_rate": 0.3, "compress": "topk:0.1"},
    {"best_by": "accuracy"},
    {"redis_tls": True, "redis": "redis://10.0.0.5"},
    {"engine": "caffe", "device": "cuda"},
    {"engine": "caffe", "precision": "bfloat16"},
    {"engine": "caffe", "micro_batch": "8"},
]
UNUSED: list[dict[str, Any]] = [
    {"stretch": 2.0, "compress": "int8"},
    {**ASYNC, "stretch": 2.0},
    {**HYBRID, "factors": "off"},
    {**ASYNC, "team": "off"},
    {**ASYNC, "batch_division": "even"},
    {"data_share": "once", "reshard_after": 5.0},
    {"placement": "pack"},
    {"resources": "cpu=2"},
    {"take_over": True},
]
TABLE = (*OF_A_MODE, *EXCLUDED)


class Sum:
    """A rule that a team cannot sum for, and that is not sound; only its declaration is looked at."""


def test_the_table_has_each_row_once() -> None:
    assert len(TABLE) == len(REFUSED)
    assert len(WITHOUT_EFFECT) == len(UNUSED)
    assert set(OF_AN_ENGINE) <= set(EXCLUDED)
    assert len({one.says for one in TABLE}) == len(TABLE)


@pytest.mark.parametrize(
    ("row", "options"),
    [pair for pair in zip(TABLE, REFUSED, strict=True) if pair[1].get("rule", "delay")[:5] == "delay"],
)  # fmt: skip
def test_what_excludes_each_other_is_refused(row: Combination, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        make_config(options)
    begin = row.says.partition("{")[0][:30]
    assert [text for text in refused.value.problems if text.startswith(begin)], refused.value


@pytest.mark.parametrize(("row", "options"), [*zip(WITHOUT_EFFECT, UNUSED, strict=True)])
def test_what_changes_nothing_is_said(row: Combination, options: dict[str, Any]) -> None:
    config = make_config(options)
    name = row.options[0]
    told = f"{name} is {options[name]} without effect: {row.sentence(config)}"
    assert told in without_effect(config)


@pytest.mark.parametrize(
    "options", [{}, ASYNC, PARTIAL, HYBRID, {"mode": "easgd", "overlap": "all"}]
)
def test_defaults_are_not_spoken_of(options: dict[str, Any]) -> None:
    assert without_effect(make_config(options)) == []
