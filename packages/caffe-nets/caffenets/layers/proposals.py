"""Faster R-CNN's regions: Proposal, AnchorTarget and ProposalTarget. Ren et al. 2015, arXiv:1506.01497.

Its own are layers in Python; here they are part of the engine, under these types and under their names there
. Boxes are in pixels of the net's input and include their last row and
column. The numbers that are no option are those of py-faster-rcnn's lib/fast_rcnn/config.py. Annotated boxes may have
py-faster-rcnn's form (xmin, ymin, xmax, ymax, class), or that of AnnotatedData.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

from caffenets.extras import needed
from caffenets.layer import Layer, LayerContext, Shape
from caffenets.layers.boxes import decoded, encoded, kept, overlaps
from caffenets.layers.multibox_loss import true_boxes
from caffenets.torch_later import Tensor, torch, without_gradient

_STRIDE: Final = 16
_RATIOS: Final = (0.5, 1.0, 2.0)
_SCALES: Final = (8.0, 16.0, 32.0)
# What the codes of ProposalTarget are divided by: TRAIN.BBOX_NORMALIZE_STDS; the means are 0.
DEVIATIONS: Final = (0.1, 0.1, 0.2, 0.2)


def anchors_of(base: int, ratios: Sequence[float], scales: Sequence[float]) -> Tensor:
    """(n, 4): the boxes around a place, by ratio and then by scale (py-faster-rcnn: lib/rpn/generate_anchors.py)."""
    center = (base - 1) / 2
    made = []
    for ratio in ratios:
        width = round((base * base / ratio) ** 0.5)
        height = round(width * ratio)
        for scale in scales:
            x, y = (width * scale - 1) / 2, (height * scale - 1) / 2
            made.append((center - x, center - y, center + x, center + y))
    return torch.tensor(made)


def to_edges(boxes: Tensor) -> Tensor:
    """Boxes of pixels, (n, 4), as boxes that end behind their last row and column."""
    return boxes + boxes.new_tensor([0.0, 0.0, 1.0, 1.0])


def moved(boxes: Tensor, codes: Tensor) -> Tensor:
    """The boxes that the codes (dx, dy, log width, log height) mean (lib/fast_rcnn/bbox_transform.py).

    As published, they end behind their last row and column.
    """
    return decoded(codes, to_edges(boxes), None, "CENTER_SIZE")


def codes_of(boxes: Tensor, true: Tensor) -> Tensor:
    """The codes with which `boxes` become `true`; both (n, 4)."""
    return encoded(to_edges(true), to_edges(boxes), None, "CENTER_SIZE")


class _Anchored(Layer):
    """A layer with the anchors of a feature map; options are in `proposal_param`, or in a Python layer's param_str."""

    def __init__(self, param: Any, place: LayerContext) -> None:
        super().__init__(param, place)
        self._options = _options_in(self)
        self._stride = int(self.option("feat_stride", _STRIDE))
        ratios = [
            float(ratio)
            for ratio in self.option("ratios", list(param.proposal_param.ratio) or _RATIOS)
        ]
        scales = [
            float(scale)
            for scale in self.option("scales", list(param.proposal_param.scale) or _SCALES)
        ]
        base = int(self.option("base_size", 16))
        if min(self._stride, base, *ratios, *scales) <= 0:
            raise self.refuse(
                "has a feat_stride, base_size, ratio or scale that is not above 0: correct it"
            )
        self._shapes, self._number = (base, ratios, scales), len(ratios) * len(scales)

    @cached_property
    def _anchors(self) -> Tensor:
        return anchors_of(*self._shapes)

    @cached_property
    def _chance(self) -> torch.Generator:
        random, place = torch.Generator(), self.place
        if place.seed is None:
            random.seed()
        else:
            random.manual_seed(place.seed + place.rank)
        return random

    def option(self, name: str, usual: Any) -> Any:
        """That of param_str, else of `proposal_param`, else the usual one."""
        if name in self._options:
            return self._options[name]
        param = self.param.proposal_param
        known = param.DESCRIPTOR.fields_by_name
        return getattr(param, name) if name in known and param.HasField(name) else usual

    def anchors(self, rows: int, columns: int) -> Tensor:
        """(rows * columns * n, 4): those of each place, row by row."""
        x, y = torch.arange(columns) * self._stride, torch.arange(rows) * self._stride
        shift = torch.stack(
            [x[None].expand(rows, columns), y[:, None].expand(rows, columns)], -1
        ).repeat(1, 1, 2)
        return (shift.reshape(-1, 1, 4) + self._anchors).reshape(-1, 4)

    def some(self, places: Tensor, most: int) -> Tensor:
        """At most so many of these places, drawn at random, in their order."""
        if len(places) <= most:
            return places
        chosen = torch.randperm(len(places), generator=self._chance)[:most]
        return places[chosen.sort().values]


