"""Unexpected errors: one sentence for the user, and the traceback in a file that only this user can read."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from speedo.errors import SpeedoError, hide_secrets

DEBUG_VARIABLE: Final = "SPEEDO_DEBUG"
PASSED_ON: Final = (errno.EPIPE, errno.ENOSPC)  # the command line has its own words for them
MOST_SHOWN: Final = 200


class UnforeseenError(SpeedoError):
    """A bug, or a problem of the machine for which there is no message."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h


@contextmanager
def traceback_kept(folder: Callable[[], Path | None] = lambda: None) -> Iterator[None]:
    """Turn an unexpected exception into an `UnforeseenError`; a `SpeedoError` and click's own pass unchanged.

    `folder` returns where the traceback goes: the run's directory, or None for the temporary folder.
    """
    try:
        yield
    except SpeedoError:
        raise
    except OSError as error:
        if error.errno in PASSED_ON:
            raise
        raise unforeseen(error, folder()) from None
    except Exception as error:
        raise unforeseen(error, folder()) from None


def unforeseen(error: Exception, folder: Path | None = None) -> UnforeseenError:
    """The error as a sentence that names the file with its traceback."""
    text = hide_secrets("".join(traceback.format_exception(error)))
    if os.environ.get(DEBUG_VARIABLE):
        print(text, file=sys.stderr, flush=True)
    kept = next(
        (path for place in _places(folder) if (path := _write(place, text)) is not None), None
    )
    where = (
        f"{kept} has the traceback"
        if kept
        else f"the traceback could not be written, set {DEBUG_VARIABLE}=1 to see it"
    )
    return UnforeseenError(
        f"unexpected error: {_last_line(error)}; {where}; try again, and report it if it happens again"
    )


def _places(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
    try:
        yield Path(tempfile.gettempdir())
    except OSError:
        return


def _write(folder: Path, text: str) -> Path | None:
    """Write a new file of mode 0600."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="speedo-traceback-", suffix=".txt", dir=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return None
    return Path(name)


def _last_line(error: Exception) -> str:
    """The type of the error and its last line: an error of another process contains a whole traceback."""
    lines = [line.strip() for line in hide_secrets(str(error)).splitlines() if line.strip()]
    words = lines[-1] if lines else ""
    kind = type(error).__name__
    if "(" in kind:  # Ray's, for an error in an actor; the last line says its own kind
        kind = ""
    said = f"{kind}: {words}" if kind and words else kind or words
    return said if len(said) <= MOST_SHOWN else f"{said[: MOST_SHOWN - 10]}..."
