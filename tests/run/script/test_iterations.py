"""Where an iteration of several optimizers ends."""

from __future__ import annotations

import pytest

from speedo.run.script.iterations import Iterations


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ("DGDGDG", "   G G"),  # the first one is known when the second one begins
        ("DDDGDDDG", " DD DDD "),  # no gradient of D is left when it steps again
        ("DGDGDDD", "   G DD"),
    ],
)
def test_an_iteration_ends_with_who_steps_last_before_one_steps_again(
    steps: str, ends: str
) -> None:
    iterations = Iterations()
    found = [iterations.ends_with("DG".index(one)) for one in steps]
    assert "".join(one if end else " " for one, end in zip(steps, found, strict=True)) == ends
