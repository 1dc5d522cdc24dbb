"""What a script keeps, as bytes: everything comes back as it was, and what is no such bytes is refused."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest

from speedo.errors import ConfigError
from speedo.exchange.packed import pack, unpack


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"epoch": 3, "best": float("inf"), "name": "é\ud800", "on": True, 5: (1, [2.5, None])},
        {"a": {}, "b": [], "c": (), "d": b"\n\x00", ("x", 1): ""},
        2**200,
        random.Random(3).getstate(),
        np.random.default_rng(3).bit_generator.state,
    ],
)
def test_what_is_packed_comes_back(value: Any) -> None:
    again = unpack(pack(value))
    assert again == value
    assert type(again) is type(value)


def test_counters_stay_counters_and_an_ordered_dictionary_its_order() -> None:
    value = {"milestones": Counter([30, 60, 60]), "named": OrderedDict(z=1, a=2)}
    again = unpack(pack(value))
    assert again["milestones"]["no such"] == 0
    assert list(again["named"]) == ["z", "a"]


@pytest.mark.parametrize("kind", ["<f4", ">f8", "<u4", "?", "<c8", "<f2"])
def test_arrays_keep_their_type_and_shape_and_can_be_written_to(kind: str) -> None:
    value = np.array([[0, 1, 1], [1, 0, 0]]).astype(kind)
    again = unpack(pack([value, np.float32(0.5), np.zeros((0, 3))]))
    np.testing.assert_array_equal(again[0], value)
    assert again[0].dtype == value.dtype.newbyteorder("<")
    assert (again[1], again[2].shape) == (0.5, (0, 3))
    again[0][0] = 0


@pytest.mark.torch
def test_tensors_come_back_to_the_bit_and_alone() -> None:
    import torch

    from speedo.engines.pytorch.packed_tensors import TENSORS

    value = {
        "half": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16).T,
        "random": torch.get_rng_state(),
        "none": torch.empty(0, 4),
        "one": torch.tensor(3),
        "complex": torch.tensor([1 + 2j]).conj(),
        "wide": torch.arange(100)[3:5],
    }
    data = pack(value, kinds=TENSORS)
    again = unpack(data, TENSORS)
    for name, tensor in value.items():
        assert torch.equal(again[name], tensor)
        assert again[name].dtype == tensor.dtype
    assert len(pack(value["wide"], kinds=TENSORS)) < 100


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"f": [1, print]},
            r"scheduler\['f'\]\[1\] has the type builtin_function_or_method, which",
        ),
        ({object(): 1}, "a key of scheduler has the type object"),
        ({"x": np.array([object()])}, r"scheduler\['x'\] cannot be saved: an array of object"),
        ({"x": {1, 2}}, r"scheduler\['x'\] has the type set"),
    ],
)
def test_what_cannot_be_packed_is_named_by_its_place(value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pack(value, "scheduler")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]\n",
        b"{}\n",
        b'{"object": []}\n',
        b'{"list": 3}\n',
        b'{"dict": [[1]]}\n',
        b'{"dict": [[{"list": []}, 1]]}\n',
        b'{"bytes": 3}\nab',
        b'{"bytes": -1}\nab',
        b'{"bytes": 1}\nab',
        b'{"array": [8, ["O", [1]]]}\n12345678',
        b'{"array": [8, ["<f4", [3]]]}\n12345678',
        b'{"tensor": [4, ["float32", [1]]]}\n1234',
        b"[" * 100_000,
    ],
)
def test_what_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(data)
