"""The loader that takes the place of a library's, in a script by itself: one worker has all records."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import speedo
from speedo import integrations
from speedo.integrations import SharedLoader, compute_before_step

EACH_TWICE = Counter(dict.fromkeys(range(5), 2))


@pytest.fixture
def run() -> Any:
    with speedo.join({"w": np.zeros(1, np.float32)}) as run:
        yield run


def taken(run: Any, batches: Any, most: int) -> list[int]:
    """At most so many items, with a step for each."""
    found = []
    for _, item in zip(range(most), batches, strict=False):
        found.append(int(item))
        run.step()
    return found


def test_workers_have_batches_as_they_are_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    for rank in range(3):
        monkeypatch.setattr(integrations, "RANK", rank)
        monkeypatch.setattr(integrations, "SIZE", 3)
        lengths.append((len(SharedLoader(range(8))), len(SharedLoader(range(1)))))
    assert lengths == [(3, 1), (3, 1), (2, 1)]


@pytest.mark.parametrize("most", [3, 5])
def test_a_library_that_counts_batches_trains_the_rest_at_its_end(run: Any, most: int) -> None:
    loader = SharedLoader(list(range(5)), epochs=2)
    seen = [*taken(run, loader, most), *taken(run, loader, most)]
    assert len(seen) == 2 * most
    assert Counter([*seen, *taken(run, loader.rest(), 99)]) == EACH_TWICE


def test_one_that_stops_before_its_last_epoch_leaves_the_rest(run: Any) -> None:
    loader = SharedLoader(list(range(5)), epochs=3)
    seen = [*taken(run, loader, 9), *taken(run, loader, 9)]
    assert (Counter(seen), taken(run, loader.rest(), 9)) == (EACH_TWICE, [])


@pytest.mark.torch
def test_a_closure_is_called_once_before_the_step(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(integrations, "IN_RUN", True)
    w, calls = torch.nn.Parameter(torch.ones(1)), []
    optimizer = torch.optim.SGD([w], lr=0.5)
    compute_before_step(optimizer)
    optimizer.register_step_pre_hook(lambda *_: calls.append("exchange"))

    def closure() -> torch.Tensor:
        calls.append("closure")
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert calls == ["closure", "exchange"]
    assert w.item() == 0.0
