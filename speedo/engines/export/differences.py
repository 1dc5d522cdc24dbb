"""How far the outputs of two computations are apart, of the largest value of each."""

from __future__ import annotations

from typing import Final

import numpy as np

from speedo.engines.export.trial import Arrays
from speedo.errors import EngineError

MOST: Final = 1e-4  # above it an export fails; ten times what rounding makes of a deep net


def difference(ours: Arrays, engines: Arrays, what: str, engine: str) -> float:
    """The greatest difference over all outputs. Raises `EngineError` where it is above `MOST`, or a shape differs."""
    worst = 0.0
    for name, theirs in engines.items():
        mine = ours.get(name)
        if mine is None or mine.shape != theirs.shape:
            found = "is missing" if mine is None else f"has the shape {mine.shape}"
            raise EngineError(
                f"{what}: the output {name!r} {found}, and in {engine} the shape {theirs.shape}; nothing is written"
            )
        apart = _apart(np.asarray(mine, np.float64), np.asarray(theirs, np.float64))
        if not apart <= MOST:
            raise EngineError(
                f"{what}: the output {name!r} differs from {engine}'s by {apart:.1e} of its largest value, more than "
                f"{MOST:.0e}; nothing is written"
            )
        worst = max(worst, apart)
    return worst


def _apart(mine: np.ndarray, theirs: np.ndarray) -> float:
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(mine)):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = float(np.abs(theirs[finite]).max())
    worst = float(np.abs(mine[finite] - theirs[finite]).max())
    return worst / largest if largest else worst
