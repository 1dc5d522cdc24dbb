"""DetectionOutput and DetectionEvaluate: the boxes that SSD or Faster R-CNN finds, and which of them are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from caffenets.box_labels import ROW
from caffenets.forms.onnx_graph import Graph
from caffenets.forms.steps import NoEqual, constant
from caffenets.layer import Array, Layer, Shape
from caffenets.layers.axes import count
from caffenets.layers.boxes import Code, decoded, kept, overlaps
from caffenets.layers.multibox_loss import TrueBoxes, true_boxes
from caffenets.layers.options import choice
from caffenets.layers.proposals import DEVIATIONS, sizes_of, to_edges
from caffenets.torch_later import Tensor, torch, without_gradient


@dataclass(frozen=True, slots=True)
class _Predicted:
    """What a net predicts for one image: codes (n, locations, 4) that move `boxes` (n, 4), and scores (n, classes).

    `variances` (n, 4) scale the codes; `limits` (4,) are the largest corners in the image.
    """

    codes: Tensor
    scores: Tensor
    boxes: Tensor
    variances: Tensor
    limits: Tensor


_NONE: Final = -np.inf  # the score of a box that is not left


class DetectionOutput(Layer):
    """(1, 1, n, 7): the boxes that are left, each image, class, score, xmin, ymin, xmax, ymax; without gradient.

    Of an image without one there is a row of -1 with its number. Liu et al. 2016, arXiv:1512.02325; SSD's
    layers/detection_output_layer.cpp. It computes on the CPU, and neither shows nor saves its boxes.

    With `normalized_bbox: false`, as in OpenCV's reader of Caffe's nets, the third bottom has regions (n, 5) of Faster
    R-CNN in place of priors, and a fourth the images or im_info; boxes are in pixels. Codes are multiplied by the
    deviations of ProposalTarget. With `variance_encoded_in_target` they are not: py-faster-rcnn saves weights that
    contain them. py-faster-rcnn's lib/fast_rcnn/test.py.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (3, 4)
    searches = True

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.detection_output_param
        if param.num_classes < 1:
            raise self.refuse(
                "has no num_classes: give the number of classes, with that of the background"
            )
        if param.visualize or param.save_file or param.save_output_param.output_directory:
            raise self.refuse(
                "saves or shows its boxes, which is not done here: remove visualize, save_file and "
                "save_output_param"
            )
        if not 0 < param.nms_param.nms_threshold <= 1 or not 0 < param.nms_param.eta <= 1:
            raise self.refuse(
                "has an nms_threshold or eta outside of 0 to 1: use one above 0 and up to 1"
            )
        self._code: Code = choice(param, "code_type")  # type: ignore[assignment]
        self._locations = 1 if param.share_location else param.num_classes
        if param.normalized_bbox:
            self._check_priors(bottoms)
            return [(1, 1, bottoms[0][0], 7)]
        self._check_regions(bottoms)
        return [(1, 1, bottoms[3][0], 7)]

    def _check_priors(self, bottoms: Sequence[Shape]) -> None:
        locations, confidences, priors = bottoms[:3]
        classes = self.param.detection_output_param.num_classes
        number = priors[2] // 4 if len(priors) > 2 else 0
        if (
            count(locations, 1) != number * 4 * self._locations
            or count(confidences, 1) != number * classes
        ):
            raise self.refuse(
                f"has locations of {locations}, confidences of {confidences} and priors of {priors}: "
                f"{number} priors need {number * 4 * self._locations} and {number * classes} values an image; "
                "for the regions of Faster R-CNN set normalized_bbox: false"
            )

    def _check_regions(self, bottoms: Sequence[Shape]) -> None:
        param = self.param.detection_output_param
        if len(bottoms) < 4:
            raise self.refuse(
                "has normalized_bbox: false, and no sizes of the images: give the images, or im_info, as fourth bottom"
            )
        if self._code != "CENTER_SIZE":
            raise self.refuse(
                f"has code_type {self._code}, and regions are coded by their center: set code_type: CENTER_SIZE"
            )
        locations, confidences, regions = bottoms[:3]
        number = regions[0] if regions[-1:] == (5,) else 0
        if param.share_location and count(locations, 1) == 8:
            self._locations = 2  # R-FCN's: those of the background, and those of any class
        if (
            count(locations) != number * 4 * self._locations
            or count(confidences) != number * param.num_classes
        ):
            raise self.refuse(
                f"has locations of {locations}, confidences of {confidences} and regions of {regions}: {number} rows "
                f"of 5 need {4 * self._locations} and {param.num_classes} values each; for priors leave out "
                "normalized_bbox: false"
            )

    @without_gradient
    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        rows = []
        for image, predicted in enumerate(self._images(bottoms)):
            found = self._found(image, predicted)
            if not len(found):
                found = torch.full((1, 7), -1.0)
                found[0, 0] = image
            rows.append(found)
        return [torch.cat(rows)[None, None].to(bottoms[0].device)]

    def _images(self, bottoms: Sequence[Tensor]) -> Iterator[_Predicted]:
        param = self.param.detection_output_param
        locations, confidences, boxes = (bottom.detach().float().cpu() for bottom in bottoms[:3])
        if param.normalized_bbox:
            codes = locations.reshape(len(locations), -1, self._locations, 4)
            scores = confidences.reshape(len(codes), -1, param.num_classes)
            priors, variances = boxes[0].reshape(2, -1, 4)
            for image in range(len(codes)):
                yield _Predicted(codes[image], scores[image], priors, variances, torch.ones(4))
            return
        codes = locations.reshape(-1, self._locations, 4)
        scores = confidences.reshape(-1, param.num_classes)
        for image, (height, width, _) in enumerate(sizes_of(bottoms[3], len(bottoms[3]))):
            own = boxes[:, 0] == image
            yield _Predicted(
                codes[own],
                scores[own],
                to_edges(boxes[own, 1:]),
                torch.tensor(DEVIATIONS).expand(int(own.sum()), 4),
                torch.tensor([width, height, width, height]) - 1,
            )

    def _found(self, image: int, predicted: _Predicted) -> Tensor:
        """The rows of one image, by class, the best first."""
        param = self.param.detection_output_param
        threshold = (
            param.confidence_threshold if param.HasField("confidence_threshold") else -float("inf")
        )
        top_k = param.nms_param.top_k if param.nms_param.HasField("top_k") else -1
        rows = []
        for label in range(param.num_classes):
            if label == param.background_label_id:
                continue
            scores = predicted.scores[:, label]
            places = (scores > threshold).nonzero()[:, 0]
            places = places[scores[places].sort(descending=True, stable=True).indices]
            if top_k >= 0:
                places = places[:top_k]
            codes = predicted.codes[places, -1 if param.share_location else label]
            variances = None if param.variance_encoded_in_target else predicted.variances[places]
            boxes = decoded(codes, predicted.boxes[places], variances, self._code)
            if param.clip:
                boxes = torch.minimum(boxes.clamp(min=0), predicted.limits)
            left = kept(
                boxes,
                scores[places],
                param.nms_param.nms_threshold,
                -1,
                param.nms_param.eta,
                extra=0.0 if param.normalized_bbox else 1.0,
            )
            head = torch.tensor([image, label], dtype=torch.float32).expand(len(left), 2)
            rows.append(torch.cat([head, scores[places][left, None], boxes[left]], 1))
        found = torch.cat(rows) if rows else torch.zeros(0, 7)
        if 0 <= param.keep_top_k < len(found):
            best = found[:, 2].sort(descending=True, stable=True).indices[: param.keep_top_k]
            found = found[best.sort().values]
        return found

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param = self.param.detection_output_param
        nms = param.nms_param
        if self._code != "CENTER_SIZE" or nms.eta != 1:
            raise NoEqual("has an equal in ONNX with code_type: CENTER_SIZE and eta: 1 only")
        (size,) = constant(self.step.bottoms[2][2:], "priors")
        priors, classes = size // 4, int(param.num_classes)
        labels = [label for label in range(classes) if label != param.background_label_id]
        compared = min(priors, nms.top_k) if nms.HasField("top_k") and nms.top_k >= 0 else priors
        every = len(labels) * compared
        stay = min(every, param.keep_top_k) if param.keep_top_k >= 0 else every

        boxes = self._decoded(graph, bottoms, priors, classes)  # (B, 1 or classes, P, 4)
        scores = graph.reshaped(bottoms[1], (None, priors, classes))
        scores = graph.add("Transpose", scores, perm=[0, 2, 1])
        scores = graph.add("Gather", scores, graph.integers(*labels), axis=1)  # (B, C, P)
        top_k = [scores, graph.integers(compared)]
        scores, places = graph.add_several("TopK", top_k, 2, axis=2)  # (B, C, K)
        if param.share_location:
            boxes = graph.add("Squeeze", boxes, graph.integers(1))
            places = graph.reshaped(places, (None, every))
        else:
            boxes = graph.add("Gather", boxes, graph.integers(*labels), axis=1)
        places = graph.add("Unsqueeze", places, graph.integers(-1))
        batch_axes = 1 if param.share_location else 2
        boxes = graph.add("GatherND", boxes, places, batch_dims=batch_axes)
        left = self._scores_left(graph, boxes, scores, compared)  # (B C, 1, K)
        left = graph.reshaped(left, (None, every))
        boxes = graph.reshaped(boxes, (None, every, 4))

        best = [left, graph.integers(stay)]
        _, numbers = graph.add_several("TopK", best, 2, axis=1)
        # (B, T)
        numbers, _ = graph.add_several(
            "TopK", [numbers, graph.integers(stay)], 2, axis=1, largest=0
        )
        scores = graph.add("GatherElements", left, numbers, axis=1)
        found = graph.add("Unsqueeze", numbers, graph.integers(-1))
        boxes = graph.add("GatherND", boxes, found, batch_dims=1)
        which = graph.add("Div", numbers, graph.integers(compared))
        label = graph.add("Gather", graph.constant(labels), which)
        return [self._rows_left(graph, label, scores, boxes)]

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        """Priors of all sizes, and SSD's variances."""
        if at != 2:
            return None
        count = shape[2] // 4
        low, extent = rng.random((count, 2)) * 0.7, 0.05 + rng.random((count, 2)) * 0.4
        boxes = np.concatenate([low, low + extent], 1)
        variances = np.tile([0.1, 0.1, 0.2, 0.2], (count, 1))
        return np.stack([boxes, variances]).reshape(shape)

    def _decoded(self, graph: Graph, bottoms: Sequence[str], priors: int, classes: int) -> str:
        """The decoded boxes of each location, (B, L, P, 4)."""
        param = self.param.detection_output_param
        locations = 1 if param.share_location else classes
        codes = graph.reshaped(bottoms[0], (None, priors, locations, 4))
        given = graph.add("Reshape", bottoms[2], graph.integers(2, priors, 1, 4))
        boxes, variances = graph.add_several("Split", [given], 2, axis=0)
        if not param.variance_encoded_in_target:
            codes = graph.add("Mul", codes, variances)
        shift, stretch = graph.add_several("Split", [codes], 2, axis=-1)
        low, high = graph.add_several("Split", [boxes], 2, axis=-1)
        size, half = graph.add("Sub", high, low), graph.constant(0.5)
        center = graph.add("Mul", graph.add("Add", low, high), half)
        center = graph.add("Add", graph.add("Mul", shift, size), center)
        reach = graph.add("Mul", graph.add("Mul", graph.add("Exp", stretch), size), half)
        ends = [graph.add("Sub", center, reach), graph.add("Add", center, reach)]
        return graph.add("Transpose", graph.add("Concat", *ends, axis=-1), perm=[0, 2, 1, 3])

    def _scores_left(self, graph: Graph, boxes: str, scores: str, compared: int) -> str:
        """The scores as (B C, 1, K), `_NONE` for each box that overlaps a better one, or has too small a score."""
        param = self.param.detection_output_param
        boxes = graph.add("Reshape", boxes, graph.integers(-1, compared, 4))
        scores = graph.add("Reshape", scores, graph.integers(-1, 1, compared))
        given = [graph.integers(compared), graph.constant(param.nms_param.nms_threshold)]
        if param.HasField("confidence_threshold"):
            given.append(graph.constant(param.confidence_threshold))
        chosen = graph.add("NonMaxSuppression", boxes, scores, *given)
        none = graph.add("Expand", graph.constant(_NONE), graph.add("Shape", scores))
        return graph.add("ScatterND", none, chosen, graph.add("GatherND", scores, chosen))

    def _rows_left(self, graph: Graph, label: str, scores: str, boxes: str) -> str:
        """(1, 1, n, 7): image, class, score and box of each that is left; of an image without one a row of -1."""
        last = graph.integers(-1)
        images = graph.add(
            "Slice", graph.add("Shape", scores), graph.integers(0), graph.integers(1)
        )
        count = graph.add("Squeeze", images, graph.integers(0))
        number = graph.add("Range", graph.constant(0, np.int64), count, graph.constant(1, np.int64))
        number = graph.add("Reshape", graph.add("Cast", number, to=1), graph.integers(-1, 1, 1))
        score = graph.add("Unsqueeze", scores, last)
        image = graph.add("Expand", number, graph.add("Shape", score))
        columns = [image, graph.add("Unsqueeze", label, last), score, boxes]
        rows = graph.add("Concat", *columns, axis=2)
        empty = graph.add("Concat", images, graph.integers(1, 6), axis=0)
        empty = graph.add(
            "Concat", number, graph.add("Expand", graph.constant(-1.0), empty), axis=2
        )
        rows = graph.add("Concat", rows, empty, axis=1)
        is_left = graph.add("Greater", scores, graph.constant(_NONE))
        counted = graph.add("Cast", is_left, to=1)
        counted = graph.add("ReduceSum", counted, graph.integers(1), keepdims=1)
        is_left = graph.add(
            "Concat", is_left, graph.add("Equal", counted, graph.constant(0.0)), axis=1
        )
        rows = graph.add("Reshape", rows, graph.integers(-1, 7))
        rows = graph.add("Compress", rows, graph.add("Reshape", is_left, last), axis=0)
        return graph.add("Unsqueeze", rows, graph.integers(0, 1))


