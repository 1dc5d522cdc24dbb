"""What room a run asks shared memory for: also for what is kept beside the center."""

from __future__ import annotations

from typing import Any

import pytest

from speedo.actors.run_stores import _kept
from speedo.run.config.run_config import make_config

OUTER = {"mode": "sync", "rule": "outer-momentum", "local_steps": 4}


@pytest.mark.parametrize(
    ("options", "vectors"),
    [
        ({"mode": "sync"}, 0),
        ({"mode": "easgd"}, 0),
        ({"mode": "sync", "server_gradient": True}, 2),
        (OUTER, 1),
    ],
)
def test_the_vectors_that_are_kept_beside_the_center(options: dict[str, Any], vectors: int) -> None:
    assert _kept(make_config(options)) == vectors
