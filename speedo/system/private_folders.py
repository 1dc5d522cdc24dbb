"""Folders that other users of the machine can neither read nor replace.

Mode 0700 protects the content of a folder only if nobody else can rename the folder itself. So each folder above it
must be one in which only its owner, or root, can rename: not world-writable, unless it has the sticky bit.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from speedo.errors import ConfigError


def make_private_folder(prefix: str, place: Path | None = None) -> Path:
    """A new folder of mode 0700 in `place`, or else in the temporary folder, with a random name.

    Raises `ConfigError` if another user could replace it, or if it cannot be made.
    """
    try:
        where = (place or Path(tempfile.gettempdir())).resolve()
        problem = unsafe(where)
        if problem is None:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    except OSError as error:
        reason = error.strerror or error
        name = error.filename or place or "the temporary folder"
        raise ConfigError(
            f"no folder for temporary files can be made in {name}: {reason}; set TMPDIR to a folder that has room"
        ) from None
    raise ConfigError(problem)


def unsafe(where: Path) -> str | None:
    """Why another user could replace a folder in `where`, as a sentence with the remedy; None if that is impossible.

    Raises `OSError` if `where` does not exist.
    """
    for folder in (where, *where.parents):
        facts = os.stat(folder)
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            return (
                f"{where} is not safe for private files: in {folder}, mode {stat.S_IMODE(facts.st_mode):04o}, every "
                f"user can rename its content; chmod +t {folder}, or set TMPDIR to another folder"
            )
    return None
