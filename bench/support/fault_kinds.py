"""The names of what can happen to a run, and whom each hits."""

from __future__ import annotations

from typing import Final

PROCESSES: Final = ("worker", "master", "redis", "GCS", "raylet", "keeper", "host command")
KINDS: Final = (*PROCESSES, "command", "host", "frozen", "link")
MACHINE: Final = "machine of the master"
SERVER: Final = "server"
NOTICE: Final = "notice"
HEAD_RAYLET: Final = "raylet of the head"
# The workers of one host, or of all.
HOST_ALONE: Final = ("raylet", "keeper", "host command", "host", "link", NOTICE)
ALL_WORKERS: Final = ("master", "redis", "GCS", HEAD_RAYLET, "command", MACHINE, SERVER)
