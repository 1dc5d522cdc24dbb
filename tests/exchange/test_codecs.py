"""What goes through a codec comes back within its bounds, in a body of the length that it said."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedo.errors import ConfigError, PayloadError
from speedo.exchange.codecs import CODECS, bytes_of, check_encoding, is_fraction, make_codec
from speedo.exchange.vector import Blob, Header, Layout, Vector
from speedo.messages import Kind
from tests.support.errors import refused

ALL = tuple(
    form
    for name, codec in CODECS.items()
    for form in ((f"{name}:0.01", f"{name}:0.5") if codec.takes_fraction else (name,))
)
LOSSY = tuple(form for form in ALL if form != "none")
SIZES = (0, 1, 2, 3, 1023, 1024, 1025, 32_768, 33_793, 65_537)

# Statistics in the midst, at the end, and one alone; 100,003 parameters in all.
BATCH_NORM = Layout(
    (
        Blob("conv/0", (3, 9)),
        Blob("bn/0", (9,), statistic=True),
        Blob("ip/0", (99_963,)),
        Blob("bn/2", (1,), statistic=True),
        Blob("bn/1", (3,), statistic=True),
    )
)


def test_each_codec_has_its_number_in_the_header() -> None:
    numbers = {codec.name: codec.dtype for codec in CODECS.values()}
    assert numbers.items() >= {"none": 1, "bfloat16": 2, "int8": 3, "topk": 4, "sparse": 5}.items()
    assert len({*numbers.values()}) == len(numbers)


@pytest.mark.parametrize(
    ("dtype", "written"), [(2, "bfloat16"), (3, "int8"), (4, "topk"), (6, "number 6"), (0, "number 0")]
)  # fmt: skip
def test_a_vector_that_is_written_otherwise_than_expected_is_refused(
    dtype: int, written: str
) -> None:
    expected = make_codec("none", plain(1))
    check_encoding(Header(Kind.DELTA, 1, 0, 0, 0, dtype=1), expected)
    with pytest.raises(PayloadError, match=f"with compression {written} but this run uses none"):
        check_encoding(Header(Kind.DELTA, 1, 0, 0, 0, dtype=dtype), expected)


def plain(size: int) -> Layout:
    return Layout((Blob("w/0", (size,)),))


def through(compress: str, vector: Vector, layout: Layout | None = None) -> Vector:
    """The vector once more, by one codec's encoding and another's decoding."""
    layout = layout or plain(vector.size)
    sender, reader = make_codec(compress, layout), make_codec(compress, layout)
    before = vector.tobytes()
    body = bytes(sender.encode(vector))
    assert vector.tobytes() == before
    assert len(body) == sender.body_bytes == reader.body_bytes
    found = np.full(vector.shape, 7.0, np.float32)
    reader.decode(memoryview(body), found)
    return found


def vectors(size: int) -> st.SearchStrategy[Vector]:
    """Values of all sizes, some of them zero, mixed or in stretches, as layers have them."""

    def make(seed: int, low: int, high: int, empty: float, sort: bool) -> Vector:
        random = np.random.default_rng(seed)
        exponents = random.uniform(low, max(low, high), size)
        values = random.standard_normal(size) * 10.0 ** (np.sort(exponents) if sort else exponents)
        values[random.random(size) < empty] = 0.0
        return values.astype(np.float32)

    shares = st.sampled_from((0.0, 0.5, 0.999, 1.0))
    return st.builds(
        make, st.integers(0, 999), st.integers(-40, 10), st.integers(-40, 10), shares, st.booleans()
    )


any_vector = st.sampled_from(SIZES).flatmap(vectors)


@given(any_vector)
def test_float32_comes_back_to_the_bit(vector: Vector) -> None:
    assert through("none", vector).tobytes() == vector.tobytes()


@given(any_vector)
def test_bfloat16_is_off_by_at_most_a_256th_of_each_value(vector: Vector) -> None:
    error = np.abs(through("bfloat16", vector) - vector)
    assert (error <= np.maximum(np.abs(vector) / 256, 2.0**-134)).all()


@given(any_vector)
def test_int8_is_off_by_at_most_a_254th_of_the_largest_in_a_row_of_1024(vector: Vector) -> None:
    error = np.abs(through("int8", vector) - vector)
    for start in range(0, vector.size, 1024):
        row = slice(start, start + 1024)
        assert error[row].max() <= max(np.abs(vector[row]).max() / 253.9, 1e-32)


@given(any_vector, st.sampled_from((0.001, 0.01, 0.5)))
def test_topk_keeps_the_largest_as_they_are_and_nothing_else(
    vector: Vector, fraction: float
) -> None:
    found = through(f"topk:{fraction}", vector)
    kept = min(vector.size, max(1, round(fraction * vector.size)))
    expected = np.sort(np.abs(vector))[vector.size - kept :]
    sent = found != 0
    np.testing.assert_array_equal(found[sent], vector[sent])
    np.testing.assert_array_equal(np.sort(np.abs(found))[vector.size - kept :], expected)
    assert sent.sum() <= kept


def test_topk_finds_the_largest_though_a_sample_would_mislead_it() -> None:
    """Every other value is large: whoever looks at those alone takes too many values for large."""
    vector = np.random.default_rng(2).uniform(0.1, 0.2, 33_792).astype(np.float32)
    vector[::2] += 1.0
    found = through("topk:0.5", vector)
    np.testing.assert_array_equal(found[::2], vector[::2])
    assert not found[1::2].any()


@given(any_vector, st.sampled_from((0.001, 0.01, 0.5)))
def test_sparse_keeps_the_places_of_topk_the_signs_and_two_levels_a_row(
    vector: Vector, fraction: float
) -> None:
    found = through(f"sparse:{fraction}", vector)
    largest = through(f"topk:{fraction}", vector)
    (places,) = np.nonzero(largest)
    kept = min(vector.size, max(1, round(fraction * vector.size)))
    if places.size < kept:  # zeros made up the number, and take part in a row's levels
        return
    assert not found[largest == 0].any()
    for row in range(0, kept, 256):
        ours, exact = found[places[row : row + 256]], np.abs(largest[places[row : row + 256]])
        np.testing.assert_array_equal(np.signbit(ours), np.signbit(vector[places[row : row + 256]]))
        high = exact >= exact.mean(dtype=np.float64)
        for part in (high, ~high):
            if part.any():
                mean = exact[part].mean(dtype=np.float64)
                np.testing.assert_allclose(np.abs(ours[part]), mean, rtol=1e-6)


def test_sparse_in_bits_that_are_written_out() -> None:
    """32 values of 4 bytes in 15: two levels, then bits. Place 20 is 2 * 8 + 4."""
    vector = np.zeros(32, np.float32)
    vector[[3, 9, 20, 31]] = [1.0, -6.0, 3.0, -8.0]  # their mean is 4.5
    codec = make_codec("sparse:0.125", plain(32))
    body = struct.pack(
        "<2f5BB",
        2.0, 7.0,  # the means of 1 and 3, and of 6 and 8
        0b0101_0000,  # signs
        0b0101_0000,  # the higher level
        0b1101_0000, 0b1001_0000, 0b0011_0000,  # 3, 1, 4 and 7 by their bits 1, 2 and 4
        0b1010_1010,  # upper 0, 1, 2, 3: a bit each, after as many zeros as it rose
    )  # fmt: skip
    assert bytes(codec.encode(vector)) == body
    into = np.full(32, 9.0, np.float32)
    codec.decode(memoryview(body), into)
    assert {int(place): float(into[place]) for place in np.flatnonzero(into)} == {
        3: 2.0, 9: -7.0, 20: 2.0, 31: -7.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lower", "upper", "words"),
    [
        ((0b1101_0000, 0b1001_0000, 0b0011_0000), 0b1010_1010, ""),
        ((0b1101_0000, 0b1001_0000, 0b0011_0000), 0b1010_1000, "do not add up"),
        ((0b1101_0000, 0b1001_0000, 0b0011_0000), 0b1110_1010, "do not add up"),
        ((0b0000_0000, 0b0000_0000, 0b0000_0000), 0b1100_1010, "beyond the vector or comes twice"),
        ((0b1000_0000, 0b0000_0000, 0b0000_0000), 0b1100_1010, "beyond the vector or comes twice"),
        ((0b0000_0000, 0b0000_0000, 0b0000_0000), 0b1010_1001, "beyond the vector or comes twice"),
    ],
)
def test_bits_of_places_that_cannot_be_are_refused(
    lower: tuple[int, int, int], upper: int, words: str
) -> None:
    codec, into = make_codec("sparse:0.125", plain(32)), np.zeros(32, np.float32)
    body = memoryview(struct.pack("<2f6B", 1.0, 1.0, 0, 0, *lower, upper))
    if not words:
        codec.decode(body, into)
        assert np.flatnonzero(into).tolist() == [3, 9, 20, 31]
        return
    with pytest.raises(PayloadError, match=words):
        codec.decode(body, into)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1 + 2**-8, 1.0),  # a tie, to the even one
        (1 + 3 * 2**-8, 1 + 2**-6),
        (1 + 2**-8 + 2**-20, 1 + 2**-7),
        (-1 - 2**-9, -1.0),
        (-0.0, -0.0),
        (2.0**-133, 2.0**-133),  # the smallest of its own
        (3.4028235e38, np.inf),  # float32's largest
        (-np.inf, -np.inf),
    ],
)
def test_bfloat16_rounds_as_ieee_does(value: float, expected: float) -> None:
    (found,) = through("bfloat16", np.array([value], np.float32))
    assert struct.pack("<f", found) == struct.pack("<f", expected)


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFFFFFFFF])
def test_a_nan_of_any_bits_stays_one_in_bfloat16(bits: int) -> None:
    vector = np.array([bits, 0], np.uint32).view(np.float32)
    assert np.isnan(through("bfloat16", vector)).tolist() == [True, False]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 1025, 70_001])
@pytest.mark.parametrize("compress", ALL)
def test_what_is_not_finite_stays_so(compress: str, size: int, value: float) -> None:
    for place in {0, size // 2, size - 1}:
        vector = np.random.default_rng(0).standard_normal(size).astype(np.float32)
        vector[place] = value
        assert not np.isfinite(through(compress, vector)).all()


@pytest.mark.parametrize("compress", ALL)
def test_a_vector_of_nan_alone_stays_so(compress: str) -> None:
    found = through(compress, np.full(3000, np.nan, np.float32))
    assert not np.isfinite(found).all()


@pytest.mark.parametrize("compress", ALL)
def test_statistics_travel_as_they_are_and_leave_their_neighbours_alone(compress: str) -> None:
    vector = np.random.default_rng(1).standard_normal(BATCH_NORM.size).astype(np.float32)
    for place in BATCH_NORM.statistics:
        vector[place] *= 1e6
    found = through(compress, vector, BATCH_NORM)
    rest = vector.copy()
    for place in BATCH_NORM.statistics:
        assert found[place].tobytes() == vector[place].tobytes()
        rest[place] = 0.0
    alone = through(compress, rest)
    for place in BATCH_NORM.statistics:
        found[place] = alone[place]
    assert found.tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    ("compress", "nbytes"),
    [
        ("none", 1_724_320),
        ("bfloat16", 862_160),
        ("int8", 432_764),  # 421 rows
        ("topk:0.01", 25_894),  # 4,311 values in 7 pages
        ("sparse:0.01", 5_829),  # 17 rows, 8 planes, a bit per value and per 64 parameters
    ],
)
def test_the_size_of_lenet(compress: str, nbytes: int) -> None:
    assert bytes_of(compress, 431_080) == nbytes


def test_without_compression_nothing_is_copied() -> None:
    vector = np.ones(1000, np.float32)
    codec = make_codec("none", plain(1000))
    body = codec.encode(vector)
    assert np.shares_memory(np.frombuffer(body, np.uint8), vector)
    assert np.shares_memory(np.frombuffer(codec.body_for(vector), np.uint8), vector)


@pytest.mark.parametrize("compress", LOSSY)
def test_a_codec_uses_its_memory_again(compress: str) -> None:
    vector = np.ones(1000, np.float32)
    codec = make_codec(compress, plain(1000))
    first, second = codec.encode(vector), codec.body_for(vector)
    assert np.shares_memory(np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8))


@pytest.mark.parametrize("wrong", [-1, 1, 10**6])
@pytest.mark.parametrize("compress", ALL)
def test_a_body_of_another_length_is_refused(compress: str, wrong: int) -> None:
    codec, vector = make_codec(compress, BATCH_NORM), BATCH_NORM.zeros()
    length = codec.body_bytes + wrong
    with refused("length"):
        codec.decode(memoryview(bytes(length)), vector)


@pytest.mark.parametrize("compress", ALL)
def test_a_vector_of_another_net_is_refused(compress: str) -> None:
    codec = make_codec(compress, plain(10))
    with refused("length"):
        codec.encode(np.zeros(11, np.float32))


@given(st.sampled_from(LOSSY), st.binary(min_size=1, max_size=64), st.integers(0, 2**32 - 1))
def test_no_bytes_can_do_more_than_be_refused(compress: str, pattern: bytes, seed: int) -> None:
    """Neither read nor written beyond the vector, no other error, no memory beyond the layout's."""
    codec = make_codec(compress, BATCH_NORM)
    body = bytearray((pattern * (codec.body_bytes // len(pattern) + 1))[: codec.body_bytes])
    noise = np.random.default_rng(seed)
    for place in noise.integers(0, len(body), 20):
        body[place] = noise.integers(0, 256)
    memory = np.zeros(BATCH_NORM.size + 2, np.float32)
    try:
        codec.decode(memoryview(body), memory[1:-1])
    except PayloadError:
        assert is_fraction(compress)
    assert memory[0] == memory[-1] == 0.0


@pytest.mark.parametrize(
    ("counts", "lows", "words"),
    [
        ((3, 1), (0, 1, 2, 0), ""),
        ((3, 2), (0, 1, 2, 0), "do not add up"),
        ((0, 2**32 - 1), (0, 1, 2, 0), "do not add up"),
        ((0, 4), (0, 1, 2, 3), "beyond the vector or comes twice"),
        ((3, 1), (0, 1, 1, 0), "beyond the vector or comes twice"),
        ((3, 1), (1, 0, 2, 0), "beyond the vector or comes twice"),
        ((3, 1), (0, 1, 65_535, 2), ""),
        ((3, 1), (0, 1, 2, 3), "beyond the vector or comes twice"),
    ],
)
def test_places_that_cannot_be_are_refused(
    counts: tuple[int, ...], lows: tuple[int, ...], words: str
) -> None:
    codec = make_codec("topk:0.00006", plain(65_539))  # 4 values in pages of 65,536 and 3
    body = struct.pack("<4f2I4H", 1.0, 2.0, 3.0, 4.0, *counts, *lows)
    into = np.zeros(65_539, np.float32)
    if not words:
        codec.decode(memoryview(body), into)
        assert into[[lows[0], lows[1], lows[2], 65_536 + lows[3]]].tolist() == [1, 2, 3, 4]
        return
    with pytest.raises(PayloadError, match=words):
        codec.decode(memoryview(body), into)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "float16",
        "topk",
        "topk:",
        "topk:0",
        "topk:0.6",
        "topk:nan",
        "sparse",
        "sparse:0.6",
        "int8:0.1",
    ],
)
def test_a_codec_that_does_not_exist_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="use none, bfloat16, int8, or topk:F or sparse:F"):
        make_codec(text, plain(1))
