"""The merge rules once more, in plain numpy: what a center must be after the payloads that were accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

GRADIENT_LR = 0.05  # of the update that the schedules give to `server_gradient`


def kind_of(options: Mapping[str, Any]) -> str:
    """What workers send under these options."""
    if options["mode"] == "easgd" or options.get("moving_rate") is not None:
        return "WEIGHTS"
    return "GRADIENT" if options.get("server_gradient") else "DELTA"


def rate_of(options: Mapping[str, Any], members: int) -> float:
    """The factor of a merge while so many workers are in the run."""
    workers, kind = max(members, 1), kind_of(options)
    if kind == "WEIGHTS":
        return float(options.get("moving_rate") or 0.9 / workers)
    if kind == "GRADIENT":
        return 1.0
    plain = 1.0 if options["mode"] == "sync" else min(1.0, 2.0 / workers)
    return float(options.get("delta_scale") or plain)


def merge_into(
    center: np.ndarray,
    kind: str,
    vectors: Sequence[np.ndarray],
    samples: Sequence[int],
    rate: float,
) -> None:
    """One merge of payloads of this kind, in place, in float32."""
    shares = [np.float32(rate * count / sum(samples)) for count in samples]
    mean = np.sum([vector * share for vector, share in zip(vectors, shares, strict=True)], axis=0)
    if kind == "GRADIENT":
        center -= np.float32(GRADIENT_LR) * mean
    elif kind == "DELTA":
        center += mean
    else:
        for vector in vectors:
            center += (vector - center) * np.float32(rate)


def equal(found: np.ndarray, expected: np.ndarray, parts: int) -> bool:
    """Bit by bit, where the order of additions is given; else to a few units of the last place."""
    if parts == 1:
        return found.tobytes() == expected.tobytes()
    return bool(np.allclose(found, expected, rtol=1e-5, atol=1e-6))
