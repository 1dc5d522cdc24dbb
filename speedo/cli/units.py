"""Parses ranges, link speeds and times: `1..64`, `10gbit`, `0.2ms`."""

from __future__ import annotations

import re
from typing import Final

from speedo.errors import ConfigError
from speedo.run.config.run_config import LARGEST_WORKERS
from speedo.study.planning.site import AUTO, Servers
from speedo.system.bounds import said, whole_number

MOST_STEPS: Final = 10_000
LEAST_LINK: Final = 1e3  # bits/s
MOST_LINK: Final = 1e15
MOST_LATENCY_S: Final = 60.0
MOST_STEP_S: Final = 3600.0
MOST_THREADS: Final = 1024
_THREADS: Final = re.compile(r"([0-9]{1,4})(?::([0-9]{1,4}(?:\.[0-9]{1,6})?))?")
_LINK: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(k|m|g)(?:bit(?:/s)?|bps)", re.IGNORECASE)
_TIME: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s)")
_NOTICE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*(s|m)?")
_SIZES: Final = {"k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_workers(text: str) -> tuple[int, ...]:
    """`8`, `1,2,6`, or `1..64`: the ends of the range and the powers of two between. Raises `ConfigError`."""
    counts: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", part)
        if ends is None:
            raise ConfigError(
                f"--workers {said(text)} is no number or range; use 8, 1,2,4 or 1..64"
            )
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if not 1 <= first <= last <= LARGEST_WORKERS:
            raise ConfigError(
                f"--workers {said(text)}: a range goes from 1 or more up to at most {LARGEST_WORKERS}, as in 1..64"
            )
        counts.update({first, last}, (2**n for n in range(14) if first < 2**n < last))
    return tuple(sorted(counts))


def parse_steps(text: str) -> tuple[int, ...]:
    """`10` or `1,10`. Raises `ConfigError`."""
    parts = [whole_number(part) for part in text.split(",")]
    steps = [part for part in parts if part is not None and 1 <= part <= MOST_STEPS]
    if len(steps) < len(parts):
        raise ConfigError(
            f"--local-steps {said(text)} is no list of numbers from 1 to 10000; use 1,10"
        )
    return tuple(dict.fromkeys(steps))


def parse_link(text: str) -> float:
    """Bits per second of `10gbit`, `100mbit`, `2.5Gbit/s`. Raises `ConfigError`."""
    found = _LINK.fullmatch(text.strip())
    rate = 0.0 if found is None else float(found[1]) * _SIZES[found[2].lower()]
    if rate <= 0:
        raise ConfigError(
            f"--link {said(text)} is no rate above 0; use bits per second, as in 10gbit, 2.5gbit or 100mbit"
        )
    if not LEAST_LINK <= rate <= MOST_LINK:
        raise ConfigError(
            f"--link {said(text)} is not possible for a link: use 1kbit to 1000000gbit"
        )
    return rate


def parse_time(text: str) -> float:
    """Seconds of `0.2ms`, `50us`, `1s`. Raises `ConfigError`."""
    return _time("--latency", text, "0.2ms, 50us or 1s", MOST_LATENCY_S)


def parse_notice(text: str) -> float:
    """Seconds of `30s`, `2m` or `90`. Raises `ConfigError`."""
    found = _NOTICE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            f"--in {said(text)} is no time; use seconds or minutes, as in 30s, 90 or 2m"
        )
    return float(found[1]) * (60.0 if found[2] == "m" else 1.0)


def parse_step_time(text: str) -> float:
    """Seconds of `80ms`, more than 0. Raises `ConfigError`."""
    time = _time("--step-time", text, "80ms, 900us or 1.5s", MOST_STEP_S)
    if time <= 0.0:
        raise ConfigError(f"--step-time {said(text)} is no time above 0; use 80ms, 900us or 1.5s")
    return time


def parse_servers(text: str) -> Servers:
    """`4`, or `auto`; 0 is none. Raises `ConfigError`."""
    count = AUTO if text == AUTO else whole_number(text)
    if count is None or (count != AUTO and count > LARGEST_WORKERS):
        raise ConfigError(
            f"--servers {said(text)} is no number from 0 to {LARGEST_WORKERS}; use 4, or auto for one on every host"
        )
    return count


def parse_threads(text: str) -> tuple[int, float | None]:
    """`4`, or `4:3.1` where this many threads are known to make a step 3.1 times as fast. Raises `ConfigError`."""
    found = _THREADS.fullmatch(text.strip())
    threads = 0 if found is None else int(found[1])
    speedup = None if found is None or found[2] is None else float(found[2])
    if not 1 <= threads <= MOST_THREADS or (speedup is not None and not 0.0 < speedup <= threads):
        raise ConfigError(
            f"--threads {said(text)} is no number from 1 to {MOST_THREADS}; use 4, or 4:3.1 if 4 threads are 3.1 times "
            "as fast as one"
        )
    return threads, speedup


def _time(option: str, text: str, examples: str, most: float) -> float:
    found = _TIME.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"{option} {said(text)} is no time; use {examples}")
    time = float(found[1]) * _SECONDS[found[2]]
    if time > most:
        raise ConfigError(f"{option} {said(text)} is too long; use at most {most:.0f}s")
    return time
