"""The flat vector and its form outside the process."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from speedo.errors import PayloadError
from speedo.exchange.vector import (
    HEADER_BYTES,
    Blob,
    Header,
    Layout,
    RunningChecksum,
    as_bytes,
    check_header,
    check_sum,
    checksum,
    header_for,
)
from speedo.messages import Kind
from tests.support.errors import refused

LAYOUT = Layout((Blob("ip/0", (2, 3)), Blob("bn/0", (2,), statistic=True), Blob("bn/1", ())))
VECTOR = np.arange(9, dtype=np.float32)

SMALL, LARGE = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


def packed() -> bytearray:
    return bytearray(header_for(as_bytes(VECTOR), LAYOUT, Kind.DELTA, version=7).pack())


def test_a_layout_places_its_blobs_end_to_end() -> None:
    assert (LAYOUT.size, LAYOUT.nbytes) == (9, 36)
    assert [place for _, place in LAYOUT.slices()] == [slice(0, 6), slice(6, 8), slice(8, 9)]
    assert LAYOUT.statistics == (slice(6, 8),)


@pytest.mark.parametrize(
    "other",
    [
        Layout(LAYOUT.blobs[::-1]),
        Layout((Blob("ip/0", (3, 2)), *LAYOUT.blobs[1:])),
        Layout((Blob("fc/0", (2, 3)), *LAYOUT.blobs[1:])),
        Layout((*LAYOUT.blobs[:1], Blob("bn/0", (2,)), LAYOUT.blobs[2])),
    ],
)
def test_layouts_of_the_same_size_differ_in_their_digest(other: Layout) -> None:
    assert other.size == LAYOUT.size
    assert other.digest != LAYOUT.digest


def test_the_digest_is_of_names_shapes_and_statistics_and_of_averages_where_there_are_any() -> None:
    assert LAYOUT.digest == xxhash.xxh3_64_intdigest(b"ip/0:2,3:0;bn/0:2:1;bn/1::0")
    averages = Layout((LAYOUT.blobs[0], Blob("bn/0", (2,), True, True), LAYOUT.blobs[2]))
    assert averages.digest != LAYOUT.digest
    assert (averages.averages, averages.statistics) == ((slice(6, 8),), (slice(6, 8),))
    assert LAYOUT.averages == ()


def test_a_header_has_60_bytes_in_the_written_order() -> None:
    header = Header(Kind.WEIGHTS, 1, 2, 3, 4, worker=5, incarnation=6, ticket=7, epoch=8, dtype=3)
    assert HEADER_BYTES == 60
    assert header.pack() == (
        b"SPDO" + bytes([1, 3, 3, 0])
        + b"".join(n.to_bytes(4, "little") for n in (5, 6, 8))
        + b"".join(n.to_bytes(8, "little") for n in (1, 2, 3, 7, 4))
    )  # fmt: skip


@given(
    st.builds(Header, st.sampled_from(Kind), *[LARGE] * 4, *[SMALL] * 2, LARGE, SMALL),
    st.integers(0, 255),
)
def test_a_header_comes_back_as_it_went(header: Header, dtype: int) -> None:
    header = replace(header, dtype=dtype)
    assert Header.unpack(header.pack()) == header


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, 0x80, "not written by SpeeDO"),
        (4, 2, "format 2 is not known"),
        (5, 9, "unknown kind 9"),
    ],
)
def test_bytes_that_are_no_header_are_refused(place: int, value: int, words: str) -> None:
    data = packed()
    data[place] = value
    with pytest.raises(PayloadError, match=words):
        Header.unpack(bytes(data))


@pytest.mark.parametrize("length", [0, 59, 61, 4096])
def test_a_header_of_another_length_is_refused(length: int) -> None:
    with refused("length"):
        Header.unpack(bytes(length))


def test_a_pickle_is_no_header() -> None:
    with refused("format"):
        Header.unpack((b"\x80\x04\x95cos\nsystem\n(S'true'\ntR." + bytes(60))[:60])


def test_a_delta_is_never_taken_for_weights() -> None:
    header = header_for(as_bytes(VECTOR), LAYOUT, Kind.DELTA, version=0)
    check_header(header, LAYOUT, Kind.DELTA)
    with refused("kind"):
        check_header(header, LAYOUT, Kind.WEIGHTS)


@pytest.mark.parametrize("count", [0, 8, 10, 2**63])
def test_a_header_of_another_count_is_refused_before_memory_is_taken(count: int) -> None:
    header = Header(Kind.DELTA, count, LAYOUT.digest, 0, 0)
    with refused("layout"):
        check_header(header, LAYOUT, Kind.DELTA)


def test_a_header_of_another_net_is_refused() -> None:
    header = Header(Kind.DELTA, 9, LAYOUT.digest ^ 1, 0, 0)
    with refused("layout"):
        check_header(header, LAYOUT, Kind.DELTA)


@given(st.integers(0, 36 * 8 - 1))
def test_every_flipped_bit_is_found(bit: int) -> None:
    vector = VECTOR.copy()
    header = header_for(as_bytes(vector), LAYOUT, Kind.CENTER, version=1)
    check_sum(header, checksum(as_bytes(vector)))
    as_bytes(vector)[bit // 8] ^= 1 << bit % 8
    with refused("checksum"):
        check_sum(header, checksum(as_bytes(vector)))


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8), st.booleans())
def test_a_checksum_of_pieces_is_that_of_the_whole(
    body: bytes, told: list[int], anew: bool
) -> None:
    """However it came; and what came first, and was replaced, does not count."""
    memory = bytearray(len(body)) if anew else bytearray(body)
    running = RunningChecksum(memoryview(memory))
    if anew:
        running(len(body) // 2)
        memory[:] = body
        running(0)
    for upto in sorted(min(one, len(body)) for one in told):
        running(upto)
    assert running.whole() == checksum(memoryview(body))


def test_a_vector_of_another_length_gets_no_header() -> None:
    with refused("length"):
        header_for(as_bytes(VECTOR[:8]), LAYOUT, Kind.DELTA, version=0)


@pytest.mark.parametrize("vector", [VECTOR.astype(np.float64), VECTOR[::2]])
def test_only_contiguous_float32_has_bytes(vector: np.ndarray) -> None:
    with refused("dtype"):
        as_bytes(vector)


def test_the_checksum_is_that_of_xxh3() -> None:
    """Written down once, so that a change of the algorithm is a change of the format."""
    assert checksum(as_bytes(np.zeros(4, np.float32))) == 0xD0A66A65C7528968


def test_the_fault_of_a_vector_survives_its_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(PayloadError("other bytes", "checksum")))
    assert (str(error), error.fault) == ("other bytes", "checksum")
