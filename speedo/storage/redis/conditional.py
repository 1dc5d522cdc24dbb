"""Small values in Redis that are changed on a condition, by WATCH, MULTI and EXEC.

Source: https://redis.io/docs/latest/develop/using-commands/transactions/
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from speedo.storage.conditional import FOREVER, Small, Smalls
from speedo.storage.redis.resp import ProtocolError, RespStream, command


def watch(stream: RespStream, names: Sequence[str], unread: Sequence[str] = ()) -> Smalls:
    """The values under `names`; the next transaction on this stream is carried out only if all stay the same."""
    stream.queue(command(b"WATCH", *(name.encode() for name in (*names, *unread))))
    for name in names:
        stream.queue(command(b"GET", name.encode()), command(b"PTTL", name.encode()), replies=2)
    stream.reply()
    found: dict[str, Small | None] = {}
    for name in names:
        data, left_ms = stream.reply(), stream.reply()
        if not (data is None or isinstance(data, bytes)) or not isinstance(left_ms, int):
            raise ProtocolError(f"{name} answered with something else than a text and its time")
        gone = data is None or left_ms == -2
        found[name] = None if gone else Small(data or b"", _seconds(left_ms))
    return found


def unwatch(stream: RespStream) -> None:
    """The next transaction depends on nothing."""
    stream.ask(b"UNWATCH")


def queue_smalls(stream: RespStream, wanted: Smalls) -> int:
    """Queue the commands that write these values; how many they are."""
    for name, small in wanted.items():
        if small is None:
            stream.queue(command(b"UNLINK", name.encode()))
            continue
        lasts = () if small.left_s == FOREVER else (b"PX", max(1, math.ceil(1000 * small.left_s)))
        stream.queue(command(b"SET", name.encode(), small.data, *lasts))
    return len(wanted)


def _seconds(left_ms: int) -> float:
    return FOREVER if left_ms < 0 else left_ms / 1000
