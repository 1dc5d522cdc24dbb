"""Checksums of a few records, which are the same in workers that have the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, Final
from zlib import crc32

import numpy as np

from speedo.worker.own_random import OwnRandom

_PLAIN: Final = (str, bytes, int, float, complex, type(None))


class _Checksums:
    """Those of records, by number; a data set for a loader."""

    def __init__(self, record: Callable[[int], Any]) -> None:
        self._record = record

    def __getitem__(self, number: int) -> str:
        with OwnRandom(number):  # what augments it at random
            return checksum(self._record(number))


def checksums_of(
    records: int, record: Callable[[int], Any], loader: Any = None
) -> Mapping[str, str]:
    """Of three records, by name; without those that differ when they are read again. None if one cannot be read.

    Where the loader has processes one reads them: what that opens must not be there when the others fork.
    """
    read, numbers = _Checksums(record), [0, records // 2, records - 1] * 2
    try:
        if loader is not None and loader.num_workers:
            more = {"batch_sampler": [numbers], "collate_fn": list, "num_workers": 1}
            with OwnRandom(0):
                (found,) = loader_with(loader, dataset=read, **more)
        else:
            found = [read[one] for one in numbers]
    except Exception:  # the loop will come to it
        return {}
    pairs = zip(numbers, found[:3], found[3:], strict=False)
    return {f"the checksum of record {n}": one for n, one, again in pairs if one == again}


def loader_with(loader: Any, **other: Any) -> Any:
    """A copy of a DataLoader with these attributes, which PyTorch sets only when it makes one."""
    made = copy(loader)
    vars(made).update(other, _iterator=None)
    return made


def checksum(record: Any) -> str:
    """Of numbers, text and arrays, however they are nested; other objects count by their type.

    Floating-point arrays count by four digits of the sum of absolute values: hosts may round differently.
    """
    return f"{crc32(b' '.join(_parts(record))):08x}"


def _parts(thing: Any) -> Iterator[bytes]:
    if isinstance(thing, (list, tuple, Mapping)):
        for one in thing.items() if isinstance(thing, Mapping) else thing:
            yield from _parts(one)
    elif hasattr(thing, "__array__") or hasattr(thing, "__array_interface__"):
        array = np.asarray(thing)
        yield f"{array.dtype} {array.shape}".encode()
        if array.dtype.hasobject:
            yield from _parts(array.tolist())
        elif array.dtype.kind in "fc":
            yield f"{np.abs(array).sum(dtype=np.float64):.4g}".encode()
        else:
            yield array.tobytes()
    else:
        yield repr(thing if isinstance(thing, _PLAIN) else type(thing)).encode()
