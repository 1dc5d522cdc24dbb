"""A module's gradients as one vector: which are averaged, and what becomes of those that are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

    return ModuleWeights(model, [torch.optim.SGD(model.parameters(), lr=1.0)]).gradients()


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
    gradients = ModuleWeights(model, [optimizer]).gradients()
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


def test_the_end_of_a_backward_pass_is_told_once_also_for_parameters_that_come_later() -> None:
    import torch
    from torch import nn

    from speedo.engines.pytorch.module_weights import ModuleWeights, together

    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    second.requires_grad_(False)
    both = [torch.optim.SGD(one.parameters(), lr=1.0) for one in (first, second)]
    gradients = ModuleWeights(together([first, second]), both).gradients()
    ended: list[bool] = []
    gradients.on_backward(lambda: ended.append(first.weight.grad is not None))
    second(first(torch.ones(1, 2))).sum().backward()
    assert ended == [True]
    gradients.forget(0)
    second.requires_grad_(True)
    second(torch.ones(1, 2)).sum().backward()
    assert ended == [True]  # nobody has looked since then
    gradients.watch_parameters()
    second(torch.ones(1, 2)).sum().backward()
    assert ended == [True, False]
    gradients.remove()
    second(first(torch.ones(1, 2))).sum().backward()
    assert ended == [True, False]


def test_rates_are_compared_and_handed_over_with_the_schedulers() -> None:
    import torch
    from torch import nn

    from speedo.engines.pytorch.module_weights import ModuleWeights

    def made(rate: float, steps: int) -> tuple[torch.optim.SGD, Any, ModuleGradients]:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
        return optimizer, scheduler, ModuleWeights(model, [optimizer], [scheduler]).gradients()

    (own, scheduler, gradients), (_, _, others) = made(0.1, 0), made(0.4, 3)
    assert gradients.rates_key() == made(0.1, 0)[2].rates_key() != others.rates_key()
    gradients.load_rates(others.rates())
    assert gradients.rates_key() == others.rates_key()
    assert own.param_groups[0]["lr"] == pytest.approx(0.05)
    assert (scheduler.last_epoch, scheduler.get_last_lr()) == (3, [pytest.approx(0.05)])


def test_a_scheduler_that_is_named_later_is_the_same_in_all_workers() -> None:
    import torch
    from torch import nn

    from speedo.engines.pytorch.module_weights import ModuleWeights

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = ModuleWeights(model, [optimizer])
    gradients = weights.gradients()
    before = gradients.rates_key()
    weights.schedulers.append(torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, 9))
    assert gradients.rates_key() != before


def test_averages_that_change_are_no_new_version_for_a_graph_that_has_them() -> None:
    import torch
    from torch import nn

    model = nn.BatchNorm1d(2)
    gradients = gradients_of(model)
    loss = model(torch.randn(4, 2)).pow(2).sum()
    gradients.set_gradients(np.arange(8, dtype=np.float32), np.zeros(4, np.uint8))
    loss.backward()


def test_a_sparse_gradient_is_refused_with_its_name() -> None:
    import torch
    from torch import nn

    model = nn.Embedding(4, 2, sparse=True)
    gradients = gradients_of(model)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match=r"the gradient of weight is stored as torch\.sparse_coo"):
        taken(gradients, 8)