def _options_in(layer: Layer) -> Mapping[str, Any]:
    """What the param_str of a Python layer says: YAML, in braces or not."""
    text = str(layer.param.python_param.param_str).strip()
    if not text:
        return {}
    yaml = needed("yaml", "torch", f"the options of layer {layer.name!r}")
    try:
        options = yaml.safe_load(text if text.startswith("{") else f"{{{text}}}")
    except yaml.YAMLError:
        options = None
    if not isinstance(options, dict):
        raise layer.refuse(
            f"has the param_str {text!r}, which is no YAML of options: write 'feat_stride': 16"
        )
    return options


def sizes_of(bottom: Tensor, images: int) -> list[tuple[float, float, float]]:
    """(height, width, scale) of each image, from im_info, or of the images themselves."""
    if bottom.dim() == 4 and bottom.shape[1] * bottom.shape[2] * bottom.shape[3] > 4:
        return [(float(bottom.shape[2]), float(bottom.shape[3]), 1.0)] * images
    rows = bottom.detach().float().cpu().reshape(len(bottom), -1)[:, :3].tolist()
    return [tuple(rows[min(image, len(rows) - 1)]) for image in range(images)]  # type: ignore[misc]


def _annotated(
    labels: Tensor, sizes: Sequence[tuple[float, float, float]]
) -> list[tuple[Tensor, Tensor]]:
    """Of each image the annotated boxes in pixels, and their classes."""
    if labels.shape[-1] == 5:
        rows = labels.detach().float().cpu().reshape(-1, 5)
        return [(rows[:, :4], rows[:, 4].long())]
    found = []
    for one, (height, width, _) in zip(true_boxes(labels, len(sizes)), sizes, strict=True):
        scale = torch.tensor([width, height, width, height])
        found.append((one.corners * scale - torch.tensor([0.0, 0.0, 1.0, 1.0]), one.classes))
    return found