class DetectionEvaluate(Layer):
    """(1, 1, n, 5): for each class a row of -1, class, boxes that are there, -1, -1; then for each box that was found
    image, class, score, whether it is right and whether it is wrong.

    A box is right if it overlaps one of its class, which no better box has found, by `overlap_threshold`. From the rows
    of a whole test follows the mean average precision . SSD's
    layers/detection_evaluate_layer.cpp. Where boxes are in pixels a third bottom has the images, or im_info.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (2, 3)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        param = self.param.detection_evaluate_param
        if param.num_classes < 2:
            raise self.refuse(
                "has no num_classes: give the number of classes, with that of the background"
            )
        if param.name_size_file:
            raise self.refuse("has a name_size_file, which is not read here: remove it")
        if bottoms[0][-1:] != (7,) or bottoms[1][-1:] != (ROW,):
            raise self.refuse(
                f"has bottoms of {bottoms[0]} and {bottoms[1]}: give the top of DetectionOutput and the labels of "
                "AnnotatedData"
            )
        return [(1, 1, param.num_classes - 1 + bottoms[0][-2], 5)]

    @without_gradient
    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        param = self.param.detection_evaluate_param
        found = bottoms[0].detach().float().cpu().reshape(-1, 7)
        rows = bottoms[1].detach().float().cpu().reshape(-1, ROW)
        images = 1 + int(max([0.0, *found[:, 0].tolist(), *rows[:, 0].tolist()]))
        ends = found[found[:, 1] >= 0, 5:]
        if len(bottoms) > 2:
            sizes = torch.tensor([(w, h, w, h) for h, w, _ in sizes_of(bottoms[2], images)])
            parts = to_edges(found[:, 3:]) / sizes[found[:, 0].long()]
            found = torch.cat([found[:, :3], parts], 1)
        elif len(ends) and ends.min() > _IN_PARTS:
            raise self.refuse(
                "reads boxes in pixels, and labels in parts of the image: give the images, or im_info, as third bottom"
            )
        true = true_boxes(rows, images)
        made = []
        for label in range(param.num_classes):
            if label != param.background_label_id:
                there = sum(int(self._counted(one)[one.classes == label].sum()) for one in true)
                made.append([-1.0, label, there or -1, -1, -1])
        for image in range(images):
            own = found[(found[:, 0] == image) & (found[:, 1] >= 0)]
            for label in own[:, 1].unique().tolist():
                best = own[own[:, 1] == label]
                best = best[best[:, 2].sort(descending=True, stable=True).indices]
                made += self._judged(image, int(label), best, true[image])
        return [torch.tensor(made)[None, None].to(bottoms[0].device)]

    def _counted(self, true: TrueBoxes) -> Tensor:
        if self.param.detection_evaluate_param.evaluate_difficult_gt:
            return torch.ones_like(true.difficult)
        return ~true.difficult

    def _judged(self, image: int, label: int, found: Tensor, true: TrueBoxes) -> list[list[float]]:
        """The rows of one image's boxes of one class, the best first."""
        corners, counted = (x[true.classes == label] for x in (true.corners, self._counted(true)))
        seen = [False] * len(corners)
        rows: list[list[float]] = []
        for row, overlap in zip(found, overlaps(found[:, 3:], corners), strict=True):
            right = wrong = 0
            at = int(overlap.argmax()) if len(corners) else -1
            if at < 0 or overlap[at] < self.param.detection_evaluate_param.overlap_threshold:
                wrong = 1
            elif counted[at]:
                right, wrong = (0, 1) if seen[at] else (1, 0)
                seen[at] = True
            rows.append([image, label, float(row[2]), right, wrong])
        return rows


# Boxes in parts of an image do not all end beyond twice its size, boxes in pixels do.
_IN_PARTS: Final = 2.0

LAYERS: Final = (DetectionOutput, DetectionEvaluate)
