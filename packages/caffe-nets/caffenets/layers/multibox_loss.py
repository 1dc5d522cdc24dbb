"""MultiBoxLoss: SSD's loss of boxes and classes. Liu et al. 2016, arXiv:1512.02325, section 2.2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from caffenets.box_labels import ROW
from caffenets.layer import Layer, Shape
from caffenets.layers.axes import count
from caffenets.layers.bottoms import wide
from caffenets.layers.boxes import NO_MATCH, Code, decoded, encoded, matches, overlaps
from caffenets.layers.losses import loss_of_parts
from caffenets.layers.options import choice
from caffenets.layers.smooth_l1 import smooth_l1
from caffenets.torch_later import Tensor, functional, torch


@dataclass(frozen=True, slots=True)
class TrueBoxes:
    """The annotated boxes of one image, on the CPU: corners (n, 4), classes and which are difficult (n,)."""

    corners: Tensor
    classes: Tensor
    difficult: Tensor


def true_boxes(labels: Tensor, images: int) -> list[TrueBoxes]:
    """The boxes of each image in an AnnotatedData layer's label top (`caffenets.box_labels`)."""
    rows = labels.detach().reshape(-1, ROW).float().cpu()
    found = []
    for image in range(images):
        own = rows[rows[:, 0] == image]
        found.append(TrueBoxes(own[:, 3:7], own[:, 1].long(), own[:, 7] != 0))
    return found


