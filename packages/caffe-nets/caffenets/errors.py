"""The exceptions of reading and writing nets: every message says what is wrong and what to change.

The user can fix the cause of a `NetError`, so a command prints its text without a traceback and exits with its
`exit_code`. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote


class NetError(Exception):
    """Base of all errors that a user can fix; `exit_code` is the status of the command.

    The text of an error shows no secret of a URI: many of them name one.
    """

    exit_code = 1

    def __init__(self, text: str = "") -> None:
        super().__init__(hide_secrets(text))


class ConfigError(NetError):
    """Options or configuration that cannot work; `problems` holds every one found, a sentence each."""

    exit_code = 2

    def __init__(self, problems: str | Iterable[str]) -> None:
        found = (problems,) if isinstance(problems, str) else problems
        self.problems = tuple(hide_secrets(one) for one in found)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class SolverError(ConfigError):
    """A solver or net prototxt, or the data it names, that Caffe would not train from."""


class DataError(NetError):
    """A dataset that is missing, damaged or in another format than expected."""


class EngineError(NetError):
    """Caffe failed; the text carries Caffe's own FATAL line where there is one."""


# What in a URI is a secret: a password, a token, the signature of a presigned address.
HIDDEN: Final = "***"
# A `Path` of a URI has one slash after the scheme. One letter is a drive.
_URI: Final = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{1,30}:/{1,2})(\S+)")
# A colon before a port is none; a password may have a slash or an @ that should have been escaped.
_PASSWORD: Final = re.compile(r"\A([^\s/?#:@]*):(?![0-9]{1,5}(?:[/?#]|\Z))\S*@")
_TOKEN_AS_USER: Final = re.compile(r"\A[^\s/?#:@]+@")
_PARAMETER: Final = re.compile(
    r"""([?&;#])([^=&;?#\s]{1,100})=((?:[^&;:,#\s"'<>]|[:,](?=\S)|;(?![^=&;?#\s]{1,100}=)|'(?=[\w%/+=-]))+)"""
)
_SECRET: Final = re.compile(
    r"sig|token|secret|passw|pwd|key|credential|auth|session|code|jwt|sas|hmac|policy",
    re.IGNORECASE,
)


def hide_secrets(text: str) -> str:
    """The text with `***` for each secret of each URI in it; all else stays, and a second call changes nothing."""
    return _URI.sub(_hidden, text) if ":/" in text else text


def _hidden(uri: re.Match[str]) -> str:
    scheme, rest = uri[1], uri[2]
    hidden = _PASSWORD.sub(rf"\1:{HIDDEN}@", rest)
    if hidden == rest and scheme.lower().startswith("http"):
        hidden = _TOKEN_AS_USER.sub(f"{HIDDEN}@", rest)
    return scheme + _PARAMETER.sub(_parameter, hidden)


def _parameter(found: re.Match[str]) -> str:
    secret = _SECRET.search(unquote(found[2])) is not None
    return f"{found[1]}{found[2]}={HIDDEN}" if secret else found[0]
