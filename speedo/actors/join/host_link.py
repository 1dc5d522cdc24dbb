"""Between `speedo worker` and the keeper that the master places on its node: what this host offers, what the run says.

The command starts the node, with the name of a private folder in its environment, and listens at a socket in there.
Ray's processes inherit that environment, so the keeper finds the socket, gets the `Offer`, and sends notes, states and
at last how its stay ended. The command sends a `Leave` if something asks it to end; its own end counts as one. Either
side may be stopped or hang, in the middle of a message, too: the other one waits `ANSWER_S` for the rest.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, Self

from speedo.engines.make import EngineChoice
from speedo.engines.solver import SolverSpec
from speedo.errors import ConfigError, SpeedoError
from speedo.run.engine_choice import require_engine
from speedo.run.script_job import ScriptJob
from speedo.system.cores import Bind, Core, CoreOptions
from speedo.watch.status import Status

FOLDER: Final = "SPEEDO_HOST_FOLDER"
SOCKET: Final = "host"
RESOURCE: Final = "speedo_host"  # of Ray's: this node offers itself to the master
ANSWER_S: Final = 20  # for the other side to send, or take, the next byte of a message


@dataclass(frozen=True, slots=True)
class Offer:
    """What `speedo worker` offers; 0 workers only serve. `logs` takes the output of its workers.

    Without `threads`, `bind` and `device` those of the master are used. `block` is the first of the ports that are held
    for this host; 0 where any may be taken. `command` is what each worker runs, in `folder`, where the master has no
    solver.
    """

    address: str
    count: int
    logs: Path
    data_root: Path
    threads: str | None = None
    bind: Bind | None = None
    cores: tuple[tuple[Core, ...], ...] = ()
    device: str | None = None
    block: int = 0
    command: tuple[str, ...] = ()
    folder: str = ""

    def work(self, masters: SolverSpec | ScriptJob) -> SolverSpec | ScriptJob:
        """What the workers of this host train. Raises `ConfigError` if its command does not fit the master."""
        if isinstance(masters, SolverSpec):
            if self.command:
                raise ConfigError(
                    f"the master at {self.address} trains the solver {masters.path.name}, so a worker there runs no "
                    f"command: leave out `-- {self.command[0]} ...`, or start the master with --own"
                )
            return masters
        if not self.command:
            raise ConfigError(
                f"the master at {self.address} was started with --own, so each host brings its script: speedo worker "
                f"--master {self.address} -- python train.py"
            )
        if self.device is not None:
            raise ConfigError(
                f"the device is {self.device}, but a script itself decides where it computes: leave --device out"
            )
        return replace(masters, words=self.command, folder=self.folder)

    def core_options(self, masters: CoreOptions) -> CoreOptions:
        """The master's, as far as this host has none of its own."""
        return CoreOptions(self.threads or masters.threads, self.bind or masters.bind, self.cores)

    def engine(self, masters: EngineChoice) -> EngineChoice:
        """The master's engine on this host's device. Raises `SpeedoError` for a device that it has not."""
        require_engine(masters)
        if self.device is None:
            return masters
        if masters.engine == "caffe":
            raise ConfigError(
                f"the device is {self.device}, but the master's engine is caffe, and with it the solver's solver_mode "
                "decides where Caffe computes; leave --device out, or start the master with --engine torch"
            )
        return replace(masters, device=self.device)


@dataclass(frozen=True, slots=True)
class Leave:
    """This host is to leave, `after_s` seconds and within so many more, because of `why`; with 0 at once."""

    why: str
    within_s: float = 0.0
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Over:
    """The run is over."""

    status: Status


@dataclass(frozen=True, slots=True)
class Stopped:
    """The host has left, as it was asked to."""


@dataclass(frozen=True, slots=True)
class HostFailed:
    """An error that the user can fix."""

    error: SpeedoError


def _bounded(made: socket.socket) -> Connection:
    """Its `recv` and `send` raise `OSError` after `ANSWER_S` seconds without a byte."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        made.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", ANSWER_S, 0))
    return Connection(made.detach())


class HostLink:
    """The keeper's side. `leave` is what asks it to end, once something does: the latest."""

    def __init__(self, made: socket.socket) -> None:
        """Raises `OSError`, `EOFError` if the command offers nothing."""
        self.leave: Leave | None = None
        self._connection = _bounded(made)
        self.offer: Offer = self._connection.recv()
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, name="host-command", daemon=True).start()

    @classmethod
    def of_this_node(cls) -> Self | None:
        """None on a node that no `speedo worker` has started."""
        folder = os.environ.get(FOLDER)
        if folder is None:
            return None
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(ANSWER_S)
            made.connect(str(Path(folder, SOCKET)))
            made.settimeout(None)
            return cls(made)

    def tell(self, what: str | Status | Over | Stopped | HostFailed) -> None:
        """A state is left out while the command, which may be stopped, reads nothing: the next one says more."""
        with self._sending, suppress(OSError):  # nobody listens any more: the wish to end is there
            if not (isinstance(what, Status) and self._is_full()):
                self._connection.send(what)

    def _is_full(self) -> bool:
        room = select.poll()
        room.register(self._connection, select.POLLOUT)
        return not room.poll(0)

    def _listen(self) -> None:
        try:
            while self._connection.poll(None):
                self.leave = self._connection.recv()
        except (EOFError, OSError):
            self.leave = Leave("its command has ended")


class CommandLink:
    """The command's side: the keeper of this host's workers. The master starts another one only after giving one up."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen(1)
        self._keeper: Connection | None = None
        self._process = 0  # the keeper's; 0 if its number is not known here
        self._asked: Leave | None = None

    @property
    def is_kept(self) -> bool:
        return self._keeper is not None

    def heard(self, offer: Offer, timeout_s: float) -> Any:
        """What the keeper says, within the timeout; None if nothing. Raises `EOFError` if it is gone."""
        keeper = self._keeper
        ready = wait([self._listener] if keeper is None else [self._listener, keeper], timeout_s)
        try:
            if keeper is not None and keeper in ready:
                return keeper.recv()
            if self._listener in ready:
                self._take_another().send(offer)
        except (EOFError, OSError):
            assert self._keeper is not None
            self._keeper.close()
            self._keeper = None
            raise EOFError from None
        return None

    def _take_another(self) -> Connection:
        made, _ = self._listener.accept()
        if self._keeper is not None:
            if self._process > 0:  # its workers end with it, before others train in their place
                with suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)
            self._keeper.close()
        peer = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self._process, _, _ = struct.unpack("3i", peer)
        self._keeper, self._asked = _bounded(made), None
        return self._keeper

    def leave(self, wish: Leave) -> None:
        """Have the keeper end; another wish takes the place of the former."""
        if wish != self._asked and self._keeper is not None:
            self._asked = wish
            with suppress(OSError):
                self._keeper.send(wish)

    def close(self) -> None:
        self._listener.close()
        if self._keeper is not None:
            self._keeper.close()
