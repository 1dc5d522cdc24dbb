"""Folders for what other users of the machine must neither see nor replace: mode 0700, in a place that keeps them.

A folder of mode 0700 protects what lies in it only while nobody else can rename the folder itself. So each folder above
it must be one in which only its owner, or root, can rename: not writable for everybody, unless it has the sticky bit.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from speedo.errors import ConfigError


def make_private_folder(prefix: str, place: Path | None = None) -> Path:
    """A new folder of mode 0700 in `place`, or else in the temporary folder, with a name that nobody can guess.

    Raises `ConfigError` if another user could put a folder of theirs in its place, or if it cannot be made.
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
    """Why a folder in `where` could be replaced by another user, as a sentence with the remedy; None if it could not.

    Raises `OSError` if `where` is not there.
    """
    for folder in (where, *where.parents):
        facts = os.stat(folder)
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            return (
                f"{where} is no place for private files: in {folder}, mode {stat.S_IMODE(facts.st_mode):04o}, every "
                f"user can rename what lies there; chmod +t {folder}, or set TMPDIR to another folder"
            )
    return None
