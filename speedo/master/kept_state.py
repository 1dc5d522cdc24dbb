"""What the merge rule, or the solver's update by gradients, keeps beside the center: for a master that takes over.

It is in the store beside each version that is published, and written before it: whoever finds the center finds it, too.
That of the version before stays, as it is needed if the master dies in between. A run without such a state has none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from speedo.errors import MissingKeyError, PayloadError
from speedo.exchange.transfer import fetch_state, put_state
from speedo.master.center import Center
from speedo.storage import keys
from speedo.storage.base import Store

_LENGTH: Final = struct.Struct("<Q")  # of the rule's part


@dataclass
class KeptState:
    """Writes it for the versions of `center`.

    `history` is that of the solver whose update makes the center, in parts; empty where there is no such update.
    """

    center: Center
    history: Callable[[], Sequence[bytes | memoryview]] = tuple
    _versions: list[int] = field(default_factory=list)  # that are in the store

    def __bool__(self) -> bool:
        """Whether the present version is not enough without it."""
        return bool(self.center.state or self.history())

    def publishing(self) -> None:
        """The present version is about to be published. Raises `StoreError`."""
        center = self.center
        if not self:
            return
        if center.version not in self._versions:
            while len(self._versions) > 1:
                center.store.delete(keys.rule_state(center.run, self._versions.pop(0)))
            self._versions.append(center.version)
        rule = center.state.parts()
        length = _LENGTH.pack(sum(map(len, rule)))
        put_state(center.store, center.run, center.version, length, *rule, *self.history())


def fetch_kept(store: Store, run: str, version: int) -> tuple[bytes, bytes]:
    """What the rule and the solver have kept at this version. Raises `StoreError`, `PayloadError`."""
    both = memoryview(fetch_state(store, run, version))
    if len(both) < _LENGTH.size:
        raise MissingKeyError(f"{keys.rule_state(run, version)} is not in the store")
    (length,) = _LENGTH.unpack_from(both)
    if length > len(both) - _LENGTH.size:
        raise PayloadError(f"{keys.rule_state(run, version)} is not as long as it says")
    stop = _LENGTH.size + length
    return bytes(both[_LENGTH.size : stop]), bytes(both[stop:])
