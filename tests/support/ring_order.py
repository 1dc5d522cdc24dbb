"""The result that hosts come to around their ring, in NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from speedo.exchange.host_ring import bounds_of

Array = np.ndarray[Any, np.dtype[Any]]


def ring_sum(parts: Sequence[Array], combine: np.ufunc = np.add) -> Array:
    """Piece `p` begins at the host after `p` modulo their number, and goes around."""
    hosts, flats = len(parts), [part.reshape(-1) for part in parts]
    total = np.empty_like(flats[0])
    bounds = bounds_of(total.size, total.itemsize, hosts)
    for piece in range(len(bounds) - 1):
        at = slice(bounds[piece], bounds[piece + 1])
        order = [(piece + 1 + step) % hosts for step in range(hosts)]
        total[at] = flats[order[0]][at]
        for host in order[1:]:
            total[at] = combine(total[at], flats[host][at])
    return total.reshape(parts[0].shape)
