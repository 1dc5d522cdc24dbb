"""Ranges of the flat vector: each is kept, merged and published by a server of its own.

A range is a layout like any other, of the pieces of the blobs that are in it; so codecs, headers and merges know
nothing of ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from speedo.exchange.vector import Blob, Layout

ALIGNED: Final = 16  # float32 values of a cache line


@dataclass(frozen=True)
class Range:
    """The values of `place` in the flat vector, and their own layout.

    The layout's digest is made of that of the whole and of the bounds, so a range is never taken for another.
    """

    place: slice
    layout: Layout


def whole(layout: Layout) -> Range:
    """The one range of a vector that is not divided."""
    return Range(slice(0, layout.size), layout)


def ranges_of(layout: Layout, count: int) -> tuple[Range, ...]:
    """`count` ranges side by side, of equal size up to a multiple of 16 values; none is empty.

    A vector of fewer than `16 * count` values has as many ranges as it has multiples of 16. One range is `whole`.
    """
    lines = -(-layout.size // ALIGNED)
    count = max(1, min(count, lines))
    if count == 1:
        return (whole(layout),)
    cuts = [min(ALIGNED * (lines * at // count), layout.size) for at in range(count + 1)]
    places = [slice(start, stop) for start, stop in pairwise(cuts)]
    return tuple(Range(place, _pieces(layout, place)) for place in places)


def _pieces(layout: Layout, place: slice) -> Layout:
    found = []
    for blob, whole_place in layout.slices():
        start, stop = max(whole_place.start, place.start), min(whole_place.stop, place.stop)
        if start < stop:
            name = f"{layout.digest:016x}/{blob.name}[{start}:{stop}]"
            found.append(Blob(name, (stop - start,), blob.statistic, blob.average))
    return Layout(tuple(found))


def history_layout(layout: Layout, vectors: int) -> Layout:
    """The layout of a solver's history of this range: this many vectors of its length, end to end."""
    return Layout((Blob(f"{layout.digest:016x}/history", (vectors, layout.size)),))
