"""A private folder for the temporary files of one command's engines."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from speedo.errors import EngineError
from speedo.storage.shared_memory.folder import MEMORY, SharedMemory

# A file in a host's folder: its workers end their turns early, as it is to leave.
LEAVES: Final = "leaves"
ROOM_BYTES: Final = 4 << 20  # nets and solvers as text; lists of pictures may take more


def scratch_places() -> tuple[Path, ...]:
    """The folders that may hold small files, the preferred one first."""
    return tuple(dict.fromkeys((Path(tempfile.gettempdir()), Path("/var/tmp"), MEMORY)))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of mode 0700 on a disk with free space; it is removed with this process, however that ends.

    Raises `EngineError` if there is no such disk.
    """
    with ExitStack() as stack:
        problems = []
        for place in scratch_places():
            folder = stack.enter_context(SharedMemory(ROOM_BYTES, place))
            if folder.path is not None:
                yield folder.path
                return
            problems.append(folder.problem)
        raise EngineError(f"no room for Caffe's small files: {'; '.join(problems)}")
