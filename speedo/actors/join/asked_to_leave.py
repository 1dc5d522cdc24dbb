"""The socket by which `speedo leave` reaches a `speedo worker` command of this machine, as others reach a run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from speedo.actors.join.host_link import Offer
from speedo.errors import ClusterError, SpeedoError
from speedo.system.bounds import said
from speedo.watch.control_socket import HOST_SUFFIX, Asked, ControlServer

TOLD: Final = "`speedo leave`"


@contextmanager
def under_control(offer: Offer, told: list[float], note: Callable[[str], None]) -> Iterator[None]:
    """Inside the context the seconds of each `speedo leave` are appended to `told`."""

    def answer(asked: Asked) -> dict[str, Any]:
        if asked.get("ask") != "leave" or set(asked) != {"ask", "seconds"}:
            raise ClusterError("a `speedo worker` command only knows `speedo leave`")
        told.append(seconds_in(asked))
        what = f"{offer.count} worker{'s' if offer.count != 1 else ''} of {offer.address}"
        return {"said": f"process {os.getpid()}, {what}: leaving, within {told[-1]:g} s"}

    with ExitStack() as stack:
        try:
            server = ControlServer(f"worker-{os.getpid()}", answer, HOST_SUFFIX)
            stack.enter_context(server)
        except (SpeedoError, OSError) as error:
            note(f"warning: `speedo leave` will not find this command: {error}")
        yield


def seconds_in(asked: Asked) -> float:
    """The time that a request to leave gives. Raises `ClusterError`."""
    seconds = asked["seconds"]
    if type(seconds) not in (int, float) or not (0 <= seconds < math.inf):
        raise ClusterError(f"{said(seconds)} is no time to leave in: use seconds, 0 or more")
    return float(seconds)
