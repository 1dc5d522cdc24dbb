"""DetectionOutput, the last layer of SSD: the boxes that are left of each class, and the best of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from caffenets.export.layer_export import Array, LayerExport
from caffenets.export.onnx_graph import Graph
from caffenets.export.steps import NoEqual, Shape, constant, option
from caffenets.export.torch_code import Code

_NONE: Final = -np.inf  # the score of a box that is not left


class DetectionOutput(LayerExport):
    """B images, P priors, C classes without the background, K boxes of each that are compared, T that stay.

    A class's boxes are sorted by score first, so that the order of their numbers is that of the layer's rows.
    Liu et al. 2016, arXiv:1512.02325; SSD's layers/detection_output_layer.cpp.
    """

    searches: ClassVar[bool] = True

    def onnx(self, graph: Graph, bottoms: Sequence[str]) -> list[str]:
        param = self.param.detection_output_param
        nms = param.nms_param
        if option(param, "code_type") != "CENTER_SIZE" or nms.eta != 1:
            raise NoEqual("has an equal in ONNX with code_type: CENTER_SIZE and eta: 1 only")
        (size,) = constant(self.step.bottoms[2][2:], "priors")
        priors, classes = size // 4, int(param.num_classes)
        labels = [label for label in range(classes) if label != param.background_label_id]
        compared = min(priors, nms.top_k) if nms.HasField("top_k") and nms.top_k >= 0 else priors
        every = len(labels) * compared
        stay = min(every, param.keep_top_k) if param.keep_top_k >= 0 else every

        boxes = self._boxes(graph, bottoms, priors, classes)  # (B, 1 or classes, P, 4)
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
        left = self._left(graph, boxes, scores, compared)  # (B C, 1, K)
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
        return [self._rows(graph, label, scores, boxes)]

    def torch(self, code: Code, bottoms: Sequence[str]) -> list[str]:
        raise NoEqual(
            "has no equal: leave the layer out of the net, so that its bottoms are outputs"
        )

    def draw(self, at: int, shape: Shape, rng: np.random.Generator) -> Array | None:
        """Priors of all sizes, and SSD's variances."""
        if at != 2:
            return None
        count = shape[2] // 4
        low, extent = rng.random((count, 2)) * 0.7, 0.05 + rng.random((count, 2)) * 0.4
        boxes = np.concatenate([low, low + extent], 1)
        variances = np.tile([0.1, 0.1, 0.2, 0.2], (count, 1))
        return np.stack([boxes, variances]).reshape(shape)

    def _boxes(self, graph: Graph, bottoms: Sequence[str], priors: int, classes: int) -> str:
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

    def _left(self, graph: Graph, boxes: str, scores: str, compared: int) -> str:
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

    def _rows(self, graph: Graph, label: str, scores: str, boxes: str) -> str:
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


EXPORTS: Final = (DetectionOutput,)
