"""What SSD does to an image and its boxes before the net sees them: colors, a larger canvas, a window, size, mirror.

Liu et al. 2016, arXiv:1512.02325, section 2.2; SSD's layers/annotated_data_layer.cpp, util/sampler.cpp,
im_transforms.cpp and data_transformer.cpp. Boxes are rows of class, number in its class, xmin, ymin, xmax, ymax,
difficult, in parts of the image. Hue, saturation, and ways of resizing other than LINEAR are those of Pillow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from caffenets.layers.options import choice, choice_of
from speedo.data.pixels import Bytes, resized
from speedo.engines.pytorch.data.transform import Pixels
from speedo.errors import EngineError

Boxes = npt.NDArray[np.float64]
Window = npt.NDArray[np.float64]
Chance = np.random.Generator

WHOLE: Final[Window] = np.array([0.0, 0.0, 1.0, 1.0])
_PILLOW: Final = {
    "AREA": Image.Resampling.BOX, "NEAREST": Image.Resampling.NEAREST, "CUBIC": Image.Resampling.BICUBIC,
    "LANCZOS4": Image.Resampling.LANCZOS,
}  # fmt: skip
_CORNERS: Final = slice(2, 6)


class Augmentation:
    """That of one layer: `transform` is its TransformationParameter, `annotated` its AnnotatedDataParameter.

    `refuse` makes its errors.
    """

    def __init__(
        self, transform: Any, annotated: Any, refuse: Callable[[str], EngineError]
    ) -> None:
        self._transform, self._samplers = transform, list(annotated.batch_sampler)
        resize = transform.resize_param
        if transform.crop_size or transform.crop_h or transform.crop_w:
            raise refuse("has crop_size, crop_h or crop_w, which would cut boxes: use resize_param")
        if transform.noise_param.prob > 0:
            raise refuse("has noise_param, which this engine has not: remove it")
        if transform.HasField("resize_param"):
            if choice(resize, "resize_mode") != "WARP":
                raise refuse(
                    "has a resize_mode other than WARP, which this engine has not: use WARP"
                )
            if resize.prob != 1 or not resize.height or not resize.width:
                raise refuse(
                    "has a resize_param without height and width, or with a prob: give both, and no prob"
                )
        if any(not sampler.use_original_image for sampler in self._samplers):
            raise refuse(
                "has a batch_sampler with use_original_image: false, which this engine has not: remove it"
            )
        if transform.expand_param.max_expand_ratio < 1:
            raise refuse("has a max_expand_ratio below 1: use 1 or more")

    @property
    def is_random(self) -> bool:
        """Whether the same record may give another image."""
        transform = self._transform
        return bool(
            self._samplers
            or transform.mirror
            or transform.HasField("expand_param")
            or transform.HasField("distort_param")
        )

    def apply(self, pixels: Pixels, boxes: Boxes, chance: Chance) -> tuple[Pixels, Boxes]:
        """The image (C, H, W) and its boxes, changed as the random numbers say."""
        transform = self._transform
        if transform.HasField("distort_param"):
            pixels = _distorted(pixels, transform.distort_param, chance)
        if transform.HasField("expand_param"):
            pixels, boxes = self._expanded(pixels, boxes, chance)
        if self._samplers:
            window = self._window(boxes, chance)
            pixels = _cut(pixels, window)
            boxes = self._within(boxes, window)
        if transform.HasField("resize_param"):
            pixels = _sized(_as_bytes(pixels), transform.resize_param, chance)
        if transform.mirror and chance.random() < 0.5:
            pixels = pixels[:, :, ::-1]
            boxes = boxes.copy()
            boxes[:, [2, 4]] = 1.0 - boxes[:, [4, 2]]
        return pixels, boxes

    def _expanded(self, pixels: Pixels, boxes: Boxes, chance: Chance) -> tuple[Pixels, Boxes]:
        """The image somewhere on a larger one of the mean color."""
        param = self._transform.expand_param
        ratio = chance.uniform(1.0, param.max_expand_ratio)
        if chance.random() > param.prob or ratio - 1 < 1e-2:
            return pixels, boxes
        channels, height, width = pixels.shape
        rows, columns = int(height * ratio), int(width * ratio)
        top, left = int(chance.uniform(0, rows - height)), int(chance.uniform(0, columns - width))
        means = list(self._transform.mean_value) or [0.0]
        canvas = np.empty((channels, rows, columns), pixels.dtype)
        canvas[:] = np.resize(np.array(means), channels)[:, None, None]
        canvas[:, top : top + height, left : left + width] = pixels
        window = np.array(
            [-left / width, -top / height, (columns - left) / width, (rows - top) / height]
        )
        return canvas, self._within(boxes, window)

    def _window(self, boxes: Boxes, chance: Chance) -> Window:
        """One of the windows that the samplers take, the whole image if there is none."""
        found = []
        for sampler in self._samplers:
            taken = 0
            for _ in range(sampler.max_trials):
                if sampler.HasField("max_sample") and taken >= sampler.max_sample:
                    break
                window = _drawn(sampler.sampler, chance)
                if _is_taken(window, boxes[:, _CORNERS], sampler.sample_constraint):
                    taken += 1
                    found.append(window)
        return found[int(chance.integers(len(found)))] if found else WHOLE

    def _within(self, boxes: Boxes, window: Window) -> Boxes:
        """The boxes of which enough is in the window, in its parts."""
        corners = boxes[:, _CORNERS]
        if self._transform.HasField("emit_constraint"):
            emit = self._transform.emit_constraint
            if choice(emit, "emit_type") == "CENTER":
                center = (corners[:, :2] + corners[:, 2:]) / 2
                left = ((center >= window[:2]) & (center <= window[2:])).all(1)
            else:
                left = _shared(corners, window) > emit.emit_overlap * _area(corners)
            boxes, corners = boxes[left], corners[left]
        size = np.tile(window[2:] - window[:2], 2)
        moved = boxes.copy()
        moved[:, _CORNERS] = np.clip((corners - np.tile(window[:2], 2)) / size, 0.0, 1.0)
        return moved[_area(moved[:, _CORNERS]) > 0]


def _sized(pixels: Bytes, param: Any, chance: Chance) -> Pixels:
    """In the size that is wanted, by one of the ways that are named; all but LINEAR are Pillow's."""
    ways = [choice_of(param, "interp_mode", one) for one in param.interp_mode] or ["LINEAR"]
    way = ways[int(chance.integers(len(ways)))] if len(ways) > 1 else ways[0]
    if way == "LINEAR":
        return resized(pixels, param.height, param.width)
    size, method = (param.width, param.height), _PILLOW[way]
    return np.stack([np.asarray(Image.fromarray(one).resize(size, method)) for one in pixels])


