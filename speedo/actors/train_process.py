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
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Final

from speedo.actors.signals import stop_signals
from speedo.config.run_config import RunConfig
from speedo.errors import EngineError, SpeedoError
from speedo.monitor.console import Quiet
from speedo.redaction import hide_secrets
from speedo.run.result import RunResult
from speedo.system.background_process import start_in_background
from speedo.system.import_order import with_our_path

LOOK_S: Final = 0.2


def train_apart(config: RunConfig) -> RunResult:
    """Train with this configuration; Ctrl-C ends the run early, and a second one at once. Raises `SpeedoError`."""
    ours, theirs = Pipe()
    with ours, stop_signals() as stopped:
        with theirs:
            child = start_in_background(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                env=with_our_path(os.environ),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        try:
            ours.send(config)
            told = False
            while not ours.poll(LOOK_S):
                if stopped and not told:
                    child.send_signal(signal.SIGINT)
                    told = True
            answer: RunResult | SpeedoError | str = ours.recv()
            child.wait()
        except EOFError:
            raise EngineError(f"the run's process ended with status {child.wait()}") from None
        finally:
            child.kill()
            child.wait()
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
    threading.Thread(target=_listen, args=(connection,), daemon=True).start()
    answer: RunResult | SpeedoError | str
    try:
        answer = (train if config.ray is None else train_on_ray)(config, Quiet())
    except SpeedoError as error:
        answer = error
    except Exception:
        answer = hide_secrets(traceback.format_exc())
    connection.send(answer)


def _listen(connection: Connection) -> None:
    connection.poll(None)  # nothing more is sent: its end is the caller's
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    # Under this name the messages are pickled.
    from speedo.actors.train_process import main as imported_main

    imported_main()
