"""The run directory on its way to a standby on another machine: as parcels in the run's Redis.

A standby says under one key that it follows the run, and which parcel it has taken last; that note expires. The
master's command looks for it, and sends the whole directory as it is, then whatever is new. A log goes line by line
as it grows; any other file in pieces, once it is whole, and has its name there when the last piece is. The standby
deletes what it takes, and only so many bytes are on the way at once: one that is slow does not fill the Redis.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from speedo.errors import ConfigError, MissingKeyError, PayloadError, StoreError
from speedo.run_dir.directory import EPOCH, LOCK, LOGS
from speedo.run_dir.process_logs import TIMES
from speedo.storage import keys
from speedo.storage.base import Store

BEAT_S: Final = 1.0  # how often a standby renews its note
GONE_S: Final = 10.0  # for so long a note lasts
_GROWN: Final = (".log", ".jsonl")
_NEVER: Final = (LOCK, EPOCH)  # each machine has its own


@dataclass(frozen=True, slots=True)
class Follower:
    """The note of a standby: where it is reached once it is the master, and the last parcel that it has taken."""

    name: str
    address: str
    taken: int = 0
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Parcel:
    """What the bytes of a parcel are: a part of `file` from byte `at` on, which has `size` bytes if it is sent whole.

    `only`: they are the names of all files that there are; others are gone. `over`: there is nothing more to come, and
    `why` is the error that has ended the run, if one has.
    """

    kind: Literal["grows", "whole", "only", "over"]
    file: str = ""
    at: int = 0
    size: int = 0
    why: str = ""


def read_follower(store: Store, run: str) -> Follower | None:
    """The standby that follows this run now. Raises `StoreError`."""
    try:
        head, _ = store.read_head(keys.standby(run))
        return Follower(**json.loads(head))
    except (MissingKeyError, ValueError, TypeError):
        return None


def files_of(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """The files of a run that another machine is to have, by their names in it; not those that are only begun."""
    for path in sorted(run_dir.rglob("*")):
        name = path.relative_to(run_dir).as_posix()
        hidden = any(part.startswith(".") for part in path.relative_to(run_dir).parts)
        if not hidden and name not in _NEVER and path.is_file() and not path.is_symlink():
            yield name, path


def grows(name: str) -> bool:
    """Whether this file is a log, of which lines are sent."""
    return name.endswith(_GROWN) or name == f"{LOGS}/{TIMES}"


class RunFollower:
    """The standby's side: takes what the master sends, and puts it into `run_dir`. `address` is where it will serve.

    `over` is set once the run is: its files are all there; `why` is the error that has ended it, or empty.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        run_dir: Path,
        address: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._store, self._run, self._run_dir = store, run, run_dir
        self._me = Follower(secrets.token_hex(6), address)
        self._beaten = -math.inf
        self.over = False
        self.why = ""

    @property
    def taken(self) -> int:
        """The number of the last parcel."""
        return self._me.taken

    def follow(self) -> None:
        """Say that this one follows, and take all that has come.

        Raises `StoreError`; `ConfigError` if another standby follows this run, or the disk does not take the files.
        """
        self._beat()
        while not self.over and self._take():
            pass

    def leave(self) -> None:
        """Follow no longer, and take nothing over. Raises `StoreError`."""
        other = read_follower(self._store, self._run)
        if not self.over and (other is None or other.name == self._me.name):
            self._me = replace(self._me, leaves=True)
            self._write()

    def take_rest(self) -> None:
        """What is still on the way, once nobody sends any more; then this one has followed. Raises as `follow`."""
        while not self.over and self._take():
            pass
        self._store.delete(keys.standby(self._run))

    def _beat(self) -> None:
        if self._clock() < self._beaten + BEAT_S:
            return
        other = read_follower(self._store, self._run)
        if other is not None and other.name != self._me.name and not other.leaves:
            raise ConfigError(
                f"another standby, at {other.address}, follows this run, and a run has one: stop that one first"
            )
        self._write()

    def _write(self) -> None:
        self._beaten = self._clock()
        head = json.dumps(asdict(self._me)).encode()
        self._store.write(keys.standby(self._run), head, memoryview(b""), expire_s=GONE_S)

    def _take(self) -> bool:
        """Take the next parcel, if it is there."""
        number = self._me.taken + 1
        key = keys.parcel(self._run, self._me.name, number)
        try:
            head, size = self._store.read_head(key)
            body = bytearray(size)
            self._store.read(key, memoryview(body))
            parcel = Parcel(**json.loads(head))
        except (MissingKeyError, PayloadError):  # or it is being replaced
            return False
        except (ValueError, TypeError):
            raise StoreError(
                f"{key} in {self._store.address} is no part of a run: another program wrote it"
            ) from None
        if parcel.kind == "over":
            self.over, self.why = True, parcel.why
        else:
            self._apply(parcel, body)
        self._me = replace(self._me, taken=number)
        self._write()  # first: a parcel that is not there, and not noted as taken, is lost
        self._store.delete(key)
        return True

    def _apply(self, parcel: Parcel, body: bytearray) -> None:
        path = self._run_dir
        try:
            if parcel.kind == "only":
                names = set(body.decode().split("\n"))
                for name, other in list(files_of(path)):
                    if name not in names:
                        other.unlink(missing_ok=True)
                return
            path = path / _inside(parcel.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path if parcel.kind == "grows" else path.with_name(f".{path.name}.part")
            if parcel.kind == "whole" and parcel.at and not part.exists():
                return  # a repetition of the last piece
            with part.open("r+b" if parcel.at else "wb") as file:
                file.truncate(parcel.at)
                file.seek(parcel.at)
                file.write(body)
            if parcel.kind == "whole" and parcel.at + len(body) == parcel.size:
                part.replace(path)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror or error}; make room there, and start the standby again"
            ) from None


def _inside(name: str) -> PurePosixPath:
    """A name that leads nowhere but into the run directory. Raises `StoreError`."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise StoreError(f"the master sends a file named {name!r}, which is no part of a run")
    return path
