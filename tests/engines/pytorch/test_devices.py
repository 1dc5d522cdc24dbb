"""Which device a worker and a tester of a host get."""

from __future__ import annotations

import pytest

from speedo.engines.pytorch.devices import chosen_device
from speedo.errors import EngineError


def test_workers_take_the_devices_of_their_host_in_turn() -> None:
    assert [chosen_device("cuda", worker, 3) for worker in range(5)] == [
        "cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1",
    ]  # fmt: skip
    assert chosen_device("auto", 1, 3) == "cuda:1"


def test_testers_take_them_from_the_last_one_on() -> None:
    assert [chosen_device("cuda", -1 - tester, 2) for tester in range(3)] == [
        "cuda:1", "cuda:0", "cuda:1",
    ]  # fmt: skip


def test_without_a_device_auto_is_the_cpu() -> None:
    assert chosen_device("auto", 5, 0) == "cpu"
    assert chosen_device("cpu", 0, 2) == "cpu"


def test_one_device_is_that_of_all_workers() -> None:
    assert chosen_device("cuda:1", 0, 2) == chosen_device("cuda:1", 4, 2) == "cuda:1"


@pytest.mark.parametrize(
    ("device", "count", "words"),
    [
        ("cuda", 0, "the device is cuda, but PyTorch sees no CUDA device on this machine: use --device auto or cpu"),
        ("cuda:0", 0, "the device is cuda:0, but PyTorch sees no CUDA device"),
        ("cuda:2", 2, "the device is cuda:2, but PyTorch sees only cuda:0 to cuda:1 on this machine"),
    ],
)  # fmt: skip
def test_a_device_that_is_not_there_is_named_with_what_to_use(
    device: str, count: int, words: str
) -> None:
    with pytest.raises(EngineError) as caught:
        chosen_device(device, 0, count)
    assert str(caught.value).startswith(words)
