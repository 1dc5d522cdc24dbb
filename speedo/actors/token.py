"""The secret token of a cluster: stored in a file of mode 0600 or in the environment, nowhere else."""

from __future__ import annotations

import os
import secrets
import shlex
from pathlib import Path
from typing import Final

from caffenets.files import home, read_bytes
from speedo.errors import ClusterError

TOKEN_VARIABLE: Final = "SPEEDO_TOKEN"
FILE_VARIABLE: Final = "SPEEDO_TOKEN_FILE"
LEAST_LENGTH: Final = 16
MOST_BYTES: Final = 4096


def token_file() -> Path:
    """The file of the token: `SPEEDO_TOKEN_FILE`, else `~/.config/speedo/token`."""
    given = os.environ.get(FILE_VARIABLE)
    if given:
        return Path(given)
    try:
        config = os.environ.get("XDG_CONFIG_HOME") or str(home() / ".config")
    except OSError as error:
        raise ClusterError(f"{error.strerror}, or {FILE_VARIABLE} to the token's file") from None
    return Path(config) / "speedo" / "token"


def new_token() -> str:
    """A secret of 256 random bits."""
    return secrets.token_hex(32)


def load_token(file: Path | None = None, *, create: bool = False) -> str:
    """The token from `file`, the environment or the usual place, in this order.

    `create` makes the file, readable by its owner alone, where there is none. Raises `ClusterError`.
    """
    value = os.environ.get(TOKEN_VARIABLE) if file is None else None
    if value is not None:
        return _checked(value, TOKEN_VARIABLE)
    path = file or token_file()
    if create and not os.path.exists(path):
        try:
            _make(path)
        except OSError as error:
            raise ClusterError(
                f"the token file {path} cannot be written: {error.strerror}; set {FILE_VARIABLE} to another"
            ) from None
    try:
        if os.stat(path).st_mode & 0o077:
            raise ClusterError(
                f"the token file {path} is accessible to other users: chmod 600 {path}"
            )
        return _checked(read_bytes(path, MOST_BYTES).decode("ascii"), str(path))
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise ClusterError(
                f"the token file {path} cannot be read: {error.strerror}; correct it, or name another"
            ) from None
        raise ClusterError(
            f"there is no token at {path}: copy that file from the master's node (mode 0600), "
            f"or set {TOKEN_VARIABLE} or {FILE_VARIABLE}"
        ) from None
    except ValueError:  # no text, or a name with a zero byte
        raise ClusterError(
            f"{path} does not hold a token: copy the token file from the master's node"
        ) from None


def _make(path: Path) -> None:
    """Write the file atomically: a worker on this machine may be waiting for it. If several write, the first wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(new_token() + "\n")
        try:
            os.link(part, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            if not path.exists():
                part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def how_to_join(address: str, file: Path | None = None, *, own: bool = False) -> str:
    """What to do on another node to join the master at `address`, which trains scripts if `own`; `file` as above."""
    script = " -- python train.py" if own else ""
    command = f"speedo worker --master {address}"
    if file is None and TOKEN_VARIABLE in os.environ:
        return f"on each node, with {TOKEN_VARIABLE} set as here: {command}{script}"
    path = file or token_file()
    if file is not None or os.environ.get(FILE_VARIABLE):
        command += f" --token-file {shlex.quote(str(path))}"
    return f"on each node, once {path} is copied there (mode 0600): {command}{script}"


def _checked(value: str, place: str) -> str:
    token = value.strip()
    if len(token) < LEAST_LENGTH or not token.isascii() or not token.isprintable():
        raise ClusterError(
            f"what {place} holds is not a token, because it has fewer than {LEAST_LENGTH} plain characters: "
            "copy the token file from the master's node, or remove it on that node, and a new one is created"
        )
    return token
