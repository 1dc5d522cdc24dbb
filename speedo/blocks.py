"""Vectors in blocks, so that what lies between two operations stays in a core's cache; long ones on several cores.

NumPy lets go of the interpreter's lock while it works on a block, so threads do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

BLOCK: Final = 1 << 18  # float32 values: 1 MiB; `bench.store_speed` tells what a size is worth
LONG: Final = 1 << 22  # values: below it one core is done before others have begun
MOST_CORES: Final = 4  # more do not make memory faster


def blocks(size: int) -> Iterator[slice]:
    """The places of the blocks of a vector."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def each_block(size: int, work: Callable[[slice], None]) -> None:
    """Call `work` with every block of a vector of this size; for a long one from several threads at once."""
    cores = min(len(os.sched_getaffinity(0)), MOST_CORES)
    if size < LONG or cores == 1:
        for block in blocks(size):
            work(block)
        return
    places = list(blocks(size))

    def share(first: int) -> None:
        for block in places[first::cores]:
            work(block)

    list(_threads().map(share, range(cores)))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_CORES, "blocks")
