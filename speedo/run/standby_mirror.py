"""Sends the run directory to a standby: the master's end of the way that `speedo.run.standby_copy` describes."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from caffenets.files import open_to_read
from speedo.errors import MissingKeyError, SpeedoError, StoreError
from speedo.run.standby_copy import BEAT_S, GONE_S, Follower, Parcel, files_of, grows, read_follower
from speedo.run_dir.directory import RESULT
from speedo.storage import keys
from speedo.storage.base import Store

LOOK_S: Final = 0.2  # how often is looked for what is new, while a standby follows
IDLE_S: Final = 1.0  # and how often for a standby
STUCK_S: Final = 5.0  # without a parcel taken: they may be lost
PARCEL_S: Final = 600.0  # a parcel that nobody takes is there so long
PIECE_BYTES: Final = 4 << 20
WINDOW_BYTES: Final = 64 << 20  # on the way at once
# Likewise: a standby that is slow gets more lines at once, and is not left behind.
MOST_PARCELS: Final = 16


@dataclass(slots=True)
class _Half:
    """A file that is sent in pieces: open, so that it may have another content under its name meanwhile."""

    name: str
    file: BinaryIO
    sign: tuple[int, ...]
    at: int = 0

    @property
    def size(self) -> int:
        return self.sign[0]


class _NoRoomError(Exception):
    """So many bytes are on the way that no more are sent now."""


class RunMirror:
    """The master's side: sends `run_dir` to the standby of the run, in a thread that training never waits for.

    `tell` is called every second with the address of the standby, empty if there is none, and with whether one may take
    the run over: also one that is silent may, until it has said that it leaves. `may_come` are the names of those that
    the mirror of another attempt has seen. `note` gets sentences for people.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        run_dir: Path,
        note: Callable[[str], None],
        tell: Callable[[str, bool], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        may_come: set[str] | None = None,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._store, self._run, self._run_dir = store, run, run_dir
        self._note, self._tell = note, tell
        self._follower: Follower | None = None
        self._may_come = set[str]() if may_come is None else may_come
        self._number = 0  # of the last parcel
        self._on_way: deque[tuple[int, int]] = deque()  # number and bytes
        self._unsure: tuple[bytes, bytes] | None = None  # a parcel that may be on the way, too
        # What was sent of each file: its size, and when it was changed
        self._sent: dict[str, tuple[int, ...]] = {}
        self._listed = False  # whether the standby knows which files there are
        self._moved = 0.0  # when a parcel was taken, or the first sent
        self._told = -math.inf
        self._half: _Half | None = None  # a file of which some pieces are sent
        self._last = False  # also lines that are not whole
        self._told_over = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="run mirror", daemon=True)

    def start(self) -> None:
        """Begin to look for a standby."""
        self._thread.start()

    @property
    def standby(self) -> str:
        """The address of the standby that follows; empty if there is none."""
        return "" if self._follower is None else self._follower.address

    def finish(self, patience_s: float, why: str = "", *, over: bool = True) -> str:
        """Send what is left, and that the run is over; returns why that was given up after so many seconds, or nothing.

        It goes on at the standby if it is not `over`. A second call does nothing.
        """
        if self._ends.is_set():
            return ""
        self._halt()
        deadline = self._clock() + patience_s
        self._last, problem = True, "it did not answer"
        while self._clock() < deadline:
            try:
                self._look()
                if self._follower is None:
                    return ""
                if not self._told_over and self._send():
                    if over:
                        self._put(Parcel("over", why=why))
                    self._told_over = True
                if self._told_over and not self._on_way:
                    return ""
            except (StoreError, OSError) as error:
                problem = str(error)
            self._sleep(LOOK_S)
        return f"the standby at {self.standby} has not all of the run: {problem}"

    def close(self) -> None:
        """Send nothing more."""
        self._halt()
        self._close_half()
        self._store.close()

    def _halt(self) -> None:
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._ends.wait(IDLE_S if self._follower is None else LOOK_S):
            # Redis is away, or a file has just gone: the next look may be better.
            with suppress(SpeedoError, OSError):
                self.step()

    def step(self) -> None:
        """Look for a standby, and send it what is new. Raises `StoreError`, `OSError`."""
        self._look()
        if self._follower is not None:
            self._send()

    # ------------------------------------------------------------ the standby

    def _look(self) -> None:
        """See who follows, and what has arrived."""
        now, before = read_follower(self._store, self._run), self._follower
        if now is None or before is None or now.name != before.name:
            if before is not None:
                left = now is not None and now.name == before.name
                self._lost(before, left=left)
            if now is not None and now.leaves:
                self._may_come.discard(now.name)
            elif now is not None:
                self._note(f"a standby at {now.address} follows this run")
                self._begin(now)
        elif now.leaves:
            self._lost(now, left=True)
        else:
            self._follower = now
            self._arrived(now)
        if self._told + BEAT_S <= self._clock():
            self._told = self._clock()
            self._tell(self.standby, bool(self._may_come))

    def _begin(self, follower: Follower) -> None:
        self._follower, self._number = follower, follower.taken
        self._may_come.add(follower.name)
        self._on_way.clear()
        self._unsure = None
        self._sent.clear()
        self._listed = False
        self._close_half()
        self._told_over = False
        self._moved = self._clock()

    def _lost(self, follower: Follower, *, left: bool) -> None:
        """It is gone, and takes nothing more."""
        self._follower = None
        if left:
            self._may_come.discard(follower.name)
            self._note(f"the standby at {follower.address} has left; the run goes on without one")
        else:
            self._note(
                f"warning: the standby at {follower.address} has not been heard of for {GONE_S:.0f} s; the run goes "
                "on without one"
            )
        waiting = [keys.parcel(self._run, follower.name, number) for number, _ in self._on_way]
        self._on_way.clear()
        self._store.delete(*waiting)

    def _arrived(self, follower: Follower) -> None:
        before = len(self._on_way)
        while self._on_way and self._on_way[0][0] <= follower.taken:
            self._on_way.popleft()
        now = self._clock()
        if len(self._on_way) < before or not self._on_way:
            self._moved = now
        elif now > self._moved + STUCK_S:
            self._moved = now
            try:
                self._store.read_head(keys.parcel(self._run, follower.name, self._on_way[0][0]))
            except MissingKeyError:  # a Redis that was restarted has lost what was on the way
                self._begin(follower)

    # ------------------------------------------------------------ the files

    def _send(self) -> bool:
        """Send what is new, as far as there is room; whether that is all."""
        try:
            self._send_logs()
            files = dict(files_of(self._run_dir))
            if not self._listed or self._sent.keys() - files.keys():
                self._put(Parcel("only"), "\n".join(files).encode())
                self._sent = {name: sign for name, sign in self._sent.items() if name in files}
                self._listed = True
            if self._half is not None:
                self._send_pieces(self._half)
            for name in sorted(files, key=lambda one: (one == RESULT, one)):  # it speaks of others
                if not grows(name) and (half := self._opened(name, files[name])) is not None:
                    self._half = half
                    self._send_pieces(half)
        except _NoRoomError:
            return False
        return True

    def _send_logs(self) -> None:
        for name, path in files_of(self._run_dir):
            if grows(name):
                with suppress(FileNotFoundError):
                    self._send_end(name, path)

    def _send_end(self, name: str, path: Path) -> None:
        """The whole lines that a log has gained; what was replaced by something shorter is sent once more."""
        at = self._sent.get(name, (0,))[0]
        if path.stat().st_size < at:
            at = 0
        with open_to_read(path) as file:
            file.seek(at)
            while piece := file.read(PIECE_BYTES):
                end = (
                    len(piece)
                    if self._last or len(piece) == PIECE_BYTES
                    else piece.rfind(b"\n") + 1
                )
                if not end:
                    break
                self._put(Parcel("grows", name, at), piece[:end])
                at += end
                self._sent[name] = (at,)

    def _opened(self, name: str, path: Path) -> _Half | None:
        """This file, if it was not sent as it is now."""
        try:
            file = open_to_read(path)
        except FileNotFoundError:
            return None  # a checkpoint that newer ones have replaced
        stat = os.fstat(file.fileno())
        sign = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if self._sent.get(name) == sign:
            file.close()
            return None
        return _Half(name, file, sign)

    def _send_pieces(self, half: _Half) -> None:
        """All pieces for which there is room; the logs go on meanwhile."""
        while True:
            half.file.seek(half.at)
            piece = half.file.read(min(PIECE_BYTES, half.size - half.at))
            if not piece and half.size:
                break  # it was cut off meanwhile, and has another sign now
            self._put(Parcel("whole", half.name, half.at, half.size), piece)
            half.at += len(piece)
            if half.at >= half.size:
                self._sent[half.name] = half.sign
                break
            self._send_logs()
        self._close_half()

    def _close_half(self) -> None:
        if self._half is not None:
            self._half.file.close()
            self._half = None

    def _put(self, parcel: Parcel, body: bytes = b"") -> None:
        """Send a parcel; raises `_NoRoomError` if too much is on the way."""
        if self._unsure is not None:
            self._write(*self._unsure)
        waiting = sum(size for _, size in self._on_way)
        if parcel.kind != "over" and (
            len(self._on_way) >= MOST_PARCELS
            or (self._on_way and waiting + len(body) > WINDOW_BYTES)
        ):
            raise _NoRoomError
        self._write(json.dumps(asdict(parcel)).encode(), body)

    def _write(self, head: bytes, body: bytes) -> None:
        """Write the next parcel. One whose answer is lost may be there, and be taken: its number gets nothing else."""
        assert self._follower is not None
        number, self._unsure = self._number + 1, (head, body)
        key = keys.parcel(self._run, self._follower.name, number)
        self._store.write(key, head, memoryview(body), expire_s=PARCEL_S)
        self._number, self._unsure = number, None
        self._on_way.append((number, len(body)))
