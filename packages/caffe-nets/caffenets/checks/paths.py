"""Resolves relative paths of a prototxt: Caffe itself searches the working directory only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from caffenets.errors import SolverError


@dataclass(frozen=True, slots=True)
class SearchPath:
    """Relative paths are searched in the solver's folder, the working directory, the data root."""

    folder: Path
    working_folder: Path
    data_root: Path | None = None

    def candidates(self, name: str) -> tuple[Path, ...]:
        """Every place to search, in order, each once."""
        path = Path(os.path.expanduser(name))  # leaves a user that there is not as it is
        if path.is_absolute():
            return (path,)
        return tuple(dict.fromkeys((root / path).absolute() for root in self._roots()))

    def before(self, start: str, name: str) -> str | None:
        """The text that must stand before `name` so that it is found, where Caffe puts `start` before it; else None.

        No part is made shorter: Caffe puts them together as text, and other names follow.
        """
        start = os.path.expanduser(start)
        relative = not os.path.isabs(start + name)
        roots = [f"{root.absolute()}/" for root in self._roots()] if relative else [""]
        return next((root + start for root in roots if os.path.exists(root + start + name)), None)

    def _roots(self) -> list[Path]:
        roots = [self.folder, self.working_folder]
        return roots if self.data_root is None else [*roots, self.data_root]

    def find(self, name: str) -> Path | None:
        """The first of these paths that exists."""
        return next((path for path in self.candidates(name) if os.path.exists(path)), None)

    def missing(self, name: str) -> str:
        """`'x', which was not found (tried ...): remedy`, to follow `needs the mean file `."""
        tried = ", ".join(str(path) for path in self.candidates(name))
        remedy = (
            "correct the path" if Path(name).is_absolute() else "correct it or give --data-root"
        )
        return f"{name!r}, which was not found (tried {tried}): {remedy}"

    def require(self, name: str, owner: str) -> Path:
        """As `find`; raises `SolverError`, beginning with `owner`, if none exists."""
        found = self.find(name)
        if found is None:
            raise SolverError(f"{owner} {self.missing(name)}")
        return found
