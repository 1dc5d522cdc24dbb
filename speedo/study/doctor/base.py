"""The request to the doctor, and the finding that a check returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from speedo.engines.make import EngineName
from speedo.run.config.run_config import DEFAULT_PORT
from speedo.system.cores import Bind

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Request:
    """A node to examine: as the worker of the master at host:port, or alone or as a master's if `master` is None.

    `host` and `port` are where a master here would listen. `facts` are the master's
    (`speedo.study.doctor.solver.facts_of`), for a node that is examined before its master runs;
    empty if they are not known. `own`: for scripts, without solver or engine.
    """

    solver: Path | None = None
    master: str | None = None
    workers: int = 2
    data_root: Path | None = None
    token_file: Path | None = None
    redis: str | None = None
    run_dir: Path | None = None
    engine: EngineName | None = None
    device: str | None = None
    threads: str = "1"
    bind: Bind = "none"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    facts: dict[str, Any] | None = None
    own: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check; `remedy` says what to do, and is empty if there is no problem."""

    name: str
    level: Level
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> Finding:
    """No problem."""
    return Finding(name, "ok", text)


def warn(name: str, text: str, remedy: str) -> Finding:
    """A run works, but not as expected."""
    return Finding(name, "warn", text, remedy)


def fail(name: str, text: str, remedy: str = "") -> Finding:
    """A run would not work. Without a `remedy` the text names it."""
    return Finding(name, "fail", text, remedy)


def graded(name: str, text: str, remedy: str, *, fails: bool, warns: bool) -> Finding:
    """The worst of these that holds."""
    if fails:
        return fail(name, text, remedy)
    return warn(name, text, remedy) if warns else ok(name, text)


def size(count: float) -> str:
    """Bytes as text, for example `1.5 GB`."""
    unit = "kB"
    count /= 1000
    for larger in ("MB", "GB"):
        if count >= 1000:
            unit, count = larger, count / 1000
    return f"{count:,.1f} {unit}"
