"""Programs of ours that the product runs as children, as forks: `python -P -m speedo.engines.net_trial`."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.forked.server import SOCKET, Order, ask, status_of


def run(
    words: Sequence[str],
    *,
    input: str,
    env: Mapping[str, str],
    timeout: float,
    **_: Any,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`, with all that the program prints. Raises `subprocess.TimeoutExpired`."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+", errors="replace") as said,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        given.write(input)
        given.seek(0)
        module = words[words.index("-m") + 1]
        order = Order(f"{module}:main", (), words, {**env, SOCKET: os.environ[SOCKET]}, os.getcwd())
        files = [one.fileno() for one in (given, said, errors)]
        number, ended = ask(order, files, os.environ[SOCKET])
        with ended:
            ended.settimeout(timeout)
            try:
                status = status_of(ended)
            except TimeoutError:
                os.kill(number, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, timeout) from None
        said.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, status, said.read(), errors.read())


class Subprocess:
    """In place of the module `subprocess` in a module that runs one program of ours."""

    run = staticmethod(run)
    TimeoutExpired = subprocess.TimeoutExpired


def take_the_place_of_children() -> None:
    """In this process and its forks."""
    from speedo.engines import net_trial
    from speedo.study.comparison import one_run
    from tests.support.forked.commands import Children

    net_trial.subprocess = Subprocess  # type: ignore[assignment,attr-defined]
    one_run.subprocess = Children  # type: ignore[assignment,attr-defined]
