"""`run.all_reduce` and the like: over NumPy arrays and PyTorch's tensors of all workers of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from speedo.errors import ConfigError
from speedo.transport.collective import Collective
from speedo.transport.spread_collective import SpreadCollective


class Collectives:
    """The collectives of one worker; all workers make the same calls in the same order."""

    def __init__(self, gather: Callable[[], Collective | SpreadCollective] | None = None) -> None:
        """`gather` returns once all workers have called it; a run of one worker has none."""
        self._gather = gather
        self._collective: Collective | SpreadCollective | None = None

    def barrier(self) -> None:
        """See `JoinedRun.barrier`."""
        if self._gather is not None:
            self._joined(self._gather).barrier()

    def all_reduce(self, x: Any, op: str) -> Any:
        """See `JoinedRun.all_reduce`."""
        array, host = _on_host(x)
        if self._gather is not None:
            self._joined(self._gather).all_reduce(array, op)
        return _given_back(x, array, host)

    def broadcast(self, x: Any, root: int) -> Any:
        """See `JoinedRun.broadcast`."""
        array, host = _on_host(x)
        if self._gather is not None:
            self._joined(self._gather).broadcast(array, root)
        return _given_back(x, array, host)

    def all_gather(self, x: Any) -> Any:
        """See `JoinedRun.all_gather`."""
        array, host = _on_host(x)
        found = (
            array[None].copy()
            if self._gather is None
            else self._joined(self._gather).all_gather(array)
        )
        return found if host is None else x.detach().new_tensor(found)

    def close(self) -> None:
        """Leave."""
        if self._collective is not None:
            self._collective.close()

    def _joined(
        self, gather: Callable[[], Collective | SpreadCollective]
    ) -> Collective | SpreadCollective:
        if self._collective is None:
            self._collective = gather()
        return self._collective


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
