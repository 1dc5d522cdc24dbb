"""A module's gradients as one vector: which are averaged, and what becomes of those that are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from speedo.errors import ConfigError

if TYPE_CHECKING:
    from torch.nn import Module

    from speedo.engines.pytorch.module_gradients import ModuleGradients

pytestmark = pytest.mark.torch


def gradients_of(model: Module) -> ModuleGradients:
    import torch

    from speedo.engines.pytorch.module_weights import ModuleWeights

    return ModuleWeights(model, torch.optim.SGD(model.parameters(), lr=1.0)).gradients()


def taken(gradients: ModuleGradients, size: int) -> tuple[list[float], list[int]]:
    out, present = np.full(size, 7, np.float32), np.zeros(gradients.blobs, np.uint8)
    gradients.take_gradients(out, present)
    return out.tolist(), present.tolist()


def test_what_has_no_gradient_or_is_not_the_optimizers_is_left_alone() -> None:
    import torch
    from torch import nn

    from speedo.engines.pytorch.module_weights import ModuleWeights

    model = nn.Module()
    model.w, model.unused, model.frozen, model.foreign = (
        nn.Parameter(torch.full((2,), float(at)), requires_grad=at != 2) for at in range(4)
    )
    optimizer = torch.optim.SGD([model.w, model.unused, model.frozen], lr=1.0)
    gradients = ModuleWeights(model, optimizer).gradients()
    ((model.w * 3).sum() + (model.foreign * 5).sum()).backward()
    assert taken(gradients, 8) == ([3, 3, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0])
    # Another worker has used what is unused here.
    gradients.set_gradients(np.arange(8, dtype=np.float32), np.array([1, 1, 0, 0], np.uint8))
    optimizer.step()
    found = [one.tolist() for one in (model.w, model.unused, model.frozen, model.foreign)]
    assert found == [[0, -1], [-1, -2], [2, 2], [3, 3]]
    assert model.foreign.grad is not None
    assert model.foreign.grad.tolist() == [5, 5]


def test_nobodys_gradient_is_none_so_that_momentum_does_not_move_the_parameter() -> None:
    import torch
    from torch import nn

    model = nn.Linear(1, 1)
    gradients = gradients_of(model)
    model.weight.grad = torch.ones(1, 1)
    gradients.set_gradients(np.zeros(2, np.float32), np.zeros(2, np.uint8))
    assert model.weight.grad is None


def test_moving_averages_travel_beside_the_gradients() -> None:
    import torch
    from torch import nn

    model = nn.BatchNorm1d(2)
    gradients = gradients_of(model)
    model.running_mean.copy_(torch.tensor([4.0, 5.0]))
    assert taken(gradients, 8) == ([0, 0, 0, 0, 4, 5, 1, 1], [0, 0, 0, 0])
    gradients.set_gradients(np.arange(8, dtype=np.float32), np.zeros(4, np.uint8))
    assert model.running_mean.tolist() == [4, 5]
    assert model.running_var.tolist() == [6, 7]


def test_values_of_other_types_keep_theirs() -> None:
    import torch
    from torch import nn

    model = nn.Linear(1, 1).to(torch.bfloat16)
    gradients = gradients_of(model)
    gradients.set_gradients(np.array([1.5, 2.5], np.float32), np.ones(2, np.uint8))
    assert model.weight.grad is not None
    assert model.weight.grad.dtype is torch.bfloat16
    assert taken(gradients, 2) == ([1.5, 2.5], [1, 1])


def test_own_gradients_come_back_after_a_step_of_the_others() -> None:
    import torch
    from torch import nn

    model = nn.Linear(1, 1)
    gradients = gradients_of(model)
    model.weight.grad = torch.full((1, 1), 3.0)
    before = model.weight.item()
    with gradients.set_aside():
        assert model.weight.grad is None
        gradients.set_gradients(np.array([1, 1], np.float32), np.ones(2, np.uint8))
        gradients.step()
    assert model.weight.item() == pytest.approx(before - 1)
    assert model.weight.grad.item() == 3.0
    assert model.bias.grad is None


def test_a_sparse_gradient_is_refused_with_its_name() -> None:
    import torch
    from torch import nn

    model = nn.Embedding(4, 2, sparse=True)
    gradients = gradients_of(model)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match=r"the gradient of weight is stored as torch\.sparse_coo"):
        taken(gradients, 8)
