"""A run for a program that calls `speedo.train`, in a process of its own: `python -m speedo.actors.train_process FD`.

Ray takes its settings from the environment when it is imported, and a process has one cluster. So the caller's
environment and its own use of Ray stay as they were.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from speedo.actors.signals import ask_to_stop, stop_signals
from speedo.errors import EngineError, SpeedoError, hide_secrets
from speedo.run.config.run_config import RunConfig
from speedo.run.result import RunResult
from speedo.system.background_process import start_in_background
from speedo.system.import_order import with_our_path
from speedo.watch.callbacks import CallbackError, Callbacks, LogCallbacks, length_of_log
from speedo.watch.console import Quiet
from speedo.watch.status import Status

LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Begun:
    """Of the run's process: the run's directory, and the bytes that its log has from before."""

    run_dir: Path
    log_bytes: int


def train_apart(config: RunConfig, callbacks: Callbacks) -> RunResult:
    """Train with this configuration; Ctrl-C ends the run early, and a second one at once.

    Raises `SpeedoError` or, once the run has ended, what a callback raised.
    """
    ours, theirs = Pipe()
    with ours, stop_signals() as stopped:
        with theirs:
            child = start_in_background(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                env=with_our_path(os.environ),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        log: LogCallbacks | None = None
        failed: CallbackError | None = None
        try:
            ours.send(config)
            told = False
            answer: RunResult | SpeedoError | str | None = None
            more = False  # of the log is there
            while answer is None or more:
                if answer is None and ours.poll(0 if more else LOOK_S):
                    message: RunResult | SpeedoError | str | Begun = ours.recv()
                    more = True
                    if not isinstance(message, Begun):
                        answer = message
                    elif callbacks and log is None:  # else another master of the same run
                        log = LogCallbacks(callbacks, message.run_dir, message.log_bytes)
                if stopped and not told:
                    child.send_signal(signal.SIGINT)
                    told = True
                try:
                    more = log is not None and log.call_one()
                except CallbackError as error:
                    failed, log, more = error, None, False
                    with suppress(OSError):  # it has ended
                        ours.send(f"an exception in {error}")
            child.wait()
        except EOFError:
            raise EngineError(f"the run's process ended with status {child.wait()}") from None
        finally:
            child.kill()
            child.wait()
    if failed is not None:
        if isinstance(answer, RunResult):
            failed.error.add_note(f"speedo: it has ended the run, whose model is {answer.model}")
        raise failed.error
    if isinstance(answer, SpeedoError):
        raise answer
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def main() -> None:
    """Trains, and tells how it went; the end of the caller ends the run, too."""
    from speedo.actors.launch import train, train_on_ray

    connection = Connection(int(sys.argv[1]))
    config: RunConfig = connection.recv()
    watch = _Telling(connection)
    threading.Thread(target=_listen, args=(connection, watch.led), daemon=True).start()
    answer: RunResult | SpeedoError | str
    try:
        answer = (train if config.ray is None else train_on_ray)(config, watch)
    except SpeedoError as error:
        answer = error
    except Exception:
        answer = hide_secrets(traceback.format_exc())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a callback may raise at the last line of the log
    connection.send(answer)


class _Telling(Quiet):
    """Tells the caller where the run is; `led` is set once a signal ends it with its model exported."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self.led = connection, threading.Event()

    def begin(self, run_dir: Path) -> None:
        self._connection.send(Begun(run_dir, length_of_log(run_dir)))

    def show(self, status: Status) -> None:
        self.led.set()


def _listen(connection: Connection, led: threading.Event) -> None:
    """Wait for what a callback raised, or for the end of the caller."""
    try:
        cause: str = connection.recv()
        led.wait()
    except EOFError:
        cause = ""
    ask_to_stop(cause)


if __name__ == "__main__":
    # Under this name the messages are pickled.
    from speedo.actors.train_process import main as imported_main

    imported_main()
