"""Checks of how results are merged, against the options that say how they travel and who merges them."""

from __future__ import annotations

from speedo.exchange.codecs import CODECS, is_fraction
from speedo.run.config.mode_checks import problems_of_overlap, problems_of_ranges, problems_of_teams
from speedo.sgd_modes.options import RunOptions
from speedo.sgd_modes.registry import HYBRID, PLAIN, given_options, is_elastic, may_overlap
from speedo.system.bounds import Overlap


def problems_of_merging(
    options: RunOptions, *, team: bool, servers: bool, overlap: Overlap, compress: str
) -> list[str]:
    """Options that the mode, its phases or the rule cannot have."""
    found: list[str] = []
    mode, parts = options.mode, options.phases or (options,)
    if mode == HYBRID and not options.phases:
        found.append(
            "mode hybrid has no phases; give at least one, for example --phase sync:500 --phase easgd:1000"
        )
    if mode == HYBRID:
        found += [
            f"{name} is given for mode hybrid; give it to a phase, as in --phase easgd:1000,{name}=..."
            for name in given_options(options)
        ]
    elif options.phases:
        found.append(f"phases are given, but the mode is {mode}; use --mode hybrid")
    found += problems_of_teams(options) if team else []
    found += [one for part in parts for one in problems_of_ranges(part)] if servers else []
    if overlap != "none" and not may_overlap(mode):
        those = " or ".join(mode for mode in PLAIN if may_overlap(mode))
        found.append(
            f"overlap is {overlap}, but in mode {mode} a turn needs other workers' results; "
            f"use --mode {those}, or leave overlap out"
        )
    elif overlap != "none" and options.server_gradient:
        found.append(
            f"overlap is {overlap} together with server_gradient, whose updates only the master can apply; "
            "leave one of the two out"
        )
    elif overlap != "none":
        found += problems_of_overlap(options)
    if is_fraction(compress) and any(is_elastic(part) for part in parts):
        whole = [name for name in CODECS if name != "none" and not is_fraction(name)]
        found.append(
            f"compress is {compress}, but elastic averaging sends weights, and a fraction of them is "
            f"not a model; use {' or '.join(whole)}"
        )
    return found
