"""`run.all_reduce` and the like: over NumPy arrays and PyTorch's tensors of all workers of a run on one host."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from speedo.errors import ConfigError
from speedo.transport.collective import Collective

FOLDER: Final = "collective"  # in the run's memory on this host


class HostCollectives:
    """The collectives of one worker; all workers make the same calls in the same order."""

    def __init__(self, folder: str, rank: int, size: int, patience_s: float) -> None:
        """`folder` is private to the run and in memory; a run of one worker needs none."""
        self._folder, self._place, self._patience_s = folder, (rank, size), patience_s
        self._alone = size == 1
        self._collective: Collective | None = None

    def barrier(self) -> None:
        """See `JoinedRun.barrier`."""
        if not self._alone:
            self._joined().barrier()

    def all_reduce(self, x: Any, op: str) -> Any:
        """See `JoinedRun.all_reduce`."""
        array, host = _on_host(x)
        if not self._alone:
            self._joined().all_reduce(array, op)
        return _given_back(x, array, host)

    def broadcast(self, x: Any, root: int) -> Any:
        """See `JoinedRun.broadcast`."""
        array, host = _on_host(x)
        if not self._alone:
            self._joined().broadcast(array, root)
        return _given_back(x, array, host)

    def all_gather(self, x: Any) -> Any:
        """See `JoinedRun.all_gather`."""
        array, host = _on_host(x)
        found = array[None].copy() if self._alone else self._joined().all_gather(array)
        return found if host is None else x.detach().new_tensor(found)

    def close(self) -> None:
        """Leave."""
        if self._collective is not None:
            self._collective.close()

    def _joined(self) -> Collective:
        if self._collective is None:
            if not self._folder:
                raise ConfigError(
                    "collectives need memory that the workers of a host share, and there is none here: leave out "
                    "--same-node redis, or make room in /dev/shm"
                )
            folder = Path(self._folder, FOLDER)
            folder.mkdir(mode=0o700, exist_ok=True)
            self._collective = Collective(folder, *self._place, patience_s=self._patience_s)
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
