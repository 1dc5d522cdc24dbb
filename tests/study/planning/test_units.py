from __future__ import annotations

from collections.abc import Callable

import pytest

from speedo.cli.units import (
    parse_link,
    parse_servers,
    parse_step_time,
    parse_steps,
    parse_threads,
    parse_time,
    parse_workers,
)
from speedo.errors import ConfigError
from speedo.study.planning.site import rate


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8", (8,)),
        ("1,2,6", (1, 2, 6)),
        ("6,1,6", (1, 6)),
        ("1..64", (1, 2, 4, 8, 16, 32, 64)),
        ("3..20", (3, 4, 8, 16, 20)),
        ("5..7", (5, 7)),
        ("4..4", (4,)),
        ("1 .. 4, 100", (1, 2, 4, 100)),
    ],
)
def test_a_range_has_its_ends_and_the_powers_of_two_between(
    text: str, counts: tuple[int, ...]
) -> None:
    assert parse_workers(text) == counts


@pytest.mark.parametrize(
    ("text", "bits"),
    [("10gbit", 10e9), ("1Gbit/s", 1e9), ("2.5 gbit", 2.5e9), ("100mbit", 100e6), ("64kbps", 64e3), ("40GBPS", 40e9)],
)  # fmt: skip
def test_a_link_is_told_in_bits_per_second(text: str, bits: float) -> None:
    assert parse_link(text) == bits


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.2ms", 0.2e-3), ("50us", 50e-6), ("1s", 1.0), ("0ms", 0.0)]
)
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    assert parse_time(text) == pytest.approx(seconds)


def test_local_steps_are_a_list() -> None:
    assert parse_steps("10") == (10,)
    assert parse_steps("1, 10,1") == (1, 10)


def test_servers_are_a_number_or_one_on_every_host() -> None:
    assert (parse_servers("0"), parse_servers("4"), parse_servers("auto")) == (0, 4, "auto")


def test_threads_may_come_with_what_they_gain() -> None:
    assert parse_threads("4") == (4, None)
    assert parse_threads("4:3.1") == (4, 3.1)
    assert parse_threads("4:0.9") == (4, 0.9)


def test_a_step_takes_some_time() -> None:
    assert parse_step_time("80ms") == pytest.approx(0.080)
    assert parse_step_time("1.5s") == pytest.approx(1.5)


def test_a_rate_is_told_as_people_write_it() -> None:
    told = [rate(bits) for bits in (10e9, 2.5e9, 100e6, 64e3)]
    assert told == ["10 Gbit/s", "2.5 Gbit/s", "100 Mbit/s", "64 kbit/s"]


REFUSED: list[tuple[Callable[[str], object], str, tuple[str, ...]]] = [
    (
        parse_workers,
        r"is no number or range; use 8, 1,2,4 or 1\.\.64",
        ("", "a", "1..", "..4", "1...4", "-1", "1.5", "1,,2", "1-4", "²"),
    ),
    (parse_workers, "from 1 or more up to at most 10000", ("0", "4..2", "0..4", "1..10001")),
    (
        parse_link,
        "use bits per second, as in 10gbit",
        ("", "10", "fast", "0gbit", "-1gbit", "10gb", "10MB/s", "1e9bit", "nangbit"),
    ),
    (parse_time, r"is no time; use 0\.2ms", ("", "1", "-1ms", "1min", "ms")),
    (
        parse_steps,
        "is no list of numbers from 1 to 10000; use 1,10",
        ("", "0", "1,", "1..3", "1.5", "10001"),
    ),
    (parse_servers, "use 4, or auto for one on every host", ("", "-1", "1.5", "all", "10001")),
    (
        parse_threads,
        r"use 4, or 4:3\.1 if 4 threads are 3\.1 times as fast",
        ("", "0", "auto", "4:", "4:0", "4:4.1", "2000", "4:x", "-1"),
    ),
    (parse_step_time, "--step-time", ("0ms", "80", "fast", "4000s")),
]


@pytest.mark.parametrize(
    ("parse", "words", "text"),
    [(parse, words, text) for parse, words, texts in REFUSED for text in texts],
)
def test_what_cannot_be_read_is_refused_with_an_example(
    parse: Callable[[str], object], words: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)
