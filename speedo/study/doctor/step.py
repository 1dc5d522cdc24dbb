"""What the doctor says of the memory that a training step takes: a sum, and a table of the largest layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from speedo.engines.step_memory import LayerMemory, StepMemory
from speedo.study.doctor.base import Finding, size
from speedo.system.foreign_text import aligned

SHOWN: Final = 10  # layers; the others are one line
COLUMNS: Final = ("parameters", "values", "workspace")
PASSING: Final = "gradients of values"


def step_finding(memory: StepMemory) -> Finding:
    """The finding `step`; its `rows` have every layer, in the order of the net."""
    largest = sorted(memory.layers, key=lambda layer: layer.total, reverse=True)
    shown, rest = largest[:SHOWN], largest[SHOWN:]
    passing = LayerMemory(PASSING, "", values=memory.passing)
    lines = [("layer", *COLUMNS), *(_cells(f"{one.name} ({one.type})", [one]) for one in shown)]
    if rest:
        lines.append(_cells(f"{len(rest)} other layer{'s' * (len(rest) > 1)}", rest))
    if memory.passing:
        lines.append(_cells(PASSING, [passing]))
    lines.append(_cells("all", [*memory.layers, passing]))
    records = "1 record" if memory.batch == 1 else f"{memory.batch:,} records"
    table = "\n".join(aligned(lines))
    text = f"{size(memory.total)} for a batch of {records}, estimated from the shapes\n{table}"
    rows = [_row(one) for one in (*memory.layers, *([passing] if memory.passing else []))]
    return Finding("step", "ok", text, rows=tuple(rows))


def _cells(name: str, layers: Iterable[LayerMemory]) -> tuple[str, ...]:
    layers = list(layers)
    sums = [sum(getattr(one, column) for one in layers) for column in COLUMNS]
    return name, *(size(one) if one else "-" for one in sums)


def _row(layer: LayerMemory) -> dict[str, Any]:
    plain = asdict(layer)
    return {"layer": plain.pop("name"), **plain}