class MultiBoxLoss(Layer):
    """The loss of the matched boxes' codes, and that of the classes of all boxes or of some negatives.

    Bottoms are locations (num, 4 n [x classes]), confidences (num, n x classes), the n priors of PriorBox, and the
    annotated boxes. Matching is done on the CPU: with a GPU the host waits for it at each step. SSD's
    layers/multibox_loss_layer.cpp and util/bbox_util.cpp. Refused: HARD_EXAMPLE, bp_inside, and matching by predicted
    boxes of each class.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (4, 4)
    counts: ClassVar[tuple[int, ...]] = (2, 3)  # priors and annotated boxes

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.multibox_loss_param
        self._classes, self._background = param.num_classes, param.background_label_id
        if self._classes < 1:
            raise self.refuse(
                "has no num_classes: give the number of classes, with that of the background"
            )
        if self._background >= self._classes:
            raise self.refuse(
                f"has background_label_id {self._background} of {self._classes} classes: use one below num_classes"
            )
        mining = choice(param, "mining_type")
        if param.HasField("do_neg_mining"):
            mining = "MAX_NEGATIVE" if param.do_neg_mining else "NONE"
        if mining == "HARD_EXAMPLE":
            raise self.refuse(
                "has mining_type HARD_EXAMPLE, which is not computed here: use MAX_NEGATIVE or NONE"
            )
        if param.bp_inside:
            raise self.refuse("has bp_inside, which is not computed here: remove it")
        if not param.use_prior_for_matching and not param.share_location:
            raise self.refuse(
                "matches by the predicted boxes of each class: set use_prior_for_matching or share_location"
            )
        if param.map_object_to_agnostic and self._classes != 2:
            raise self.refuse(
                f"maps all classes to one, and has num_classes {self._classes}: use 2"
            )
        self._mines = mining == "MAX_NEGATIVE"
        if self._mines and not (param.share_location and param.neg_pos_ratio > 0):
            raise self.refuse(
                "mines negatives, which needs share_location and a neg_pos_ratio above 0: set both"
            )
        self._locations = 1 if param.share_location else self._classes
        loss = self.param.loss_param
        self._normalization = choice(loss, "normalization")
        if loss.HasField("normalize") and not loss.HasField("normalization"):
            self._normalization = "VALID" if loss.normalize else "BATCH_SIZE"
        self._code: Code = choice(param, "code_type")  # type: ignore[assignment]
        self._check(bottoms)
        return [()]

    def _check(self, bottoms: Sequence[Shape]) -> None:
        locations, confidences, priors, labels = bottoms
        if len(priors) < 3 or priors[1] != 2 or priors[2] % 4:
            raise self.refuse(
                f"has priors of {priors}: give the top of PriorBox, or several joined along axis 2"
            )
        number = priors[2] // 4
        wanted = (
            (locations[0], number * 4 * self._locations),
            (locations[0], number * self._classes),
        )
        for what, shape, (batch, values) in zip(
            ("locations", "confidences"), (locations, confidences), wanted, strict=True
        ):
            if shape[0] != batch or count(shape, 1) != values:
                raise self.refuse(
                    f"has {what} of {shape}: {number} priors need {values} values for each of {batch} images"
                )
        if not labels or labels[-1] != ROW:
            raise self.refuse(
                f"has labels of {labels}: give the second top of an AnnotatedData layer, rows of 8"
            )

    def loss_of_parts(self) -> str:
        how = loss_of_parts(self._normalization, self._background)
        # Matched by predicted boxes, it counts what only a forward pass knows.
        prior_alone = self.param.multibox_loss_param.use_prior_for_matching
        return "" if how == "counted" and not prior_alone else how

    def counted(self, *bottoms: Tensor) -> Tensor:
        priors, labels = bottoms
        on_host = priors.detach().float().cpu()[0].reshape(2, -1, 4)
        true = true_boxes(labels, 1 + int(max(0.0, labels[..., 0].max().item())))
        matches = [self._match(self._wanted(one), None, *on_host)[0] for one in true]
        return torch.tensor(sum(int((match > NO_MATCH).sum()) for match in matches))

    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        param = self.param.multibox_loss_param
        images = len(bottoms[0])
        locations = wide(bottoms[0]).reshape(images, -1, self._locations, 4)
        confidences = wide(bottoms[1]).reshape(images, -1, self._classes)
        priors, variances = bottoms[2].detach().float()[0].reshape(2, -1, 4)
        true = [self._wanted(one) for one in true_boxes(bottoms[3], images)]
        on_host = priors.cpu(), variances.cpu()
        location_loss, class_loss, matched = [], [], 0
        for image in range(images):
            match, overlap = self._match(true[image], locations[image], *on_host)
            positive = (match > NO_MATCH).nonzero()[:, 0]
            matched += len(positive)
            target = torch.full((len(match),), self._background)
            target[positive] = self._classes_of(true[image])[match[positive]]
            target = target.to(confidences.device)
            if len(positive):
                location_loss.append(
                    self._location_loss(
                        locations[image], true[image], match, positive, priors, variances
                    )
                )
            judged = self._judged(confidences[image], match, overlap, positive)
            class_loss.append(self._class_losses(confidences[image][judged], target[judged]).sum())
        divisor = {"FULL": images * len(priors), "VALID": matched, "BATCH_SIZE": images}.get(
            self._normalization, 1
        )
        # A step without a box has a gradient, of 0
        total = confidences[:0].sum() + locations[:0].sum()
        total = total + sum(location_loss) * param.loc_weight + sum(class_loss)
        return [total / max(1, divisor)]

    def _wanted(self, true: TrueBoxes) -> TrueBoxes:
        """Those that count; raises `EngineError` for a class that is none."""
        param = self.param.multibox_loss_param
        if len(true.classes) and not param.map_object_to_agnostic:
            self.checked(
                true.classes, self._classes, _CLASSES.format("{}", self._classes, self._classes - 1)
            )
        if (true.classes == self._background).any():
            raise self.refuse(
                f"read a box of class {self._background}, the background: correct the data or background_label_id"
            )
        if param.use_difficult_gt:
            return true
        easy = ~true.difficult
        return TrueBoxes(true.corners[easy], true.classes[easy], true.difficult[easy])

    def _classes_of(self, true: TrueBoxes) -> Tensor:
        if self.param.multibox_loss_param.map_object_to_agnostic:
            return torch.full_like(true.classes, self._background + 1)
        return true.classes

    def _match(
        self, true: TrueBoxes, locations: Tensor | None, priors: Tensor, variances: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of each prior the number of its annotated box, or `NO_MATCH`; and its largest overlap, or 2 if it is out."""
        param = self.param.multibox_loss_param
        boxes = priors
        if not param.use_prior_for_matching:
            assert locations is not None
            codes = locations[:, 0].detach().cpu()
            boxes = decoded(
                codes, priors, None if param.encode_variance_in_target else variances, self._code
            )
        threshold = (
            param.overlap_threshold if choice(param, "match_type") == "PER_PREDICTION" else None
        )
        overlap = overlaps(boxes, true.corners)
        most = overlap.max(1).values if len(true.corners) else torch.zeros(len(boxes))
        if param.ignore_cross_boundary_bbox:
            outside = ~_inside(boxes)
            overlap[outside], most[outside] = 0.0, 2.0
        return matches(overlap, threshold), most

    def _location_loss(
        self,
        locations: Tensor,
        true: TrueBoxes,
        match: Tensor,
        positive: Tensor,
        priors: Tensor,
        variances: Tensor,
    ) -> Tensor:
        """The loss of one image's matched boxes."""
        param, device = self.param.multibox_loss_param, locations.device
        of_class = (true.classes if self._locations > 1 else torch.zeros_like(true.classes))[
            match[positive]
        ]
        said = locations[positive.to(device), of_class.to(device)]
        corners, positive = true.corners[match[positive]].to(device), positive.to(device)
        wanted = encoded(corners, priors[positive], variances[positive], self._code)
        if param.encode_variance_in_target:  # then both are divided by it
            said = said / variances[positive]
        difference = said - wanted
        if choice(param, "loc_loss_type") == "L2":
            return difference.square().sum() / 2
        return smooth_l1(difference).sum()

    def _judged(
        self, confidences: Tensor, match: Tensor, overlap: Tensor, positive: Tensor
    ) -> Tensor | slice:
        """The priors whose classes count; of an image without a match there are no negatives."""
        param = self.param.multibox_loss_param
        if not self._mines:
            return slice(None)
        free = (match == NO_MATCH) & (overlap < param.neg_overlap)
        negatives = free.nonzero()[:, 0].to(confidences.device)
        wanted = min(int(len(positive) * param.neg_pos_ratio), len(negatives))
        background = torch.full((len(negatives),), self._background, device=confidences.device)
        losses = self._class_losses(confidences[negatives].detach(), background)
        hardest = negatives[losses.sort(descending=True, stable=True).indices[:wanted]]
        return torch.cat([positive.to(confidences.device), hardest])

    def _class_losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss of each row of scores."""
        if choice(self.param.multibox_loss_param, "conf_loss_type") == "SOFTMAX":
            return functional.cross_entropy(scores, target, reduction="none")
        wanted = functional.one_hot(target, self._classes).to(scores.dtype)
        losses: Tensor = functional.binary_cross_entropy_with_logits(
            scores, wanted, reduction="none"
        )
        return losses.sum(1)


_CLASSES: Final = (
    "read a box of class {}, but has num_classes {}: classes go from 0 to {}; correct the data"
)


def _inside(boxes: Tensor) -> Tensor:
    """Which boxes are inside of the image."""
    return ((boxes >= 0) & (boxes <= 1)).all(1)


LAYERS: Final = (MultiBoxLoss,)
