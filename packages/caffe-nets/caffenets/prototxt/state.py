"""Selects the layers of a net that a solver uses: by phase, level and stages.

Caffe: net.cpp, FilterNet and StateMeetsRule; solver.cpp, InitTrainNet and InitTestNets.
"""

from __future__ import annotations

from typing import Any

from caffenets.errors import SolverError


def merged_state(net: Any, phase: int, state: Any | None) -> Any:
    """The effective NetState: the solver's phase, the net's own state, the solver's state, merged in this order."""
    merged = type(net.state)(phase=phase)
    merged.MergeFrom(net.state)
    if state is not None:
        merged.MergeFrom(state)
    return merged


def filter_net(net: Any, phase: int, state: Any | None, origin: str) -> Any:
    """A copy of the net with only the layers of this state, and without their rules."""
    merged = merged_state(net, phase, state)
    filtered = type(net)()
    filtered.CopyFrom(net)
    del filtered.layer[:]
    filtered.state.CopyFrom(merged)
    for layer in net.layer:
        if layer.include and layer.exclude:
            raise SolverError(
                f"{origin}: layer {layer.name!r} has both include and exclude rules: keep one kind"
            )
        included = not layer.include or any(_meets(merged, rule) for rule in layer.include)
        if included and not any(_meets(merged, rule) for rule in layer.exclude):
            kept = filtered.layer.add()
            kept.CopyFrom(layer)
            kept.ClearField("include")
            kept.ClearField("exclude")
    return filtered


def _meets(state: Any, rule: Any) -> bool:
    if rule.HasField("phase") and rule.phase != state.phase:
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return stages.issuperset(rule.stage) and stages.isdisjoint(rule.not_stage)