class Proposal(_Anchored):
    """The best regions of each image, (n, 5): image, xmin, ymin, xmax, ymax; a second top has their scores.

    Bottoms are the probabilities (num, 2 anchors, height, width), the codes (num, 4 anchors, ...) and im_info (height,
    width, scale), or the images. py-faster-rcnn's lib/rpn/proposal_layer.py; PVANet's layers/proposal_layer.cpp.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (3, 3)
    tops: ClassVar[tuple[int, int | None]] = (1, 2)

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        anchors = self._number
        if (
            len(bottoms[0]) != 4
            or bottoms[0][1] != 2 * anchors
            or bottoms[1][1:2] != (4 * anchors,)
        ):
            raise self.refuse(
                f"has probabilities of {bottoms[0]} and codes of {bottoms[1]}: {anchors} anchors need {2 * anchors} "
                f"and {4 * anchors} channels"
            )
        training = self.place.phase == "TRAIN"
        self._before = int(self.option("pre_nms_topn", 12000 if training else 6000))
        self._after = int(self.option("post_nms_topn", 2000 if training else 300))
        self._overlap = float(self.option("nms_thresh", 0.7))
        self._least = float(self.option("min_size", 16))
        number = bottoms[0][0] * self._after
        shapes: list[Shape] = [(number, 5), (number, 1)]
        return shapes[: len(self.param.top)]

    @without_gradient
    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        probabilities, codes = (bottom.detach().float().cpu() for bottom in bottoms[:2])
        images, _, rows, columns = probabilities.shape
        anchors = self.anchors(rows, columns)
        regions, scores = [], []
        for image, (height, width, scale) in enumerate(sizes_of(bottoms[2], images)):
            score = probabilities[image, self._number :].permute(1, 2, 0).reshape(-1)
            boxes = moved(anchors, codes[image].permute(1, 2, 0).reshape(-1, 4))
            limit = torch.tensor([width - 1, height - 1]).repeat(2)
            boxes = torch.minimum(boxes.clamp(min=0), limit)
            large = (
                ((boxes[:, 2:] - boxes[:, :2] + 1) >= self._least * scale).all(1).nonzero()[:, 0]
            )
            best = large[score[large].sort(descending=True, stable=True).indices[: self._before]]
            left = best[kept(boxes[best], score[best], self._overlap, self._after, extra=1.0)]
            regions.append(torch.cat([torch.full((len(left), 1), float(image)), boxes[left]], 1))
            scores.append(score[left, None])
        device = bottoms[0].device
        tops = [torch.cat(regions).to(device), torch.cat(scores).to(device)]
        return tops[: len(self.param.top)]


class AnchorTarget(_Anchored):
    """For each anchor whether it is on an object (1), not (0) or does not count (-1), and the codes to it with weights.

    Bottoms are scores (num, 2 anchors, height, width), annotated boxes, im_info, and the images. An anchor that
    overlaps a box by 0.7, or overlaps it most, is on it; one that overlaps none by 0.3 is not. At most 256 of an image
    count, half of them on objects. py-faster-rcnn's lib/rpn/anchor_target_layer.py.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (3, 4)
    tops: ClassVar[tuple[int, int | None]] = (4, 4)
    _NEGATIVE: Final = 0.3
    _POSITIVE: Final = 0.7
    _COUNTED: Final = 256

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        if len(bottoms[0]) != 4 or bottoms[0][1] % self._number:
            raise self.refuse(
                f"has scores of {bottoms[0]}: {self._number} anchors need 2 channels each"
            )
        number, _, rows, columns = bottoms[0]
        anchors = self._number
        self._border = float(self.option("allowed_border", 0))
        return [(number, 1, anchors * rows, columns), *[(number, 4 * anchors, rows, columns)] * 3]

    @without_gradient
    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        images, _, rows, columns = bottoms[0].shape
        anchors, number = self.anchors(rows, columns), self._number
        sizes = sizes_of(bottoms[-1] if len(bottoms) > 3 else bottoms[2], images)
        labels = torch.full((images, len(anchors)), -1.0)
        codes, counted = torch.zeros(images, len(anchors), 4), torch.zeros(images, len(anchors), 4)
        for image, ((height, width, _), (true, _)) in enumerate(
            zip(sizes, _annotated(bottoms[1], sizes), strict=True)
        ):
            high = torch.tensor([width, height]) + self._border
            inside = (
                ((anchors[:, :2] >= -self._border) & (anchors[:, 2:] < high)).all(1).nonzero()[:, 0]
            )
            own = self._labels(anchors[inside], true)
            labels[image, inside] = own
            if len(true):
                match = overlaps(anchors[inside], true, 1.0).argmax(1)
                codes[image, inside] = codes_of(anchors[inside], true[match])
            counted[image, inside[own >= 0]] = 1.0 / max(1, int((own >= 0).sum()))
        on = (labels == 1)[..., None].float().expand(-1, -1, 4)
        device = bottoms[0].device
        label = labels.reshape(images, rows, columns, number).permute(0, 3, 1, 2)
        tops = [label.reshape(images, 1, number * rows, columns)]
        for values in (codes, on, counted):
            tops.append(
                values.reshape(images, rows, columns, 4 * number).permute(0, 3, 1, 2).contiguous()
            )
        return [top.to(device) for top in tops]

    def _labels(self, anchors: Tensor, true: Tensor) -> Tensor:
        """1, 0 or -1 of each anchor inside of the image."""
        labels = torch.full((len(anchors),), -1.0)
        if not len(anchors):
            return labels
        if not len(true):
            labels[:] = 0
        else:
            overlap = overlaps(anchors, true, 1.0)
            most = overlap.max(1).values
            labels[most < self._NEGATIVE] = 0
            best = overlap.max(0).values
            labels[((overlap == best) & (best > 0)).any(1)] = 1
            labels[most >= self._POSITIVE] = 1
        on = (labels == 1).nonzero()[:, 0]
        labels[on] = -1
        on = self.some(on, self._COUNTED // 2)
        off = (labels == 0).nonzero()[:, 0]
        labels[off] = -1
        labels[self.some(off, self._COUNTED - len(on))] = 0
        labels[on] = 1
        return labels


class ProposalTarget(_Anchored):
    """Some of the regions, with class and codes: those that Fast R-CNN's part is trained on.

    Bottoms are regions and annotated boxes, and the images where those are AnnotatedData's. Tops are the regions, their
    classes, codes of 4 values for each class (means 0, deviations 0.1, 0.1, 0.2, 0.2), and their two weights. Of 128
    regions a quarter overlaps a box by 0.5. py-faster-rcnn's lib/rpn/proposal_target_layer.py.
    """

    bottoms: ClassVar[tuple[int, int | None]] = (2, 3)
    tops: ClassVar[tuple[int, int | None]] = (5, 5)
    _COUNTED: Final = 128
    _ON: Final = 0.25

    def setup(self, bottoms: Sequence[Shape]) -> list[Shape]:
        self._classes = int(self.option("num_classes", 0))
        if self._classes < 2:
            raise self.refuse(
                "has no num_classes: write it in its param_str, as in 'num_classes': 21"
            )
        if bottoms[1][-1] != 5 and len(bottoms) < 3:
            raise self.refuse(
                "reads the boxes of AnnotatedData, which are parts of an image: give the images as third bottom"
            )
        number = self._COUNTED
        return [(number, 5), (number,), *[(number, 4 * self._classes)] * 3]

    @without_gradient
    def forward(self, bottoms: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        regions = bottoms[0].detach().float().cpu().reshape(-1, 5)
        images = len(bottoms[2]) if len(bottoms) > 2 else 1
        sizes = sizes_of(bottoms[2], images) if len(bottoms) > 2 else [(0.0, 0.0, 1.0)]
        most = max(1, self._COUNTED // images)
        made: list[tuple[Tensor, Tensor, Tensor]] = []
        for image, (true, classes) in enumerate(_annotated(bottoms[1], sizes)):
            self.checked(
                classes,
                self._classes,
                f"read a box of class {{}}, but has num_classes {self._classes}: correct it",
            )
            own = torch.cat([regions[regions[:, 0] == image][:, 1:], true])
            made.append(self._chosen(image, own, true, classes, most))
        chosen, label, codes = (torch.cat(parts) for parts in zip(*made, strict=True))
        target = torch.zeros(len(label), self._classes, 4)
        weight = torch.zeros_like(target)
        on = (label > 0).nonzero()[:, 0]
        target[on, label[on]], weight[on, label[on]] = codes[on], 1.0
        tops = [chosen, label.float(), target.flatten(1), weight.flatten(1), weight.flatten(1)]
        return [top.to(bottoms[0].device) for top in tops]

    def _chosen(
        self, image: int, boxes: Tensor, true: Tensor, classes: Tensor, most: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Regions of one image with their classes and codes."""
        if len(true):
            overlap, match = overlaps(boxes, true, 1.0).max(1)
        else:
            overlap, match = torch.zeros(len(boxes)), torch.zeros(len(boxes), dtype=torch.long)
        on = self.some((overlap >= 0.5).nonzero()[:, 0], round(self._ON * most))
        off = self.some((overlap < 0.5).nonzero()[:, 0], most - len(on))
        places = torch.cat([on, off])
        label = torch.zeros(len(places), dtype=torch.long)
        label[: len(on)] = classes[match[on]] if len(true) else 0
        codes = torch.zeros(len(places), 4)
        if len(true):
            codes = codes_of(boxes[places], true[match[places]]) / torch.tensor(DEVIATIONS)
        head = torch.full((len(places), 1), float(image))
        return torch.cat([head, boxes[places]], 1), label, codes


LAYERS: Final = (Proposal, AnchorTarget, ProposalTarget)
