"""AnnotatedData: images with boxes, as SSD reads them. SSD's layers/annotated_data_layer.cpp."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
import torch

from caffenets.box_labels import ROW, TOP
from caffenets.caffe_schema.caffe_pb2 import AnnotatedDatum
from caffenets.layer import Shape
from speedo.engines.pytorch.data.augmentation import Augmentation, Boxes
from speedo.engines.pytorch.data.datums import Data
from speedo.engines.pytorch.data.prefetch import Batch
from speedo.engines.pytorch.data.transform import OF_BOXES, Pixels, Size


class AnnotatedData(Data):
    """Tops (N, C, H, W) and the boxes of all images of the batch (`caffenets.box_labels`).

    Records, shards and their order are those of Data. A record's random numbers follow from its place in that order, so
    that records can be skipped.
    """

    tops: ClassVar[tuple[int, int | None]] = (1, 2)
    boxes: ClassVar[int | None] = TOP

    def open(self) -> list[Shape]:
        transform = self.param.transform_param
        self._augmentation = Augmentation(transform, self.param.annotated_data_param, self.refuse)
        own = type(self.param)()
        own.CopyFrom(self.param)
        own.transform_param.mirror = False  # the boxes are mirrored with the image
        for field in OF_BOXES:
            own.transform_param.ClearField(field)
        self._resize = transform.resize_param
        if transform.mean_file and self._augmentation.is_random:
            raise self.refuse("has a mean_file for images that it cuts or mirrors: use mean_value")
        self.param = own
        self._seed = int(self.draws("boxes").integers(1 << 63))
        self._done = 0  # records before the next one
        return super().open()

    def shapes_of(self, first: Size) -> list[Shape]:
        resize = self._resize
        size = (first[0], resize.height, resize.width) if resize.height else first
        return [(self.samples, *self._transform.window(size)), (1, 1, 1, ROW)]

    def is_costly(self) -> bool:
        """Decoding and resizing images takes longer than many a net."""
        return True

    def datum_in(self, key: bytes, value: bytes) -> Any:
        return self.parsed(key, value, AnnotatedDatum).datum

    def read(self) -> Batch:
        taken = [(at, *record) for at, record in enumerate(self.take(self.samples), self._done)]
        self._done += len(taken)
        made = self.each(self._made, taken)
        first: Size = made[0][0].shape
        for (_, key, _), (pixels, _) in zip(taken, made, strict=True):
            if pixels.shape != first:
                raise self.bad(
                    key,
                    f"is {'x'.join(map(str, pixels.shape))}, and the first of its batch {'x'.join(map(str, first))}: "
                    "give resize_param",
                )
        out = self.empty((len(made), *first))
        self._transform.apply([pixels for pixels, _ in made], out.numpy())
        rows = [np.insert(boxes, 0, image, axis=1) for image, (_, boxes) in enumerate(made)]
        labels = np.concatenate(rows).astype(np.float32)
        if not len(labels):
            labels = np.full((1, ROW), -1.0, np.float32)
        return [out, torch.from_numpy(labels)[None, None]][: len(self.param.top)]

    def pass_over(self, batches: int) -> None:
        super().pass_over(batches)
        self._done += batches * self.samples

    def _made(self, record: tuple[int, bytes, bytes]) -> tuple[Pixels, Boxes]:
        at, key, value = record
        annotated = self.parsed(key, value, AnnotatedDatum)
        pixels = self.image(key, annotated.datum, None)
        chance = np.random.Generator(np.random.PCG64([self._seed, at]))
        return self._augmentation.apply(pixels, _boxes_of(annotated), chance)


def _boxes_of(annotated: Any) -> Boxes:
    """Rows of class, number in its class, xmin, ymin, xmax, ymax, difficult."""
    rows = [
        (
            group.group_label, one.instance_id, one.bbox.xmin, one.bbox.ymin, one.bbox.xmax, one.bbox.ymax,
            one.bbox.difficult,
        )
        for group in annotated.annotation_group
        for one in group.annotation
    ]  # fmt: skip
    return np.array(rows, np.float64).reshape(-1, ROW - 1)


LAYERS: Final = (AnnotatedData,)
