"""Which way the results of a run take to the center."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from speedo.exchange.codecs import NO_COMPRESSION
from speedo.exchange.factors import choices, table
from speedo.run.config.run_config import RunConfig
from speedo.run.settings import RunSettings
from speedo.sgd_modes.registry import rule_class

if TYPE_CHECKING:
    from speedo.engines.net_trial import CaffeFacts


def sums_over_hosts(config: RunConfig, settings: RunSettings) -> bool:
    """Whether the workers of all hosts are one team, which needs the master only for its reports.

    Not where the mean of each round goes to the master or to servers, or is compressed on its way.
    """
    exact = settings.compression == NO_COMPRESSION
    return config.teams and rule_class(config).adds_mean and exact and not settings.serves


def way_of(config: RunConfig, settings: RunSettings) -> str:
    """In words, for the line that describes an exchange; empty for a run of one worker."""
    if config.workers == 1:
        return ""
    if sums_over_hosts(config, settings):
        return "; all workers are one team, which adds up without the master"
    to = "servers" if settings.serves else "master"
    if config.teams:
        return f"; the workers of each host are a team, which sends its mean of a round to the {to}"
    return f"; each worker sends its own to the {to}"


def factors_of(config: RunConfig, settings: RunSettings, facts: CaffeFacts) -> Iterator[str]:
    """Lines on a net's inner products in a run over hosts: which go as factors, with a worker on each host.

    With several on each the choice is the same, and all bytes are as many times more.
    """
    if config.workers > 1 and settings.factors and sums_over_hosts(config, settings):
        records = settings.batch_sizes[0] * settings.solver.iter_size
        products = [
            replace(one, rows=one.rows * records // facts.samples_per_step)
            for one in facts.products
        ]
        yield from table(choices(products, [1] * config.workers))
