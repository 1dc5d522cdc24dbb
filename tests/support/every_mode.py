"""Each mode with the options that it needs."""

from __future__ import annotations

from typing import Any

MODES = ("sync", "async", "partial", "weed-out", "easgd", "hybrid")


def options_of(mode: str, iterations: int) -> dict[str, Any]:
    """The defaults of a mode; hybrid has two phases, each twice in so many iterations."""
    if mode != "hybrid":
        return {"mode": mode}
    phases = [{"mode": kind, "iterations": iterations // 4} for kind in ("sync", "easgd")]
    return {"mode": mode, "phases": phases}
