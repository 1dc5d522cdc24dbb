"""A user's module and optimizer as weights. Nothing of PyTorch is imported where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from speedo.errors import ConfigError, EngineError, ScriptMistake
from speedo.exchange.vector import Blob, Vector

if TYPE_CHECKING:
    import torch
    from torch.nn import Module
    from torch.optim import Optimizer

    from speedo.engines.pytorch.module_weights import ModuleWeights

pytestmark = pytest.mark.torch


def net() -> Module:
    import torch
    from torch import nn

    torch.manual_seed(3)
    made = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    made[0].weight.requires_grad_(False)
    return made


def batch() -> torch.Tensor:
    import torch

    return torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def weights_of(module: Module, optimizer: Optimizer | None = None) -> ModuleWeights:
    from speedo.engines.pytorch.module_weights import ModuleWeights

    return ModuleWeights(module, [] if optimizer is None else [optimizer])


def read(weights: ModuleWeights) -> Vector:
    out = weights.layout.zeros()
    weights.read_weights(out)
    return out


def some(size: int) -> Vector:
    """Values that every type holds exactly."""
    return np.random.default_rng(size).integers(-99, 99, size).astype(np.float32)


def train(module: Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        module(batch()).square().mean().backward()
        optimizer.step()


def test_the_layout_has_parameters_then_moving_averages_and_no_counter() -> None:
    layout = weights_of(net()).layout
    assert [blob.name for blob in layout.blobs] == [
        "0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "1.running_mean", "1.running_var",
    ]  # fmt: skip
    assert [blob.name for blob in layout.blobs if blob.average] == [
        "1.running_mean", "1.running_var",
    ]  # fmt: skip
    assert layout.statistics == layout.averages


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_weights_come_and_go_to_the_bit(dtype: str, channels_last: bool) -> None:
    import torch

    module = net().to(getattr(torch, dtype))
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
        assert not module[0].weight.is_contiguous()  # type: ignore[index]
    weights = weights_of(module)
    first = module[0].weight.detach().float().numpy()  # type: ignore[index]
    assert read(weights)[: first.size].tobytes() == first.tobytes("C")
    values = some(weights.layout.size)
    values.flags.writeable = False  # as a center in shared memory
    weights.load_weights(values)
    assert read(weights).tobytes() == values.tobytes()

    def change(blob: Blob, place: slice, memory: Vector) -> None:
        assert memory.dtype == np.float32
        assert memory.tobytes() == values[place].tobytes()
        memory += 1

    weights.change_weights(change)
    assert read(weights).tobytes() == (values + 1).tobytes()
    assert module[1].num_batches_tracked == 0  # type: ignore[index]


def test_float64_keeps_its_precision_where_nothing_changes_in_float32() -> None:
    import torch

    module = torch.nn.Linear(3, 2, dtype=torch.float64)
    torch.nn.init.constant_(module.weight, 0.1)
    before = module.weight.detach().clone()
    weights = weights_of(module)
    weights.load_weights(read(weights))
    assert torch.equal(module.weight, before)

    def change(blob: Blob, place: slice, memory: Vector) -> None:
        memory[0] = 5

    weights.change_weights(change)
    assert module.weight.flatten().tolist() == [5.0, *[0.1] * 5]


def test_a_shared_parameter_is_there_once_and_buffers_that_are_not_saved_are_not() -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    module[1].weight = module[0].weight
    module.register_buffer("own", torch.full((2,), float("-inf")), persistent=False)
    weights = weights_of(module)
    assert [blob.name for blob in weights.layout.blobs] == ["0.weight", "0.bias", "1.bias"]
    weights.load_weights(some(weights.layout.size))
    assert module[1].weight.detach().numpy().tobytes() == some(15)[:9].tobytes()


def test_a_buffer_that_was_replaced_is_found_by_its_name() -> None:
    import torch

    module = net()
    weights = weights_of(module)
    module[1].running_mean = torch.full((4,), 7.0)  # type: ignore[index]
    assert read(weights)[weights.layout.averages[0]].tolist() == [7.0] * 4


def test_weights_can_be_loaded_between_steps_of_a_trained_module() -> None:
    import torch

    module = net()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    weights = weights_of(module, optimizer)
    before = read(weights)
    train(module, optimizer, 2)
    after = read(weights)
    frozen = module[0].weight.numel()  # type: ignore[index]
    assert before[:frozen].tobytes() == after[:frozen].tobytes()
    assert (before[frozen:] != after[frozen:]).mean() > 0.9
    weights.load_weights(before)
    train(module, optimizer, 1)


def on_meta() -> Module:
    import torch

    return torch.nn.Linear(2, 2, device="meta")


def without_parameters() -> Module:
    import torch

    return torch.nn.ReLU()


def lazy() -> Module:
    import torch

    return torch.nn.LazyLinear(2)


def complex_one() -> Module:
    import torch

    return torch.nn.Linear(2, 2, dtype=torch.complex64)


def filled(value: float) -> Module:
    import torch

    module = torch.nn.Linear(2, 2)
    module.register_buffer("mask", torch.tensor([0.0, value]))
    return module


def test_a_mask_of_infinities_stays_with_each_worker() -> None:
    import torch

    module = filled(float("-inf"))
    weights = weights_of(module)
    assert [blob.name for blob in weights.layout.blobs] == ["weight", "bias"]
    weights.load_weights(np.ones(6, np.float32))
    assert module.state_dict()["mask"].tolist() == [0.0, float("-inf")]
    assert bool((module.weight == 1).all())
    assert torch.equal(module.bias, torch.ones(2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (on_meta, "parameter weight of the model is on the meta device.*to_empty"),
        (without_parameters, "no parameters: there is nothing to train"),
        (lazy, "parameter weight of the model has no shape yet: run one batch"),
        (complex_one, "parameter weight of the model has the type torch.complex64: only float32"),
        (
            partial(filled, float("nan")),
            "buffer mask .* NaN, so it is no moving average: .*persistent",
        ),
    ],
)
def test_a_model_that_cannot_be_averaged_is_refused(make: Callable[[], Module], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        weights_of(make())


def test_an_optimizer_of_another_model_is_refused() -> None:
    import torch

    optimizer = torch.optim.SGD(torch.nn.Linear(7, 5).parameters(), 0.1)
    with pytest.raises(ConfigError, match=r"a parameter of shape \(5, 7\) that the model given"):
        weights_of(net(), optimizer)


def test_steps_are_counted_until_the_handle_is_removed() -> None:
    import torch

    module = net()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    calls: list[int] = []
    handle = weights_of(module, optimizer).on_step(calls.append)
    train(module, optimizer, 3)
    handle.remove()
    train(module, optimizer, 2)
    assert len(calls) == 3
    with pytest.raises(ConfigError, match="no optimizer: give it beside the model"):
        weights_of(module).on_step(print)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "betas": (0.8, 0.95), "amsgrad": True},
}


def optimizer_of(name: str, module: Module, **other: Any) -> Optimizer:
    import torch

    made: Optimizer = getattr(torch.optim, name)(module.parameters(), **(OPTIMIZERS[name] | other))
    return made


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_after_its_state_is_loaded_the_next_steps_are_the_same_to_the_bit(name: str) -> None:
    module, other = net(), net()
    optimizer = optimizer_of(name, module)
    train(module, optimizer, 3)
    weights = weights_of(module, optimizer)
    own = optimizer_of(name, other, lr=0.5)
    copy = weights_of(other, own)
    copy.load_weights(read(weights))
    copy.load_state(weights.state())
    assert copy.state() == weights.state()
    train(module, optimizer, 2)
    train(other, own, 2)
    assert read(copy).tobytes() == read(weights).tobytes()


def test_a_state_of_another_optimizer_or_model_or_damaged_is_refused() -> None:
    import torch

    module = net()
    optimizer = optimizer_of("SGD", module)
    train(module, optimizer, 1)
    weights = weights_of(module, optimizer)
    state = weights.state()
    small = torch.nn.Linear(2, 2)
    for into in (weights_of(module, optimizer_of("Adam", module)),
                 weights_of(small, optimizer_of("SGD", small))):  # fmt: skip
        with pytest.raises(EngineError, match="of another optimizer, or of parameters of other"):
            into.load_state(state)
    for damaged in (state[:-1], state + b"0", state[10:], b"", b"{}", b"[]",
                    state.replace(b"float32", b"no_type")):  # fmt: skip
        with pytest.raises(EngineError, match=r"cannot be loaded into this SGD .*use the same"):
            weights.load_state(damaged)
    assert weights.state() == state


def test_a_value_that_cannot_be_saved_is_named() -> None:
    module = net()
    optimizer = optimizer_of("SGD", module)
    optimizer.param_groups[0]["mine"] = object()
    said = r"optimizer\['state'\]\['param_groups'\]\[0\]\['mine'\] has the type object, which cannot be saved"
    with pytest.raises(ConfigError, match=said):
        weights_of(module, optimizer).state()


def test_a_parameter_that_another_optimizer_changes_is_found_and_what_is_loaded_is_no_change() -> (
    None
):
    import torch

    module = net()
    head = torch.optim.SGD(module[3].parameters(), lr=0.1)
    weights = weights_of(module, head)
    weights.check_changes()
    train(module, head, 2)
    weights.check_changes()
    weights.load_weights(some(weights.layout.size))
    weights.check_changes()
    weights.change_weights(lambda blob, place, values: np.copyto(values, 1.0))
    weights.check_changes()
    train(module, torch.optim.SGD(module[1].parameters(), lr=0.1), 1)
    with pytest.raises(ConfigError, match=r"parameter 1\.weight of the model was changed"):
        weights.check_changes()


def test_the_steps_of_a_wrapped_optimizer_are_those_of_the_one_inside() -> None:
    import torch

    class Prepared(torch.optim.Optimizer):
        def __init__(self, optimizer: Optimizer) -> None:
            self.optimizer = optimizer

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.optimizer.step()

    module, steps = net(), list[int]()
    inside = torch.optim.SGD(module.parameters(), lr=0.1)
    wrapped = Prepared(Prepared(inside))
    handle = weights_of(module, wrapped).on_step(steps.append)
    wrapped.step()
    handle.remove()
    assert steps == [0]


def test_an_optimizer_may_get_parameters_later_that_the_model_had_when_it_was_joined() -> None:
    import torch

    module = net()
    optimizer = torch.optim.SGD(module[3].parameters(), lr=0.1)
    weights = weights_of(module, optimizer)
    weights.check_changes()
    optimizer.add_param_group({"params": list(module[1].parameters())})
    train(module, optimizer, 1)
    weights.check_changes()
    optimizer.add_param_group({"params": list(torch.nn.Linear(7, 5).parameters())})
    with pytest.raises(ScriptMistake, match="join, after the model is complete"):
        weights.check_changes()


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
def test_synchronised_statistics_of_one_worker_are_those_of_batch_norm(kind: str) -> None:
    import torch
    from torch import nn

    from speedo.engines.pytorch.module_weights import ModuleWeights

    dtype = getattr(torch, kind)
    plain = nn.BatchNorm2d(3, dtype=dtype)
    module = nn.Sequential(nn.SyncBatchNorm(3, dtype=dtype))
    x = torch.randn(4, 3, 5, 5, dtype=dtype)
    synchronised = ModuleWeights(module).synchronised(lambda values: None)
    close = {"rtol": 0.02, "atol": 0.02} if kind == "bfloat16" else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(module(x), plain(x), **close)
    torch.testing.assert_close(module[0].running_var, plain.running_var, **close)
    synchronised.remove()
    module.eval()
    torch.testing.assert_close(module(x), plain.eval()(x), **close)
