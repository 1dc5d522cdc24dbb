"""Checksums of data: the same in each process that has the same data, whatever augments it."""

from __future__ import annotations

import random
from multiprocessing import active_children
from typing import Any

import numpy as np
import pytest

from speedo.worker.data_checks import checksum, checksums_of
from speedo.worker.own_random import OwnRandom
from speedo.worker.record_source import record_source


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        ("a", b"a"),
        ((1, [2]), (1, 2, 3)),
        ({"a": 1}, {"a": 2}),
        (np.arange(3), np.arange(3, dtype=np.int32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.array([1.0, 2.0]), np.array([1.0, 2.01])),
        (np.array(["x", None]), np.array(["y", None])),
    ],
)
def test_a_checksum_is_of_values_types_and_shapes(one: Any, other: Any) -> None:
    assert checksum(one) == checksum(one) != checksum(other)


def test_neither_addresses_nor_the_last_bits_of_a_sum_count() -> None:
    assert checksum([object(), np.array([object()], object)]) == checksum(
        [object(), np.array([object()], object)]
    )
    x = np.linspace(0, 1, 1000)
    assert checksum(x) == checksum(x * (1 + 1e-7))


def test_random_numbers_apart_begin_and_continue_and_leave_the_scripts_alone() -> None:
    def draw() -> tuple[float, float]:
        return random.random(), float(np.random.random())

    random.seed(1)
    np.random.seed(1)
    expected = [draw(), draw()]
    with OwnRandom(5, 2):
        whole = [draw(), draw()]
    random.seed(1)
    np.random.seed(1)
    apart, found = OwnRandom(5, 2), []
    for _ in range(2):
        with apart:
            found.append(draw())
        assert draw() == expected[len(found) - 1]
    assert found == whole


def test_records_that_are_augmented_are_compared_and_others_are_left_out() -> None:
    class Augmented:
        def __init__(self, generator: Any) -> None:
            self.generator, self.read = generator, set[int]()

        def __len__(self) -> int:
            return 100

        def __getitem__(self, number: int) -> float:
            self.read.add(number)
            if number == 50:
                raise OSError
            return number + float(self.generator.random())

    data = [Augmented(np.random), Augmented(np.random), Augmented(np.random.default_rng())]
    assert checksums_of(9, data[0].__getitem__) == checksums_of(9, data[1].__getitem__)
    assert len(checksums_of(9, data[0].__getitem__)) == 3
    assert data[0].read == {0, 4, 8}
    assert checksums_of(9, data[2].__getitem__) == {}  # its own random numbers
    assert checksums_of(100, data[0].__getitem__) == {}
    assert dict(record_source(data[0]).compared()) == {
        "the number of records": "100",
        "shuffle": "False",
        "the checksum of their order": checksum(None),
    }


@pytest.mark.torch
@pytest.mark.processes
def test_what_a_loaders_process_reads_is_the_same_and_opened_there() -> None:
    """A file of HDF5 that is open when processes fork is read wrongly in them."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Opens(Dataset[Any]):
        file: Any = None

        def __len__(self) -> int:
            return 40

        def __getitem__(self, number: int) -> torch.Tensor:
            self.file = self.file or object()
            return torch.rand(3) + number

    data, state = Opens(), torch.get_rng_state()
    found = [
        record_source(DataLoader(data, 4, num_workers=workers)).compared() for workers in (2, 0)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 6
    assert torch.equal(torch.get_rng_state(), state)
    assert active_children() == []
    one = Opens()
    record_source(DataLoader(one, 4, num_workers=2)).compared()
    assert one.file is None
