"""What an error of Ray means for the call that failed, and the words for people: the one place that decides it.

Ray raises three kinds of errors: the called code has raised (`RayTaskError`); the answer may still come, or the call
may or may not have been carried out; the other side has ended. An error that is not known here, as one of a later
Ray, counts as the third: the caller ends the other side for sure, and has another one in its place.
"""

from __future__ import annotations

from typing import Final

from ray.exceptions import (
    ActorAlreadyExistsError,
    ActorPlacementGroupRemoved,
    ActorUnavailableError,
    ActorUnschedulableError,
    CrossLanguageError,
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectFetchTimedOutError,
    ObjectStoreFullError,
    OufOfBandObjectRefSerializationException,
    OutOfDiskError,
    PendingCallsLimitExceeded,
    PlasmaObjectNotAvailable,
    RayActorError,
    RayChannelTimeoutError,
    RayError,
    RayTaskError,
    RpcError,
    UnserializableException,
    UserCodeException,
)

from speedo.errors import FencedError, Meaning, StoreUnavailableError
from speedo.exchange.channel import first_line

# Never a reason to make a call twice that changes something: it may have been carried out.
_AGAIN: Final = (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectFetchTimedOutError,
    ObjectStoreFullError,
    OutOfDiskError,
    PendingCallsLimitExceeded,
    PlasmaObjectNotAvailable,
    RayChannelTimeoutError,
    RpcError,
    StoreUnavailableError,
)
_BUG: Final = (
    ActorAlreadyExistsError,
    CrossLanguageError,
    OufOfBandObjectRefSerializationException,
    UnserializableException,
    UserCodeException,
)
# Also where a node has just come, and not all of Ray know of it yet.
NO_NODE: Final = (
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    LocalRayletDiedError,
    NodeDiedError,
)


def meaning_of(error: BaseException) -> Meaning:
    """Of an error that a call over Ray raised; of what the called code itself has raised, the meaning there."""
    if isinstance(error, RayTaskError):
        return meaning_of(error.cause)
    if isinstance(error, FencedError):
        return Meaning.FENCED
    if isinstance(error, _AGAIN):
        return Meaning.AGAIN
    if isinstance(error, RayError) and not isinstance(error, _BUG):
        return Meaning.GONE
    return Meaning.BUG


def raised_by(error: BaseException) -> BaseException | None:
    """What the called code has raised; None if there is no answer of it."""
    return error.cause if isinstance(error, RayTaskError) else None


def is_gone(error: BaseException | None) -> bool:
    """Whether there is no answer because the other side has ended."""
    if not isinstance(error, RayError) or raised_by(error) is not None:
        return False
    return meaning_of(error) is Meaning.GONE


def why(error: BaseException) -> str:
    """A line for people: what the called code has raised, or why there is no answer."""
    if (raised := raised_by(error)) is not None:
        return first_line(raised)
    if isinstance(error, RayActorError):
        if "out-of-memory" in str(error).lower():
            return "its process was killed because the node ran out of memory"
        return "its process died"
    return "its node is gone" if isinstance(error, NO_NODE) else first_line(error)
