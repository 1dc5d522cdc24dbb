"""Error feedback: what an encoding loses is kept, and is part of the next payload."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.exchange.codecs import make_codec
from speedo.exchange.vector import Blob, Layout

LOSSY = ("bfloat16", "int8", "topk:0.01", "topk:0.3", "sparse:0.01", "sparse:0.3")
LAYOUT = Layout((Blob("ip/0", (1500,)), Blob("bn/0", (7,), statistic=True), Blob("ip/1", (493,))))
STATISTICS = LAYOUT.statistics[0]


@given(st.sampled_from(LOSSY), st.integers(0, 9999), st.integers(1, 12))
def test_what_was_sent_and_what_is_kept_add_up_to_what_was_put_in(
    compress: str, seed: int, turns: int
) -> None:
    random = np.random.default_rng(seed)
    codec, residual, decoded = make_codec(compress, LAYOUT), LAYOUT.zeros(), LAYOUT.zeros()
    put_in, sent = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    for _ in range(turns):
        vector = random.standard_normal(LAYOUT.size).astype(np.float32)
        codec.decode(codec.encode(vector, residual), decoded)
        put_in += vector
        sent += decoded
        np.testing.assert_array_equal(decoded[STATISTICS], vector[STATISTICS])
    assert not residual[STATISTICS].any()
    np.testing.assert_allclose(sent + residual, put_in, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("compress", "off"),
    [
        ("bfloat16", 1e-4),
        ("int8", 1e-4),
        ("topk:0.01", 0.5),
        ("topk:0.3", 0.02),
        ("sparse:0.01", 0.5),
        ("sparse:0.3", 0.06),
    ],
)
def test_in_the_end_all_of_a_steady_vector_arrives(compress: str, off: float) -> None:
    """The kept rest does not grow: after 400 payloads the mean is off by little, whatever one of them lost."""
    vector = np.random.default_rng(3).standard_normal(LAYOUT.size).astype(np.float32)
    codec, residual, decoded = make_codec(compress, LAYOUT), LAYOUT.zeros(), LAYOUT.zeros()
    sent = np.zeros(LAYOUT.size)
    for _ in range(400):
        codec.decode(codec.encode(vector, residual), decoded)
        sent += decoded
    assert np.abs(sent / 400 - vector).max() < off


@pytest.mark.parametrize("compress", LOSSY)
def test_without_feedback_nothing_is_remembered(compress: str) -> None:
    vector = np.random.default_rng(4).standard_normal(LAYOUT.size).astype(np.float32)
    codec = make_codec(compress, LAYOUT)
    first = bytes(codec.encode(vector))
    codec.encode(-vector)
    assert bytes(codec.encode(vector)) == first


@pytest.mark.parametrize("compress", LOSSY)
def test_a_residual_that_is_not_finite_can_not_hide(compress: str) -> None:
    """The reader sees it, refuses the payload, and has the sender forget."""
    codec, residual, decoded = make_codec(compress, LAYOUT), LAYOUT.zeros(), LAYOUT.zeros()
    residual[5] = np.nan
    codec.decode(codec.encode(np.ones(LAYOUT.size, np.float32), residual), decoded)
    assert not np.isfinite(decoded).all()
