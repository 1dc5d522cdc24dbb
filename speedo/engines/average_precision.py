"""The average precision of a detector, from the rows of SSD's DetectionEvaluate layer over a whole test.

Everingham et al. 2010, "The Pascal Visual Object Classes (VOC) Challenge", section 4.2; the three forms are those of
SSD's solver, util/bbox_util.cpp, ComputeAP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]
FORMS: Final = ("Integral", "11point", "MaxIntegral")
USUAL: Final = "Integral"


def average_precision(
    scores: Rows, right: Rows, wrong: Rows, there: int, form: str = USUAL
) -> float:
    """Of one class: its found boxes with their scores, and how many there are to find.

    `Integral` is the area below the curve of precision over recall, `MaxIntegral` that of the largest precision at this
    recall or beyond (VOC2010), `11point` its mean at the recalls 0, 0.1 ... 1 (VOC2007).
    """
    if not there or not len(scores):
        return 0.0
    order = np.argsort(-scores, kind="stable")
    found, missed = np.cumsum(right[order]), np.cumsum(wrong[order])
    recall = found / there
    precision = found / np.maximum(found + missed, 1e-30)
    if form == "11point":
        steps = np.arange(11) / 10
        return float(
            np.mean([precision[recall >= step - 1e-12].max(initial=0.0) for step in steps])
        )
    if form == "MaxIntegral":
        precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def by_class(parts: Iterable[Sequence[Sequence[float]]], form: str = USUAL) -> dict[int, float]:
    """The average precision of each class that the rows (image, class, score, right, wrong) name; see the layer."""
    rows: Rows = np.array([row for part in parts for row in part], np.float64).reshape(-1, 5)
    counts = rows[rows[:, 0] == -1]
    boxes = rows[rows[:, 0] != -1]
    found = {}
    for label in sorted(set(counts[:, 1].astype(int))):
        there = int(np.maximum(counts[counts[:, 1] == label][:, 2], 0).sum())
        own = boxes[boxes[:, 1] == label]
        if there:
            found[label] = average_precision(own[:, 2], own[:, 3], own[:, 4], there, form)
    return found
