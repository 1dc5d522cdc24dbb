"""Boxes (xmin, ymin, xmax, ymax): overlaps, matches, codes, and which of many are kept.

SSD: Liu et al. 2016, arXiv:1512.02325; its Caffe, util/bbox_util.cpp. A box of pixels, as in Faster R-CNN, includes its
last row and column, so that its width is xmax - xmin + 1: `extra` is 1 for those and 0 for others.
"""

from __future__ import annotations

from typing import Final, Literal

from caffenets.torch_later import Tensor, torch

Code = Literal["CORNER", "CENTER_SIZE", "CORNER_SIZE"]
NO_MATCH: Final = -1
_LEAST_OVERLAP: Final = 1e-6  # below it boxes do not match


def areas(boxes: Tensor, extra: float = 0.0) -> Tensor:
    """The area of each box (..., 4); 0 where it is turned inside out."""
    return (boxes[..., 2:] - boxes[..., :2] + extra).clamp(min=0).prod(-1)


def overlaps(first: Tensor, second: Tensor, extra: float = 0.0) -> Tensor:
    """(n, m): the intersection of each two boxes over their union."""
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    both = (high - low + extra).clamp(min=0).prod(-1)
    union = areas(first, extra)[:, None] + areas(second, extra)[None] - both
    return torch.where(both > 0, both / union.clamp(min=1e-30), 0.0)


def matches(overlap: Tensor, threshold: float | None) -> Tensor:
    """Of each box (first axis of `overlap`) its match among the true ones (second axis), or `NO_MATCH`.

    First each true box is given one, the pair with the largest overlap before the others. With a threshold each other
    box is then given the true one that it overlaps most, if by that much.
    """
    boxes, true = overlap.shape
    found = torch.full((boxes,), NO_MATCH, dtype=torch.long)
    if not overlap.numel():
        return found
    left = torch.where(overlap > _LEAST_OVERLAP, overlap, -1.0)
    for _ in range(true):
        best = int(left.argmax())
        box, match = divmod(best, true)
        if left[box, match] < 0:
            break
        found[box] = match
        left[box], left[:, match] = -1.0, -1.0
    if threshold is not None:
        most, which = overlap.max(1)
        more = (found == NO_MATCH) & (most >= threshold) & (most > _LEAST_OVERLAP)
        found[more] = which[more]
    return found


def encoded(boxes: Tensor, priors: Tensor, variances: Tensor | None, code: Code) -> Tensor:
    """What a net is to say of each prior so that it means the box; all are (n, 4)."""
    if code == "CENTER_SIZE":
        center, size = _centers(boxes)
        prior_center, prior_size = _centers(priors)
        said = torch.cat([(center - prior_center) / prior_size, (size / prior_size).log()], -1)
    else:
        said = boxes - priors
        if code == "CORNER_SIZE":
            said = said / (priors[..., 2:] - priors[..., :2]).repeat(1, 2)
    return said if variances is None else said / variances


def decoded(said: Tensor, priors: Tensor, variances: Tensor | None, code: Code) -> Tensor:
    """The inverse of `encoded`."""
    if variances is not None:
        said = said * variances
    if code == "CENTER_SIZE":
        prior_center, prior_size = _centers(priors)
        center = said[..., :2] * prior_size + prior_center
        half = said[..., 2:].exp() * prior_size / 2
        return torch.cat([center - half, center + half], -1)
    if code == "CORNER_SIZE":
        said = said * (priors[..., 2:] - priors[..., :2]).repeat(1, 2)
    return priors + said


def _centers(boxes: Tensor) -> tuple[Tensor, Tensor]:
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]


def kept(
    boxes: Tensor, scores: Tensor, threshold: float, most: int, eta: float = 1.0, extra: float = 0.0
) -> Tensor:
    """The numbers of the boxes that are left, best first, at most `most` (-1: all).

    A box goes where it overlaps a better one by more than `threshold`, which `eta` lowers after each that stays while
    it is above 0.5 (non-maximum suppression; SSD: ApplyNMSFast).
    """
    order = scores.sort(descending=True, stable=True).indices
    chosen: list[int] = []
    if eta == 1.0:
        overlap = overlaps(boxes[order], boxes[order], extra) > threshold
        alive = torch.ones(len(order), dtype=torch.bool)
        for place in range(len(order)):
            if alive[place]:
                chosen.append(place)
                if len(chosen) == most:
                    break
                alive &= ~overlap[place]
    else:
        for place in range(len(order)):
            others = boxes[order[chosen]]
            if not (overlaps(boxes[order[place]][None], others, extra) > threshold).any():
                chosen.append(place)
                if len(chosen) == most:
                    break
                threshold *= eta if threshold > 0.5 else 1.0
    return order[chosen]
