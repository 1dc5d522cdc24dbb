"""Which steps of several optimizers count as iterations."""

from __future__ import annotations

import pytest

from speedo.run.script.iterations import MOST, Iterations


@pytest.mark.parametrize(
    ("steps", "counted"),
    [
        # Without batches: once each optimizer has stepped.
        ("dgdgdg", " 1 1 1"),
        ("dddgdddg", "   1   1"),
        ("gdddgdddg", " 1  1   1"),
        ("d" * MOST + "dg", " " * (MOST - 1) + "1 1"),
        # The first step on a batch is in capitals.
        ("DgDgDg", "1 1 1 "),
        ("DDDgDDDg", "111 111 "),
        ("DgdgdgDgdg", "1  1 11  1"),  # several on a batch
        ("DgDgdgdg", "1 1  1 1"),  # of a loop, and behind it
    ],
)
def test_an_iteration_is_a_batch_or_a_step_of_each(steps: str, counted: str) -> None:
    iterations = Iterations(2)
    found = [iterations.counts("dg".index(one.lower()), begins=one.isupper()) for one in steps]
    assert "".join(" 1"[one] for one in found) == counted
