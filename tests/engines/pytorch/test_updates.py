"""The updates in PyTorch against Caffe's own: six solver types, L1 and L2, clipped and not, several batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speedo.engines.solver import LrPolicy, read_solver
from speedo.engines.solver_update import BLOCK, Multipliers, SolverUpdate
from speedo.engines.update_rules import RULES, SolverFields
from speedo.exchange.vector import Blob, Layout, Vector
from tests.support.nets import net_text, write_solver
from tests.support.update_trials import (
    NET,
    TRIALS,
    Outcome,
    Trial,
    apart,
    by_caffe,
    gradients,
    rule_of,
)

pytestmark = pytest.mark.torch

FORMS = pytest.mark.parametrize("whole", [False, True], ids=["in blocks", "at once"])
# Blobs of several blocks and of one value, with two statistics between them.
LAYOUT = Layout(
    (
        Blob("a/0", (3, BLOCK - 7)),
        Blob("a/1", (5,)),
        Blob("bn/0", (4,), True),
        Blob("bn/1", (1,), True),
        Blob("b/0", (40, 50)),
        Blob("b/1", (1,)),
    )
)
MULTIPLIERS = (
    Multipliers(), Multipliers(2, 0), Multipliers(0, 0), Multipliers(0, 0), Multipliers(0.5, 3), Multipliers(0, 1),
)  # fmt: skip


def by_torch(
    layout: Layout,
    fields: SolverFields,
    blobs: tuple[Multipliers, ...],
    schedule: LrPolicy,
    before: Vector,
    *,
    whole: bool,
) -> Outcome:
    """Weights and history after the updates of `gradients`."""
    import torch

    from speedo.engines.pytorch.flat import FlatParameters
    from speedo.engines.pytorch.updates import ParameterUpdate

    parameters = FlatParameters(layout, torch.device("cpu"))
    parameters.write(before)
    update = ParameterUpdate(fields, layout, blobs, parameters.flat, whole=whole)
    for iteration, gradient in gradients(layout):
        given = parameters.on_device(gradient)
        parameters.add_statistics(given)
        update.apply(parameters.as_gradients(given), schedule.rate(iteration))
    after = layout.zeros()
    parameters.read(after)
    return Outcome(after, update.history.numpy().reshape(-1).copy())


@FORMS
@pytest.mark.caffe
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_twenty_updates_are_those_of_caffe(home: Path, trial: Trial, whole: bool) -> None:
    """Within 4 units in the last place of the largest value."""
    spec = read_solver(write_solver(home, net_text(NET), **trial.fields()))
    layout, before, expected = by_caffe(spec)
    rule = rule_of(spec, layout)
    blobs = tuple(segment_multipliers(rule, layout))
    found = by_torch(layout, rule._fields, blobs, spec.lr_policy, before, whole=whole)
    assert apart(found.weights, expected.weights) <= 4
    assert apart(found.history, expected.history) <= 4


@FORMS
@pytest.mark.parametrize("kind", RULES)
def test_large_blobs_and_statistics_are_updated_as_by_the_rules_in_numpy(
    kind: str, whole: bool
) -> None:
    # Without decay: where it all but cancels a gradient, Adam and RMSProp enlarge what rounding leaves.
    fields = SolverFields(kind, 0.9 if kind not in ("AdaGrad", "RMSProp") else 0.0)
    schedule = LrPolicy("fixed", 0.05)
    before = np.random.default_rng(1).standard_normal(LAYOUT.size).astype(np.float32)
    rules = SolverUpdate(fields, LAYOUT, MULTIPLIERS, schedule)
    expected = before.copy()
    for iteration, gradient in gradients(LAYOUT):
        rules.update(expected, gradient, iteration)
    found = by_torch(LAYOUT, fields, MULTIPLIERS, schedule, before, whole=whole)
    assert apart(found.weights, expected) <= 4
    assert apart(found.history, rules.flat) <= 4
    for place in LAYOUT.statistics:
        np.testing.assert_array_equal(found.weights[place], expected[place])
        assert not found.history.reshape(-1, LAYOUT.size)[:, place].any()


@FORMS
def test_the_delta_is_the_sum_of_what_was_subtracted(whole: bool) -> None:
    import torch

    from speedo.engines.pytorch.flat import FlatParameters
    from speedo.engines.pytorch.updates import ParameterUpdate

    parameters = FlatParameters(LAYOUT, torch.device("cpu"))
    # Weights of zero: what is added to them is not rounded.
    fields = SolverFields("Nesterov", 0.9)
    update = ParameterUpdate(fields, LAYOUT, MULTIPLIERS, parameters.flat, whole=whole)
    delta = torch.zeros(LAYOUT.size)
    for step, (_, gradient) in enumerate(gradients(LAYOUT)):
        if step < 2:
            given = parameters.as_gradients(parameters.on_device(gradient))
            update.apply(given, 0.1, delta=delta, onto=step > 0)
    after = LAYOUT.zeros()
    parameters.read(after)
    assert np.abs(after).max() > 0.01
    np.testing.assert_array_equal(delta.numpy(), after)


@FORMS
def test_a_gradient_that_is_missing_is_zero(whole: bool) -> None:
    """The momentum goes on, and the decay."""
    import torch

    from speedo.engines.pytorch.flat import FlatParameters
    from speedo.engines.pytorch.updates import ParameterUpdate

    parameters = FlatParameters(LAYOUT, torch.device("cpu"))
    parameters.write(np.ones(LAYOUT.size, np.float32))
    fields = SolverFields("SGD", 0.5, weight_decay=0.1)
    update = ParameterUpdate(fields, LAYOUT, MULTIPLIERS, parameters.flat, whole=whole)
    nothing = [None] * len(LAYOUT.blobs)
    for _ in range(2):
        update.apply(nothing, 1.0)
    found = dict(zip((blob.name for blob in LAYOUT.blobs), parameters.leaves, strict=True))
    # h = 0.1, w = 0.9; then h = 0.05 + 0.09, w = 0.76.
    assert float(found["a/0"][0, 0]) == pytest.approx(0.76)
    assert float(found["a/1"][0]) == 1.0
    assert float(found["bn/0"][0]) == 1.0


def segment_multipliers(rule: SolverUpdate, layout: Layout) -> list[Multipliers]:
    """Those of every blob, from the segments that the rule has made of them."""
    found = []
    for _, place in layout.slices():
        (own,) = [
            segment.own
            for segment in rule._segments
            if segment.place.start <= place.start < segment.place.stop
        ]
        found.append(own)
    return found
