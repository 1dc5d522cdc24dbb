"""The checker of the fault matrix notices what is broken: doctored logs, each with one promise broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.caffe_import import load_caffe
from tests.support.invariants import broken, read_lines, wrong_model
from tests.support.sabotaged_net import write_problem

Line = dict[str, Any]
EPOCH_1 = 1_000_000_000


def merged(time: float, worker: int, ticket: int, version: int, incarnation: int = 1) -> Line:
    return {
        "time": time, "event": "result", "decision": "merged", "worker": worker,
        "incarnation": incarnation, "ticket": ticket, "version": version, "iteration": version,
        "samples": 8, "loss": 0.5,
    }  # fmt: skip


def joined(time: float, worker: int, incarnation: int = 1) -> Line:
    return {"time": time, "event": "joined", "worker": worker, "incarnation": incarnation}


def dropped(time: float, decision: str, worker: int, ticket: int) -> Line:
    return {
        "time": time, "event": "result", "decision": decision, "reason": "its ticket is not outstanding",
        "worker": worker, "incarnation": 1, "ticket": ticket, "loss": 0.5,
    }  # fmt: skip


def sound() -> tuple[list[Line], Line]:
    """A run of two masters: worker 1 dies, its ticket 4 is lost; the second begins at version 2."""
    first, second = EPOCH_1 + 1, EPOCH_1 + 2
    lines = [
        joined(0.0, 0), joined(0.0, 1),
        merged(1.0, 0, 1, 1), merged(1.1, 1, 2, 2), dropped(1.2, "late", 1, 2),
        merged(2.0, 0, 3, 3),
        {"time": 2.1, "event": "left", "worker": 1, "incarnation": 1, "cause": "killed"},
        merged(3.0, 0, 5, 4),
        {"time": 9.0, "event": "resumed", "epoch": 1, "version": 2, "iteration": 2, "samples": 16},
        joined(9.1, 0), joined(9.1, 1),
        merged(10.0, 0, first, 3), merged(10.0, 1, second, 3), dropped(10.5, "refused", 0, EPOCH_1 + 3),
        {"time": 11.0, "event": "finish", "complete": True, "reason": "reached max_iter 3"},
        {"time": 11.5, "event": "test", "version": 3, "iteration": 3, "metrics": {"loss": 0.4},
         "problem": None},
    ]  # fmt: skip
    result = {
        "version": 3, "samples": 32, "metrics": {"loss": 0.4}, "complete": True,
        "reason": "reached max_iter 3", "dropped": {"late": 1, "refused": 1},
    }  # fmt: skip
    return lines, result


def test_a_sound_log_breaks_nothing() -> None:
    lines, result = sound()
    assert broken(lines, result, gap_s=5.0) == []


def change(index: int, **values: Any) -> Callable[[list[Line], Line], None]:
    return lambda lines, result: lines[index].update(values)


def add(index: int, line: Line) -> Callable[[list[Line], Line], None]:
    return lambda lines, result: lines.insert(index, line)


def told(**values: Any) -> Callable[[list[Line], Line], None]:
    return lambda lines, result: result.update(values)


DOCTORED = {
    "a ticket merged twice": (change(5, ticket=1), "I1: ticket 1 is merged twice"),
    "one of an epoch after": (change(11, ticket=2 * EPOCH_1 + 7), "7 is not of epoch 1"),
    "one repeated by the next master": (change(11, ticket=5), "I1: ticket 5 is merged twice"),
    "a worker that never joined": (change(5, worker=7), "I1: ticket 3 is merged, and its"),
    "an old incarnation": (change(11, incarnation=2), "its worker never joined"),
    "a version left out": (change(7, version=5), "I2: version 5 follows version 3"),
    "a version that falls": (change(7, version=2), "I2: version 2 follows version 3"),
    "the checkpoint's version again": (change(11, version=2), "I2: version 2 follows version 2"),
    "an iteration that falls": (change(7, iteration=1), "I2: iteration 1 follows 3"),
    "one version of two iterations": (change(12, iteration=9), "I2: version 3 is of two iterations"),
    "a clock that goes back": (change(5, time=0.5), "I2: the log goes back in time"),
    "a drop without a cause": (change(4, reason=""), "I3: ticket 2 is late without a cause"),
    "a fate that is none": (change(4, decision="lost"), "I3: ticket 2 is lost"),
    "two fates": (change(4, decision="refused"), "I3: ticket 2 has 2 fates"),
    "results that vanish": (change(7, ticket=9), "I3: 5 results are not accounted for"),
    "a death without a cause": (change(6, cause=""), "I3: worker 1 left without a cause"),
    "samples that vanish": (told(samples=24), "I3: the result counts 24 samples, the log 32"),
    "a loss that is no number": (change(5, loss=None), "I4: the loss of ticket 3 is None"),
    "a loss that is infinite": (change(5, loss=float("inf")), "I4: the loss of ticket 3 is inf"),
    "a run that stands still": (change(7, time=8.5), "I6: no merge for 6.5 s, from 2.0 s on"),
    "an end without a reason": (told(reason="somehow"), "I6: the log ends with"),
    "another version exported": (told(version=2), "I7: the result is of version 2, the last is 3"),
    "another version tested": (change(-1, version=2), "I7: version 3, the last, is not tested"),
    "another result than tested": (told(metrics={"loss": 0.1}), "I7: the result is not that of"),
    "set aside for no reason": (
        add(3, {"time": 1.0, "event": "set-aside", "worker": 1, "reason": ""}),
        "I3: worker 1 is set aside without a cause",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DOCTORED)
def test_a_doctored_log_is_noticed(what: str) -> None:
    doctor, sentence = DOCTORED[what]
    lines, result = copy.deepcopy(sound())
    doctor(lines, result)
    found = broken(lines, result, gap_s=5.0)
    assert any(sentence in one for one in found), found


def test_counts_of_the_result_that_differ_from_the_log_are_noticed() -> None:
    lines, result = sound()
    lines, result["version"], result["samples"] = lines[:8] + lines[-2:], 4, 32
    lines[-1].update(version=4)
    result["dropped"] = {"late": 1}
    assert broken(lines, result, gap_s=5.0) == []
    result["dropped"] = {"late": 2}
    assert broken(lines, result, gap_s=5.0) == [
        "I3: the result counts {'late': 2}, the log {'late': 1}"
    ]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"time": 1.0, "event": "joined"}\n{"time": 2.0, "ev')
    assert read_lines(file) == [{"time": 1.0, "event": "joined"}]


@pytest.mark.caffe
def test_a_model_that_is_not_finite_or_not_what_was_tested_is_noticed(tmp_path: Path) -> None:
    net = write_problem(tmp_path / "problem").with_name("net.prototxt")
    caffe = load_caffe()
    caffe.set_mode_cpu()
    built = caffe.Net(str(net), caffe.TEST)
    model = tmp_path / "model.caffemodel"
    built.save(str(model))
    passes = [{name: float(value) for name, value in built.forward().items()} for _ in range(2)]
    metrics = {name: float(np.mean([one[name] for one in passes])) for name in passes[0]}
    assert wrong_model(net, model, metrics) == []
    (found,) = wrong_model(net, model, metrics | {"loss": metrics["loss"] + 0.01})
    assert found.startswith("I7: loss of the exported model is ")
    assert wrong_model(net, model, {"loss": metrics["loss"]})[0].startswith("I7: the model has")
    built.params["ip"][1].data[0] = np.nan
    built.save(str(model))
    assert wrong_model(net, model, metrics) == ["I4: the exported model is not finite"]