def _as_bytes(pixels: Pixels) -> Bytes:
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8, copy=False)


def _area(corners: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    area: npt.NDArray[np.float64] = np.clip(corners[..., 2:] - corners[..., :2], 0, None).prod(-1)
    return area


def _shared(corners: npt.NDArray[np.float64], window: Window) -> npt.NDArray[np.float64]:
    """The area of each box inside of the window."""
    low = np.maximum(corners[:, :2], window[:2])
    high = np.minimum(corners[:, 2:], window[2:])
    return _area(np.concatenate([low, high], 1))


def _drawn(sampler: Any, chance: Chance) -> Window:
    scale = chance.uniform(sampler.min_scale, sampler.max_scale)
    least, most = (
        max(sampler.min_aspect_ratio, scale**2),
        min(sampler.max_aspect_ratio, 1 / scale**2),
    )
    root = float(np.sqrt(chance.uniform(least, max(least, most))))
    width, height = min(scale * root, 1.0), min(scale / root, 1.0)
    left, top = chance.uniform(0, 1 - width), chance.uniform(0, 1 - height)
    return np.array([left, top, left + width, top + height])


def _is_taken(window: Window, corners: npt.NDArray[np.float64], constraint: Any) -> bool:
    """Whether one of the boxes fulfils all that the constraint names; without one every window is taken."""
    bounds = [field.name for field, _ in constraint.ListFields()]
    if not bounds:
        return True
    if not len(corners):
        return False
    shared = _shared(corners, window)
    values = {
        "jaccard_overlap": shared / np.maximum(_area(corners) + _area(window) - shared, 1e-12),
        "sample_coverage": shared / max(float(_area(window)), 1e-12),
        "object_coverage": shared / np.maximum(_area(corners), 1e-12),
    }
    good = np.ones(len(corners), bool)
    for name in bounds:
        side, _, what = name.partition("_")
        bound = getattr(constraint, name)
        good &= values[what] >= bound if side == "min" else values[what] <= bound
    return bool(good.any())


def _cut(pixels: Pixels, window: Window) -> Pixels:
    _, height, width = pixels.shape
    left, top = int(window[0] * width), int(window[1] * height)
    right, bottom = max(left + 1, int(window[2] * width)), max(top + 1, int(window[3] * height))
    return pixels[:, top:bottom, left:right]


def _distorted(pixels: Pixels, param: Any, chance: Chance) -> Pixels:
    """Other brightness, contrast, saturation and hue, and another order of the channels."""
    values = pixels.astype(np.float32)
    late = chance.random() > 0.5  # contrast comes second or last
    brightness = chance.uniform(-param.brightness_delta, param.brightness_delta)
    if chance.random() < param.brightness_prob:
        values = values + np.float32(brightness)
    contrast = chance.uniform(param.contrast_lower, max(param.contrast_lower, param.contrast_upper))
    with_contrast = chance.random() < param.contrast_prob
    if with_contrast and not late:
        values = values * np.float32(contrast)
    saturation = chance.uniform(
        param.saturation_lower, max(param.saturation_lower, param.saturation_upper)
    )
    # OpenCV counts hues to 180, Pillow to 255
    hue = chance.uniform(-param.hue_delta, param.hue_delta) * 255 / 180
    saturation = saturation if chance.random() < param.saturation_prob else 1.0
    hue = hue if chance.random() < param.hue_prob else 0.0
    made = _as_bytes(values)
    if len(made) == 3 and (saturation != 1.0 or hue):
        made = _tinted(made, saturation, hue)
    if with_contrast and late:
        made = _as_bytes(made.astype(np.float32) * np.float32(contrast))
    order = chance.permutation(len(made))
    return made[order] if chance.random() < param.random_order_prob else made


def _tinted(pixels: Bytes, saturation: float, hue: float) -> Bytes:
    rgb = np.ascontiguousarray(pixels[::-1].transpose(1, 2, 0))
    hsv = np.asarray(Image.fromarray(rgb, "RGB").convert("HSV")).astype(np.float32)
    hsv[..., 0] = np.mod(hsv[..., 0] + hue, 255)
    hsv[..., 1] = np.clip(hsv[..., 1] * saturation, 0, 255)
    back = np.asarray(Image.fromarray(hsv.astype(np.uint8), "HSV").convert("RGB"))
    return np.ascontiguousarray(back.transpose(2, 0, 1)[::-1])
