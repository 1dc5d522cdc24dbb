"""How what one member of a team has comes to all, on each host: numbers, and the state of a solver or an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from speedo.exchange.collective import Array
from speedo.worker.membership import Broadcast, Seat, SumOverHosts, Wait

Waits = Generator[Wait, SumOverHosts | None, None]


def spread(seat: Seat, block: Array, giver: int) -> Waits:
    """What member `giver` has written there comes to the same place on all hosts."""
    yield "it is there on this host"
    if seat.team.spread:
        if seat.is_first:
            yield Broadcast(block, giver)
        yield "it is there on all hosts"


def hand_over(
    seat: Seat, giver: int, length: Array, room: Array, state: Callable[[], bytes] | None
) -> Generator[Wait, SumOverHosts | None, bytes]:
    """The `state` of member `giver`, for those that have none to give.

    It goes part by part through `room`, bytes that the members of a host share, its size through `length`.
    """
    given, found = b"", bytearray()
    if state is not None and seat.rank == giver:
        given = state()
        length[0] = len(given)
    yield from spread(seat, length, giver)
    nbytes = int(length[0])
    for start in range(0, nbytes, room.size):
        part = room[: min(room.size, nbytes - start)]
        if given:
            part[:] = np.frombuffer(given, np.uint8, part.size, start)
        yield from spread(seat, part, giver)
        if state is None:
            found += part.tobytes()
        yield "all have a part of the state"
    return bytes(found)
