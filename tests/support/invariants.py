"""The promises of a run (RELIABILITY, I1 to I7), checked from what it left: metrics, result and model.

Shares no code with the product: it reads JSON, and scores the model with plain pycaffe.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from speedo.engines.caffe_import import load_caffe

Line = dict[str, Any]
DECISIONS = {"merged", "discarded", "late", "refused"}
TICKETS_OF_AN_EPOCH = 1_000_000_000
TEST_ITER = 2


@dataclass
class Epoch:
    """The lines that one master wrote, and where it began."""

    number: int = 0
    version: int = 0
    samples: int = 0
    lines: list[Line] = field(default_factory=list)

    def results(self, *decisions: str) -> list[Line]:
        return [
            line
            for line in self.lines
            if line["event"] == "result" and (not decisions or line["decision"] in decisions)
        ]


def read_lines(file: Path) -> list[Line]:
    """The whole lines of a log; the last may be torn by a kill."""
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def epochs_of(lines: Iterable[Line]) -> list[Epoch]:
    found = [Epoch()]
    for line in lines:
        if line["event"] == "resumed":
            found.append(Epoch(line["epoch"], line["version"], line["samples"]))
        else:
            found[-1].lines.append(line)
    return found


def broken(
    lines: Sequence[Line], result: Line | None, *, gap_s: float, depth: int = 1
) -> list[str]:
    """Every promise that the log breaks, a sentence each; `gap_s` is the longest time without a merge.

    A worker has at most `depth` turns at once.
    """
    epochs = epochs_of(lines)
    found = [*_merged_once(epochs), *_in_order(lines)]
    for epoch in epochs:
        found += _versions(epoch)
        found += _accounted_for(epoch, depth)
        found += _finite(epoch)
        found += _alive(epoch, gap_s)
    if result is not None:
        found += _agrees(epochs, result)
    return found


def check_run(run: Path, net: Path | None = None, *, gap_s: float) -> list[Line]:
    """Raise an `AssertionError` with all that is broken; the lines of the run otherwise.

    With `net`, a train and test net, the exported model is scored and compared with what the run says.
    """
    lines = read_lines(run / "metrics.jsonl")
    config = run / "config.yaml"
    overlaps = config.exists() and "overlap: all" in config.read_text(encoding="utf-8")
    file = run / "result.json"
    result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    found = broken(lines, result, gap_s=gap_s, depth=2 if overlaps else 1)
    if net is not None and result is not None:
        found += wrong_model(net, Path(result["model"]), result["metrics"])
    assert not found, "\n".join(found[:20])
    return lines


# ---------------------------------------------------------------- I1, I2


def _merged_once(epochs: list[Epoch]) -> list[str]:
    found = []
    seen: set[int] = set()
    for epoch in epochs:
        present: set[tuple[int, int]] = set()
        brought: set[int] = set()
        first = epoch.number * TICKETS_OF_AN_EPOCH
        for line in epoch.lines:
            if line["event"] == "joined":
                present.add((line["worker"], line["incarnation"]))
            if line.get("decision") != "merged":
                continue
            if line["ticket"] in seen:
                found.append(f"I1: ticket {line['ticket']} is merged twice")
            seen.add(line["ticket"])
            if (line["worker"], line["incarnation"]) not in present:
                found.append(f"I1: ticket {line['ticket']} is merged, and its worker never joined")
            if line["ticket"] <= first and line["worker"] not in brought:
                brought.add(line["worker"])  # one turn that a former master gave out
            elif not first < line["ticket"] <= first + TICKETS_OF_AN_EPOCH:
                found.append(f"I1: ticket {line['ticket']} is not of epoch {epoch.number}")
    return found


def _versions(epoch: Epoch) -> list[str]:
    found = []
    version, iteration = epoch.version, 0
    for line in epoch.results("merged"):
        if line["version"] not in (version, version + 1) or line["version"] == epoch.version:
            found.append(f"I2: version {line['version']} follows version {version}")
        if line["version"] == version and line["iteration"] != iteration:
            found.append(f"I2: version {version} is of two iterations")
        if line["iteration"] < iteration:
            found.append(f"I2: iteration {line['iteration']} follows {iteration}")
        version, iteration = line["version"], line["iteration"]
    return found


def _in_order(lines: Sequence[Line]) -> list[str]:
    times = [line["time"] for line in lines]
    return [
        f"I2: the log goes back in time, from {before} to {after} s"
        for before, after in itertools.pairwise(times)
        if after < before
    ]


# ---------------------------------------------------------------- I3, I4, I6


def _accounted_for(epoch: Epoch, depth: int) -> list[str]:
    """Each ticket has one fate; a worker that is gone, or the end, may leave its turns without."""
    found = []
    fates: Counter[int] = Counter()
    tickets = set()
    for line in epoch.results():
        tickets.add(line["ticket"])
        if line["decision"] not in DECISIONS:
            found.append(f"I3: ticket {line['ticket']} is {line['decision']}")
        if line["decision"] != "merged" and not line.get("reason"):
            found.append(f"I3: ticket {line['ticket']} is {line['decision']} without a cause")
        if line["decision"] != "late":
            fates[line["ticket"]] += 1
    found += [f"I3: ticket {one} has {count} fates" for one, count in fates.items() if count > 1]
    joined = sum(line["event"] == "joined" for line in epoch.lines)
    if tickets:
        first = epoch.number * TICKETS_OF_AN_EPOCH
        lost = max(tickets) - first - len(tickets)
        if lost > depth * joined:
            found.append(f"I3: {lost} results are not accounted for, by {joined} workers")
    for line in epoch.lines:
        if line["event"] == "left" and not line.get("cause"):
            found.append(f"I3: worker {line['worker']} left without a cause")
        if line["event"] == "set-aside" and not line.get("reason"):
            found.append(f"I3: worker {line['worker']} is set aside without a cause")
    return found


def _finite(epoch: Epoch) -> list[str]:
    return [
        f"I4: the loss of ticket {line['ticket']} is {line['loss']}, and it is merged"
        for line in epoch.results("merged")
        if line["loss"] is None or not math.isfinite(line["loss"])
    ]


def _alive(epoch: Epoch, gap_s: float) -> list[str]:
    times = [line["time"] for line in epoch.results("merged")]
    return [
        f"I6: no merge for {after - before:.1f} s, from {before} s on"
        for before, after in itertools.pairwise(times)
        if after - before > gap_s
    ]


# ---------------------------------------------------------------- I3, I7: the result


def _agrees(epochs: list[Epoch], result: Line) -> list[str]:
    last = epochs[-1]
    merged = last.results("merged")
    version = merged[-1]["version"] if merged else last.version
    samples = last.samples + sum(line["samples"] for line in merged)
    found = []
    if result["version"] != version:
        found.append(f"I7: the result is of version {result['version']}, the last is {version}")
    if result["samples"] != samples:
        found.append(f"I3: the result counts {result['samples']} samples, the log {samples}")
    tests = {line["version"]: line for line in last.lines if line["event"] == "test"}
    if version not in tests:
        found.append(f"I7: version {version}, the last, is not tested")
    elif tests[version]["metrics"] != result["metrics"]:
        found.append(f"I7: the result is not that of the test of version {version}")
    ends = [line for line in last.lines if line["event"] == "finish"]
    if [(one["complete"], one["reason"]) for one in ends] != [
        (result["complete"], result["reason"])
    ]:
        found.append(f"I6: the log ends with {ends}, the result with {result['reason']!r}")
    if len(epochs) == 1:  # of a resumed run those after its checkpoint are in the log alone
        fates = Counter(line["decision"] for line in last.results())
        told = {name: count for name, count in result["dropped"].items() if count}
        del fates["merged"]
        if told != dict(fates):
            found.append(f"I3: the result counts {told}, the log {dict(fates)}")
    return found


def check_too_few(lines: Iterable[Line]) -> list[bool]:
    """Nothing is merged while too few workers are there; whether the end was waited for, of each such time."""
    found = list[bool]()
    for line in lines:
        if line["event"] == "workers":
            if line["problem"] is None:
                found[-1] = False
            else:
                found.append(True)
        assert not (any(found) and line.get("decision") == "merged"), line
    return found


def wrong_model(net: Path, model: Path, metrics: dict[str, float]) -> list[str]:
    """What is wrong with an exported model: not finite (I4), or not what was tested (I7)."""
    caffe = load_caffe()
    caffe.set_mode_cpu()
    tested = caffe.Net(str(net), str(model), caffe.TEST)
    values = [blob.data for blobs in tested.params.values() for blob in blobs]
    if not all(np.isfinite(value).all() for value in values):
        return ["I4: the exported model is not finite"]
    sums: Counter[str] = Counter()
    for _ in range(TEST_ITER):
        sums.update({name: float(value) for name, value in tested.forward().items()})
    scores = {name: total / TEST_ITER for name, total in sums.items()}
    if scores.keys() != metrics.keys():
        return [f"I7: the model has the outputs {sorted(scores)}, tested were {sorted(metrics)}"]
    return [
        f"I7: {name} of the exported model is {scores[name]}, told was {value}"
        for name, value in metrics.items()
        if not math.isclose(scores[name], value, rel_tol=1e-4, abs_tol=1e-6)
    ]
