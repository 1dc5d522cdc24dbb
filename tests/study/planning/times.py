"""Calibrations with round numbers, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from speedo.study.planning.calibration import Calibration, Passage, StepTime, Transport

NOTHING = Passage(seconds=0.0, client=0.0, server=0.0)
FREE = Transport(read=NOTHING, write=NOTHING, small=0.0)


def calibration(**fields: Any) -> Calibration:
    """Ten samples in 100 ms, 12.5 MB of parameters, and nothing but compute costs anything, unless told otherwise."""
    usual: dict[str, Any] = {
        "net": "made up",
        "batch_size": 10,
        "nbytes": 12_500_000,
        "steps": (StepTime(samples=10, seconds=0.1),),
        "cores": 2,
        "far": FREE,
        "near": FREE,
        **dict.fromkeys(("load", "pull", "seal", "check", "merge", "publish", "handle"), 0.0),
        **dict.fromkeys(("message", "far_message", "meeting"), 0.0),
    }
    given = {**usual, **fields}
    whole = dict.fromkeys(("payload_bytes", "center_bytes"), given["nbytes"])
    return Calibration(**{**whole, **given})


def passage(seconds: float) -> Transport:
    """A store that takes so long for a model, half of it in the server."""
    half = Passage(seconds=seconds, client=seconds / 2, server=seconds / 2)
    return Transport(read=half, write=half, small=0.0)
