"""The versions that workers began from, kept for a rule that compares them with the center of the merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from speedo.exchange.vector import Vector


@dataclass
class BegunVersions:
    """A copy of each version as long as a payload that began from it is held."""

    _copies: dict[int, Vector] = field(default_factory=dict)
    _uses: Counter[int] = field(default_factory=Counter)

    def hold(self, version: int, read: Callable[[], Vector]) -> None:
        """A payload of this version is held; `read` makes a copy of the version, and may raise."""
        if version not in self._copies:
            self._copies[version] = read()
        self._uses[version] += 1

    def release(self, version: int) -> None:
        """One such payload is merged, or forgotten."""
        self._uses[version] -= 1
        if self._uses[version] <= 0:
            del self._uses[version], self._copies[version]

    def __getitem__(self, version: int) -> Vector:
        return self._copies[version]
