"""How far the outputs of two computations are apart, of the largest value of each."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from caffenets.errors import EngineError
from caffenets.export.trials import Arrays

Array = npt.NDArray[Any]
MOST: Final = 1e-4  # above it an export fails; ten times what rounding makes of a deep net


class TooFarError(EngineError):
    """Outputs that are too far apart."""


def difference(
    ours: Arrays,
    engines: Arrays,
    what: str,
    engine: str,
    found: Collection[str] = (),
    most: float = MOST,
) -> float:
    """The greatest difference over all outputs. Raises `EngineError`, `TooFarError` where it is above `most`.

    `found` are outputs with a row for each thing that was found, in an order that rounding may change.
    """
    worst = 0.0
    for name, theirs in engines.items():
        mine = ours.get(name)
        if mine is not None and name in found and mine.shape[-1:] == theirs.shape[-1:]:
            mine, theirs = paired(mine, theirs)
        if mine is None or mine.shape != theirs.shape:
            has = "is missing" if mine is None else f"has the shape {mine.shape}"
            raise EngineError(
                f"{what}: the output {name!r} {has}, and in {engine} the shape {theirs.shape}; nothing is written"
            )
        apart = of_largest(np.asarray(mine, np.float64), np.asarray(theirs, np.float64))
        if not apart <= most:
            raise TooFarError(
                f"{what}: the output {name!r} differs from {engine}'s by {apart:.1e} of its largest value, more than "
                f"{most:.0e}; nothing is written"
            )
        worst = max(worst, apart)
    return worst


def paired(mine: Array, theirs: Array) -> tuple[Array, Array]:
    """Of the rows image, class and numbers: the numbers of `theirs`, and of the row of `mine` that is nearest to each.

    One row in a hundred may have no partner: rounding decides about a box that overlaps another by just the threshold.
    Where more have none, both as they are.
    """
    left, right = (one.reshape(-1, one.shape[-1]).astype(np.float64) for one in (mine, theirs))
    if not len(left):
        return mine, theirs
    apart = [np.abs(left - row).max(1) for row in right]
    partners = {at: int(one.argmin()) for at, one in enumerate(apart) if one.min() <= MOST}
    alone = len(right) - len(partners) + len(left) - len(set(partners.values()))
    if alone > len(right) // 100:
        return mine, theirs
    return left[[*partners.values()], 2:], right[[*partners], 2:]


def of_largest(mine: Array, theirs: Array) -> float:
    """The greatest difference, of the largest value of `theirs`."""
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(mine)):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = float(np.abs(theirs[finite]).max())
    worst = float(np.abs(mine[finite] - theirs[finite]).max())
    return worst / largest if largest else worst
