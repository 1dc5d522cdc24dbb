"""What an error of a store means for the call that failed: the one place that decides it.

Everything unknown is repeated: a server, a proxy or a name service says many things while it restarts. Only what shows
before the first answer of a server is taken for a mistake of the user, who is told it at once.
"""

from __future__ import annotations

from typing import Final

from speedo.errors import (
    FencedError,
    Meaning,
    MissingKeyError,
    PayloadError,
    StoreError,
    StoreUnavailableError,
)

ANSWERS: Final = (MissingKeyError, PayloadError)
"""The store has answered, and has nothing of use."""


def meaning_of(error: BaseException, *, has_worked: bool = True) -> Meaning:
    """`has_worked`: this server has answered before, so its address, user and password were right then."""
    if isinstance(error, FencedError):
        return Meaning.FENCED
    if isinstance(error, ANSWERS):
        return Meaning.GONE
    if isinstance(error, StoreUnavailableError):
        return Meaning.AGAIN
    if isinstance(error, StoreError):
        return Meaning.AGAIN if has_worked else Meaning.GONE
    return Meaning.BUG


def passes(error: BaseException) -> bool:
    """Whether it is no fault of the code that called: another turn, or another moment, may succeed."""
    return meaning_of(error) in (Meaning.AGAIN, Meaning.GONE)
