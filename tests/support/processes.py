"""What processes say of themselves. One that has just ended, or ends meanwhile, says nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Its command line."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def name_of(process: psutil.Process) -> str:
    """Its program's."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def lines_of(processes: Iterable[psutil.Process]) -> list[str]:
    """The beginning of the command line of each that is still there, for a message."""
    lines = (" ".join(words_of(process)).strip() for process in processes)
    return [line[:200] for line in lines if line]


def environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def standard_error(process: psutil.Process) -> str:
    """The name of the file where a process's standard error goes."""
    try:
        return Path(os.readlink(f"/proc/{process.pid}/fd/2")).name
    except OSError:
        return ""


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Addresses at which it listens for TCP."""
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:
        return set()
    return {
        (str(one.laddr.ip), int(one.laddr.port))
        for one in connections
        if one.status == psutil.CONN_LISTEN
    }


def kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
