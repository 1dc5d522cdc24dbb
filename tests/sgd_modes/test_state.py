"""A rule's state as bytes: it comes back as it was, and what is damaged or hostile is refused in words."""

from __future__ import annotations

import json
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.errors import PayloadError
from speedo.sgd_modes.rules import State


def state(size: int = 5) -> State:
    vectors = {"momentum": np.arange(size, dtype=np.float32), "square": np.ones(size, np.float32)}
    return State("mine", vectors, {"merges": 3.0})


def test_a_state_comes_back_as_it_was() -> None:
    found = State.unpack(state().pack(), 5)
    assert (found.rule, found.numbers) == ("mine", {"merges": 3.0})
    assert found.pack() == state().pack()
    found.vectors["momentum"] += 1  # nobody else's memory
    assert State.unpack(b"", 5).pack() == b""


def test_the_parts_of_a_state_make_the_whole() -> None:
    whole = state(9)
    parts = [whole.part(slice(0, 4)), whole.part(slice(4, 9))]
    assert State.of_parts(parts).pack() == whole.pack()
    assert not State.of_parts([parts[0], State()])


def head(*values: object, body: bytes = b"") -> bytes:
    text = json.dumps(values).encode()
    return struct.pack("<I", len(text)) + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"\xff\xff\xff\xff" + b"x" * 20,
        struct.pack("<I", 4) + b"nope",
        head("mine", ["a"], 5, {}),  # no vector
        head("mine", ["a"], 4, {}, body=bytes(20)),  # another center's
        head("mine", ["a", "a"], 5, {}, body=bytes(40)),
        head("mine", [1], 5, {}, body=bytes(20)),
        head("mine", [], 0, {"n": "3"}),
        head(3, [], 0, {}),
        head("mine", [], 0, {str(n): 0.0 for n in range(100)}),
        head("mine", ["a"], 5, {}, body=np.full(5, np.nan, "<f4").tobytes()),
        head("mine", [], 0, {"n": float("inf")}),
        state().pack() + b"x",
        state().pack()[:-1],
    ],
)
def test_what_is_no_state_of_this_center_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError, match="state"):
        State.unpack(data, 5)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_state_or_refused(data: bytes) -> None:
    with suppress(PayloadError):
        assert State.unpack(data, 5).is_finite
