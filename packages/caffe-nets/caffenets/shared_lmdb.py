"""One handle per LMDB and process: py-lmdb refuses to open a database that the process has open already.

A training net keeps its database open as long as it lives, while others count its records or check them.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import lmdb


@dataclass(slots=True)
class _Handle:
    environment: lmdb.Environment
    users: int = 0


_LOCK: Final = threading.Lock()
_HANDLES: Final[dict[tuple[int, int], _Handle]] = {}


class SharedLmdb:
    """An LMDB, a folder or a file, opened to read, without locks; closed with its last user.

    Raises lmdb.Error, also where the file is missing.
    """

    def __init__(self, path: Path) -> None:
        folder = path.is_dir()
        try:
            found = (path / "data.mdb" if folder else path).stat()
        except OSError as error:
            raise lmdb.Error(f"{path}: {error.strerror}") from error
        self._key: tuple[int, int] | None = (found.st_dev, found.st_ino)
        with _LOCK:
            handle = _HANDLES.get(self._key)
            if handle is None:
                # Without locks: closing would drop those that Caffe's own handle holds.
                opened = lmdb.open(os.fsencode(path), readonly=True, lock=False, subdir=folder)
                handle = _HANDLES[self._key] = _Handle(opened)
            handle.users += 1
        self.environment = handle.environment

    def close(self) -> None:
        """Give the handle back, after all transactions; may be called twice."""
        key, self._key = self._key, None
        if key is None:
            return
        with _LOCK:
            handle = _HANDLES[key]
            handle.users -= 1
            if not handle.users:
                del _HANDLES[key]
                handle.environment.close()

    def __enter__(self) -> lmdb.Environment:
        return self.environment

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
