"""What the launcher and a host say to each other over ssh: a JSON object a line, in both directions.

To the host, on standard input: `start` (a command of speedo, with its environment), `stop` (a signal for one), `beat`,
`hard` (the end that follows is at once), `fetch` (the logs of a command whose connection was lost), `got` (all logs of
a command have come: until then they stay there). From the host, on standard output, each line after a record separator,
so that what a login shell prints there is no message: `hello`, `started` (a command, with the folder of its logs),
`line` (of its output), `ended` (its status), `file` (a part of a log), `filed` (all are sent).
The end of standard input, or silence, ends everything on the host.

The launcher trusts no host: `read_event` lets through what has the fields and values of an event, with clean texts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from speedo.system.foreign_text import MOST_NAME, clean_text

COMMAND: Final = "launch-host"  # the hidden command of the host's end
SEPARATOR: Final = b"\x1e"
BEAT_S: Final = 5.0
SILENCE_S: Final = 60.0  # without a beat: the launcher, its machine or the network is gone
MOST_LINE: Final = 64 << 20  # of an event: the solver of a large net is one line
MOST_PRINTED: Final = 64 << 10  # of a line of a command's output
_ADDRESS: Final = re.compile(r"[0-9A-Fa-f.:]{2,45}(%[A-Za-z0-9_.-]{1,15})?")


class EventError(Exception):
    """A host has sent what its end of a launch never sends; the text says what."""


def _short(value: str) -> str:
    return clean_text(value, MOST_NAME)


def _address(value: object) -> object:
    """None for what is no IP address: sshd has none where a program connects it."""
    return value if isinstance(value, str) and _ADDRESS.fullmatch(value) else None


_Name = Annotated[str, Field(pattern=r"\A[a-z]{1,20}\z")]  # of a command
_Short = Annotated[str, AfterValidator(_short)]
_Text = Annotated[str, AfterValidator(clean_text)]
_Address = Annotated[str | None, BeforeValidator(_address)]


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Greeting(BaseModel):
    """Of any version, so that another one is named and not its fields."""

    model_config = ConfigDict(extra="ignore", strict=True)

    speedo: _Short
    python: _Short = ""
    pid: Annotated[int, Field(ge=0, lt=2**31)] = 0
    launcher: _Address = None
    address: _Address = None


class _Hello(_Event):
    hello: _Greeting


class _Started(_Event):
    started: _Name
    folder: _Text


class _Line(_Event):
    line: str
    of: _Name
    stream: Literal["out", "err"]


class _Ended(_Event):
    ended: _Name
    status: Annotated[int, Field(ge=-64, le=255)]


class _File(_Event):
    file: _Text
    of: _Name
    data: Annotated[
        str, Field(pattern=r"\A([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\z")
    ]


class _Filed(_Event):
    filed: _Name


_KINDS: Final[dict[str, type[_Event]]] = {
    "hello": _Hello, "started": _Started, "line": _Line, "ended": _Ended, "file": _File, "filed": _Filed,
}  # fmt: skip


def order(**values: Any) -> bytes:
    """A line to a host."""
    return json.dumps(values).encode() + b"\n"


def event(**values: Any) -> bytes:
    """A line from a host."""
    return SEPARATOR + json.dumps(values).encode() + b"\n"


def read_event(line: bytes) -> Mapping[str, Any] | None:
    """The event in a line; None for what a login shell printed there. Raises `EventError`."""
    _, found, text = line.partition(SEPARATOR)
    if not found:
        return None
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        raise EventError(_refusal("no JSON")) from None
    kind = next((one for one in _KINDS if isinstance(loaded, dict) and one in loaded), "")
    if not kind:
        raise EventError(_refusal("of no known kind"))
    try:
        values = _KINDS[kind].model_validate(loaded).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = clean_text(".".join(map(str, first["loc"])), MOST_NAME)
        raise EventError(_refusal(f"{kind}, where {place}: {first['msg']}")) from None
    # What a doctor prints is JSON: it is read first, and its texts are cleaned then.
    if kind == "line" and (values["of"], values["stream"]) != ("doctor", "out"):
        values["line"] = clean_text(values["line"], MOST_PRINTED)
    return values


def _refusal(what: str) -> str:
    return (
        f"it sent an event that SpeeDO does not send ({what}): its connection was ended; install the same version of "
        "SpeeDO there, and look for another program that writes to its standard output"
    )


def own_speedo(*words: str) -> list[str]:
    """A command of the SpeeDO that runs this."""
    return [sys.executable, "-P", "-m", "speedo", *words]
