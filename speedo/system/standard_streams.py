"""The standard streams of a command: closed ones, those that nobody reads any more, those of a narrow encoding."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Final

NOBODY_READS: Final = (errno.EPIPE, errno.EIO)  # `| head`, a closed terminal


def unread(descriptor: int) -> None:
    """Redirect this descriptor to /dev/null: its reader has closed it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def escape_what_cannot_be_written() -> None:
    """Escape characters that the terminal's encoding does not have; printing them must not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def open_closed_streams() -> None:
    """Open /dev/null for a standard stream that was closed; the next file opened would get its descriptor."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
