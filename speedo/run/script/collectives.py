"""`run.all_reduce` and the like: over NumPy arrays and PyTorch's tensors of the workers that are in a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np

from speedo.errors import ConfigError, TeamBrokenError
from speedo.run.script.gathering import Gathered

LOOK_S: Final = 0.5  # between two looks whether other workers wait to take part
Result = TypeVar("Result")


class Collectives:
    """The collectives of one worker. All that take part make the same calls in the same order.

    After a call that has failed, or that told of others who wait, the next one begins with a new group.
    """

    def __init__(self, gather: Callable[[str, int], Gathered] | None = None) -> None:
        """`gather(call, after)` as that of the module; a script by itself has none."""
        self._gather = gather
        self._group: Gathered | None = None
        self._ends = False  # the present group does not continue
        self._looked = 0.0

    def barrier(self) -> None:
        if self._gather is not None:
            self._call("barrier", lambda group: group.collective.barrier())

    def all_reduce(self, x: Any, op: str) -> Any:
        array, host = _on_host(x)
        if self._gather is not None:
            what = f"all_reduce {op} of {_described(array)}"
            self._call(what, lambda group: group.collective.all_reduce(array, op))
        return _given_back(x, array, host)

    def broadcast(self, x: Any, root: int) -> Any:
        array, host = _on_host(x)

        def send(group: Gathered) -> None:
            if root not in group.workers:
                here = ", ".join(map(str, group.workers))
                raise TeamBrokenError(
                    f"broadcast from worker {root}, which is not there: the workers in this call are {here}"
                )
            group.collective.broadcast(array, group.workers.index(root))

        if self._gather is not None:
            self._call(f"broadcast from worker {root} of {_described(array)}", send)
        return _given_back(x, array, host)

    def all_gather(self, x: Any) -> Any:
        array, host = _on_host(x)
        found = (
            array[None].copy()
            if self._gather is None
            else self._call(
                f"all_gather of {_described(array)}",
                lambda group: group.collective.all_gather(array),
            )
        )
        return found if host is None else x.detach().new_tensor(found)

    def close(self) -> None:
        """Leave."""
        if self._group is not None:
            self._group.collective.close()

    def _call(self, what: str, do: Callable[[Gathered], Result]) -> Result:
        group = self._group_for(what)
        try:
            return do(group)
        finally:
            self._ends = group.collective.is_broken or group.collective.regroups

    def _group_for(self, what: str) -> Gathered:
        assert self._gather is not None
        group, now = self._group, time.monotonic()
        if group is not None and not self._ends and self._looks(now):
            self._looked = now
            group.collective.asks = group.others_wait()
            self._ends = group.collective.asks and len(group.workers) == 1
        if group is None or self._ends:
            self.close()
            group = self._group = self._gather(what, 0 if group is None else group.number)
            self._ends, self._looked = False, time.monotonic()
        return group

    def _looks(self, now: float) -> bool:
        """The first of the group asks whether others wait, now and then."""
        group = self._group
        return group is not None and group.collective.rank == 0 and now > self._looked + LOOK_S


def _described(array: np.ndarray[Any, Any]) -> str:
    return f"{array.dtype} {array.shape}"


def _on_host(x: Any) -> tuple[np.ndarray[Any, Any], Any]:
    """The array, and the tensor that it is a view of, if it is one."""
    if isinstance(x, np.ndarray):
        return x, None
    if not hasattr(x, "detach"):
        raise ConfigError(
            f"collectives take NumPy arrays and tensors, not {type(x).__name__}: give np.array(...) of it"
        )
    host = x.detach().cpu()
    try:
        return host.numpy(), host
    except TypeError:
        raise ConfigError(
            f"collectives do not take tensors of {x.dtype}: give x.float(), and take the result back"
        ) from None


def _given_back(x: Any, array: np.ndarray[Any, Any], host: Any) -> Any:
    """What the caller gave, with the result in it."""
    if host is not None and host.data_ptr() != x.data_ptr():
        x.detach().copy_(host)
    return x if host is not None else array
