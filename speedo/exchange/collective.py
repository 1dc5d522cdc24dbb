"""Collectives between the processes of one host, over shared memory: all_reduce, all_gather, broadcast, barrier.

An array goes through in chunks that stay in cache. Each member copies its chunk into its own buffer (fill), combines
its share of the chunk over all members, in the order of their ranks (combine), and takes the shares of all (drain). So
each value is computed once, by one member, and all have the same result to the bit.

Member `r` works at chunks `k` one after another: fill(k + 1), combine(k), drain(k - 1). Before combine(k) it waits
until all have filled k, before drain(k) until all have combined k. With three slots for inputs and three for results
nobody writes where another still reads: who fills k + 1 knows that all have combined k - 2; who combines k knows that
all have filled k, so drained k - 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from speedo.errors import ConfigError, TeamBrokenError
from speedo.exchange.member_memory import CALLS, COMBINED, FILLED, MemberMemory, views

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK: Final = 1 << 20  # bytes; measured: less is as fast, 2 MB takes a tenth longer, 4 MB a third
LEAST_CHUNK: Final = 1 << 17  # less only where the whole array has less
# Chunks that an array has at least, if they are not too small: else nothing overlaps.
IN_FLIGHT: Final = 4
WHOLE: Final = 1 << 16  # bytes; up to here each member combines all, which saves a wait
SLOTS: Final = 3
LINE: Final = 64  # bytes of a cache line
DTYPES: Final = ("float32", "float64", "float16", "int32", "int64")
REGROUP: Final = b"\1"  # behind the words of a call: after it all form a new group
SAME_CALLS: Final = (
    "all workers must make the same calls in the same order, with arrays of the same shape and type"
)
OPERATIONS: Final[dict[str, np.ufunc]] = {"sum": np.add, "mean": np.add, "max": np.maximum}


class Collective:
    """Member `rank` of `size`, for one thread; all members give the same private folder, in memory.

    Returns once all members are there. Every member makes the same calls in the same order. All calls raise
    `TeamBrokenError` if a member ends, leaves, or is not there within `patience_s`, and `ConfigError` in every
    member if they call different things; after an error the collective is of no more use.

    A member that `asks` says with its next call that others wait to take part; after that call all know, by `regroups`,
    that they are to leave this collective before the next one, and form a new one.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        *,
        patience_s: float,
        names: Sequence[int] = (),
        gone: Callable[[], str] = str,
    ) -> None:
        """`names` are what errors call the workers of these ranks, if not by their ranks.

        `gone` says, while they are not all there, which one has left the run; empty while none has.
        """
        self.asks = self.regroups = False
        if not 0 <= rank < size:
            raise ConfigError(f"rank is {rank}: use 0 to {size - 1}, with {size} workers")
        self.rank, self.size = rank, size
        self._share_bytes = CHUNK // size + 2 * LINE
        self._share_bytes -= self._share_bytes % LINE
        nbytes = SLOTS * (CHUNK + self._share_bytes) if size > 1 else 0
        self._names = names or range(size)
        self._memory = MemberMemory(folder, rank, size, nbytes, patience_s, self._names, gone)
        self._calls = self._chunks = 0
        self._broken = ""
        self._buffers: dict[str, tuple[list[list[Array]], list[list[Array]]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave; members that wait for this one raise `TeamBrokenError`. May be called twice."""
        self._break("it is closed")

    @property
    def is_broken(self) -> bool:
        """Whether it is of no more use."""
        return bool(self._broken)

    def wait_for(self, patience_s: float) -> None:
        """Let members take so long from now on."""
        self._memory.patience_s = patience_s

    # ------------------------------------------------------------ the calls

    def barrier(self) -> None:
        """Return once all members have called it."""
        self._run("barrier", 0, _nothing, _nothing)

    def all_reduce(self, array: Array, op: str = "sum", out: Array | None = None) -> Array:
        """The `sum`, `mean` or `max` of all members' arrays, in `out` or else in `array` itself.

        Sums are in the type of the array, in the order of the ranks; `mean` divides that sum.
        """
        dtype = require_collective(array, op)
        source, result, target = _flat_pair(array, out)
        combine, size, rank, count = OPERATIONS[op], self.size, self.rank, source.size
        if size == 1 and result is not source:
            result[:] = source
        length = self._length(dtype, count)
        inputs, results = self._views_of(dtype)
        eager = source.nbytes <= WHOLE

        def bounds(n: int, of: int) -> int:
            lines = -(-n * dtype.itemsize // LINE)
            return min(n, lines * of // size * LINE // dtype.itemsize)

        def fill(k: int, slot: int) -> None:
            own, chunk = inputs[slot][rank], source[k * length : (k + 1) * length]
            n = len(chunk)
            low, high = (0, 0) if eager else (bounds(n, rank), bounds(n, rank + 1))
            own[:low] = chunk[:low]
            own[high:n] = chunk[high:]

        def reduced(k: int, slot: int, low: int, high: int, into: Array) -> None:
            parts = [one[low:high] for one in inputs[slot]]
            if not eager:
                parts[rank] = source[k * length + low : k * length + high]
            combine(parts[0], parts[1], out=into)
            for part in parts[2:]:
                combine(into, part, out=into)
            if op == "mean":
                np.divide(into, size, out=into)

        def share(k: int, slot: int) -> None:
            n = min(length, count - k * length)
            if eager:
                reduced(k, slot, 0, n, result[k * length : k * length + n])
                return
            low, high = bounds(n, rank), bounds(n, rank + 1)
            into = results[slot][rank][: high - low]
            reduced(k, slot, low, high, into)
            result[k * length + low : k * length + high] = into

        def drain(k: int, slot: int) -> None:
            n = min(length, count - k * length)
            for other in range(size):
                if other != rank:
                    low, high = bounds(n, other), bounds(n, other + 1)
                    result[k * length + low : k * length + high] = results[slot][other][
                        : high - low
                    ]

        call = f"all_reduce {op} of {dtype} {array.shape}"
        self._run(call, -(-count // length), fill, share, None if eager else drain)
        return _given(result, target)

    def all_gather(self, array: Array, out: Array | None = None) -> Array:
        """All members' arrays, by rank: of shape `(size, *array.shape)`, in `out` or else new."""
        dtype = require_collective(array)
        whole = np.empty((self.size, *array.shape), dtype) if out is None else out
        _require_like(whole, (self.size, *array.shape), dtype)
        source = np.ascontiguousarray(array).reshape(-1)
        if np.may_share_memory(source, whole):
            source = source.copy()  # a row that another member's array goes to
        rows = np.ascontiguousarray(whole).reshape(self.size, source.size)
        rows[self.rank] = source
        length, rank = self._length(dtype, source.size), self.rank
        inputs, _ = self._views_of(dtype)

        def fill(k: int, slot: int) -> None:
            chunk = source[k * length : (k + 1) * length]
            inputs[slot][rank][: len(chunk)] = chunk

        def take(k: int, slot: int) -> None:
            for other in range(self.size):
                if other != rank:
                    chunk = rows[other][k * length : (k + 1) * length]
                    chunk[:] = inputs[slot][other][: len(chunk)]

        call = f"all_gather of {dtype} {array.shape}"
        self._run(call, -(-source.size // length), fill, take)
        return _given(rows, whole)

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Fill `array` with that of member `root`."""
        dtype = require_collective(array)
        if not 0 <= root < self.size:
            raise ConfigError(f"root is {root}: use 0 to {self.size - 1}")
        source, result, target = _flat_pair(array, None)
        length = self._length(dtype, source.size)
        inputs, _ = self._views_of(dtype)

        def fill(k: int, slot: int) -> None:
            if self.rank == root:
                chunk = source[k * length : (k + 1) * length]
                inputs[slot][root][: len(chunk)] = chunk

        def take(k: int, slot: int) -> None:
            if self.rank != root:
                chunk = result[k * length : (k + 1) * length]
                chunk[:] = inputs[slot][root][: len(chunk)]

        call = f"broadcast from worker {root} of {dtype} {array.shape}"
        self._run(call, -(-source.size // length), fill, take)
        return _given(result, target)

    # ------------------------------------------------------------ how they run

    def _run(
        self, call: str, chunks: int, fill: _Stage, combine: _Stage, drain: _Stage | None = None
    ) -> None:
        """Put `chunks` chunks through; the stages get the chunk's number in the call, and its slot."""
        if self._broken:
            raise TeamBrokenError(f"no {call} in this collective any more: {self._broken}")
        try:
            if self.size > 1:
                self._put_through(call, chunks, fill, combine, drain)
        except BaseException as error:
            self._break(str(error) or type(error).__name__)
            raise

    def _put_through(
        self, call: str, chunks: int, fill: _Stage, combine: _Stage, drain: _Stage | None
    ) -> None:
        memory, first = self._memory, self._chunks
        self._calls += 1
        self._chunks += chunks
        said = call.encode()
        memory.say_call(self._calls, said + (REGROUP if self.asks else b""))
        if chunks:
            fill(0, first % SLOTS)
            memory.publish(FILLED, first + 1)
        memory.publish(CALLS, self._calls)
        memory.wait_for_all(CALLS, self._calls)
        self._require_same(said)
        for k in range(chunks):
            at = first + k
            if k + 1 < chunks:
                fill(k + 1, (at + 1) % SLOTS)
                memory.publish(FILLED, at + 2)
            memory.wait_for_all(FILLED, at + 1)
            combine(k, at % SLOTS)
            memory.publish(COMBINED, at + 1)
            if k:
                memory.wait_for_all(COMBINED, at)
                if drain is not None:
                    drain(k - 1, (at - 1) % SLOTS)
        if chunks and drain is not None:
            memory.wait_for_all(COMBINED, first + chunks)
            drain(chunks - 1, (first + chunks - 1) % SLOTS)

    def _require_same(self, said: bytes) -> None:
        calls = [self._memory.call_of(rank, self._calls) for rank in range(self.size)]
        self.regroups = any(call.endswith(REGROUP) for call in calls)
        calls = [call.removesuffix(REGROUP) for call in calls]
        if calls.count(calls[0]) == self.size:
            return
        other = next(rank for rank, call in enumerate(calls) if call != calls[0])
        raise ConfigError(
            f"worker {self._names[other]} calls {calls[other].decode()}, worker {self._names[0]} calls "
            f"{calls[0].decode()}: {SAME_CALLS}"
        )

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self._memory.close()
        self._buffers.clear()

    def _length(self, dtype: np.dtype[Any], count: int) -> int:
        """Values of a chunk."""
        some = max(LEAST_CHUNK, -(-count * dtype.itemsize // IN_FLIGHT))
        some = -(-some // LINE) * LINE
        return min(CHUNK, some) // dtype.itemsize

    def _views_of(self, dtype: np.dtype[Any]) -> tuple[list[list[Array]], list[list[Array]]]:
        """Inputs and results, each by slot and rank."""
        found = self._buffers.get(dtype.name)
        if found is None:
            maps, count = self._memory.maps, SLOTS if self.size > 1 else 0
            found = (
                [
                    [np.frombuffer(view, dtype) for view in views(maps, slot * CHUNK, CHUNK)]
                    for slot in range(count)
                ],
                [
                    [
                        np.frombuffer(view, dtype)
                        for view in views(
                            maps, SLOTS * CHUNK + slot * self._share_bytes, self._share_bytes
                        )
                    ]
                    for slot in range(count)
                ],
            )
            self._buffers[dtype.name] = found
        return found


_Stage = Callable[[int, int], None]


def _nothing(chunk: int, slot: int) -> None:
    """No data."""


def require_collective(array: object, op: str = "sum") -> np.dtype[Any]:
    """The type of the values of an array that a collective takes. Raises `ConfigError` for any other, or `op`."""
    if op not in OPERATIONS:
        raise ConfigError(f"op is {op!r}: use one of {', '.join(OPERATIONS)}")
    if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES:
        kind = getattr(array, "dtype", type(array).__name__)
        raise ConfigError(f"a collective of {kind}: use a NumPy array of {', '.join(DTYPES)}")
    if not array.dtype.isnative:
        raise ConfigError(f"a collective of {array.dtype.str}: use the byte order of this machine")
    if op == "mean" and array.dtype.kind == "i":
        raise ConfigError(f"the mean of {array.dtype} values: use a float type, or sum")
    return np.dtype(array.dtype)


def _require_like(out: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if out.shape != shape or out.dtype != dtype or not out.flags.writeable:
        raise ConfigError(
            f"out is {out.dtype} {out.shape}{'' if out.flags.writeable else ', read-only'}: use a writable array "
            f"of {dtype} {shape}"
        )


def _flat_pair(array: Array, out: Array | None) -> tuple[Array, Array, Array]:
    """Input and result as contiguous vectors, the same one in place; and where the result belongs."""
    target = array if out is None else out
    _require_like(target, array.shape, array.dtype)
    source = np.ascontiguousarray(array).reshape(-1)
    if target is array:
        return source, source, target
    if target.flags.c_contiguous and not np.may_share_memory(array, target):
        return source, target.reshape(-1), target
    return source, np.empty_like(source), target


def _given(result: Array, target: Array) -> Array:
    """`target`, with the values of the result, which is a view of it unless it is not contiguous."""
    if not np.may_share_memory(result, target):
        target[...] = result.reshape(target.shape)
    return target
