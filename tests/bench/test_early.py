"""What a ring hides behind a backward pass."""

from __future__ import annotations

import pytest

from bench.early import hidden, ready_before_end

PARTS = [(8.0, 60), (5.0, 30), (0.0, 10)]  # 8 s before the end 60 values are ready


def test_half_of_the_values_are_ready_with_the_first_part() -> None:
    assert [ready_before_end(PARTS, share) for share in (0.5, 0.9, 0.99)] == [8.0, 5.0, 0.0]


@pytest.mark.parametrize(
    ("seconds", "share"),
    [
        (1.0, 0.9),  # all but the last part, which is ready at the end
        # 6 s and 3 s fill the time until 1 s after the end, then comes the last second
        (
            10.0,
            0.8,
        ),
        (100.0, 0.08),  # the link is busy from 8 s before the end on
    ],
)
def test_a_link_that_is_faster_than_the_layers_hides_all_but_the_last(
    seconds: float, share: float
) -> None:
    assert hidden(PARTS, seconds) == pytest.approx(share)


def test_nothing_is_hidden_of_what_is_ready_at_the_end() -> None:
    assert hidden([(0.0, 7)], 3.0) == 0.0
