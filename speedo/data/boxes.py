"""Makes databases of images with boxes, for SSD and Faster R-CNN, from Pascal VOC and COCO.

A record is an `AnnotatedDatum` of SSD's Caffe: the image file itself, and the boxes of each class. The names of the
classes are in `labelmap.prototxt`, a LabelMap of SSD's Caffe, in which 0 is the background; a second database in the
same folder takes them from there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2
from speedo.data.annotations import Annotated, Object, read_coco, read_voc
from speedo.data.base import TRAIN_DATABASE, PreparedDataset, Progress, reported, silent
from speedo.data.database import Record, record_key, write_database
from speedo.data.files import read_file
from speedo.data.folder import Built, DatasetRequest, prepare_folder
from speedo.data.images import check_database
from speedo.data.manifest import Database
from speedo.data.picture import Form, decode
from speedo.data.wire import Box, annotated_to_bytes, datum
from speedo.errors import DataError

BOXES: Final = "boxes"
LABEL_MAP: Final = "labelmap.prototxt"
_BACKGROUND: Final = "background"
_MOST_MAP_BYTES: Final = 16 << 20
# Of a smaller copy of an image, in how many pixels they may be off from its proportions.
_SIDES: Final = 2


def prepare_boxes(
    source: Path,
    folder: Path,
    *,
    images: Path | None = None,
    subset: str = "",
    database: str = TRAIN_DATABASE,
    size: tuple[int, int] | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> PreparedDataset:
    """Images with boxes into `folder / database`, and the names of the classes beside it.

    `source` is a folder of Pascal VOC (Annotations, JPEGImages, ImageSets/Main/SUBSET.txt), or a JSON file of COCO with
    its image files in `images`, by default the file's folder. `size` is (height, width) to resize to. Raises DataError
    with the file that is at fault. See also `prepare_folder`.
    """
    check_database(database)
    is_coco = source.is_file()
    options: dict[str, Any] = {
        "source": str(source.absolute()),
        "images": None if images is None else str(images.absolute()),
        "set": subset,
        "size": list(size) if size else None,
    }
    notes: list[str] = []

    def build(staging: Path) -> Built:
        if is_coco:
            found = read_coco(source, images or source.parent)
        else:
            found = read_voc(source, images or source / "JPEGImages", subset)
        if not found.images:
            raise DataError(
                f"{source} names no image: give a folder of Pascal VOC or a JSON file of COCO"
            )
        labels = _labels(folder / LABEL_MAP, found.names)
        work = _Conversion(labels, Form(size, gray=False, encoded=True))
        written = write_database(staging / database, work.records(found.images, database, progress))
        notes.extend((*found.notes, *work.notes()))
        (staging / LABEL_MAP).write_text(_label_map(labels), encoding="utf-8")
        described = Database(
            **asdict(written),
            shape=(3, *size) if size else None,
            channels="BGR",
            encoded=True,
            options=options,
            sources={source.name: hashlib.sha256(found.content).hexdigest()},
        )
        return Built({database: described}, None, (LABEL_MAP,))

    request = DatasetRequest(BOXES, {database: options}, alone=False)
    prepared = prepare_folder(folder, request, build, force=force)
    return replace(prepared, notes=tuple(notes))


@dataclass
class _Conversion:
    """Annotated images into records, with a count of what is not as its user may think."""

    labels: Mapping[str, int]
    form: Form
    _left_out: Counter[str] = field(default_factory=Counter)
    _scaled: int = 0
    _cut: int = 0
    _first: dict[str, Path] = field(default_factory=dict)

    def records(
        self, found: Sequence[Annotated], what: str, progress: Progress
    ) -> Iterator[Record]:
        for index, one in enumerate(reported(found, len(found), what, progress)):
            original = decode(one.file, Form(None, gray=False, encoded=True))
            picture = original if self.form.size is None else decode(one.file, self.form)
            if picture.cut:
                self._cut += 1
                self._first.setdefault("cut", one.file)
            height, width = self._size(one, original.shape[1:])
            boxes = [
                made
                for each in one.objects
                if (made := self._box(each, height, width, one)) is not None
            ]
            image = datum(picture.shape, picture.file, 0, encoded=True)
            yield record_key(index, one.file.name), annotated_to_bytes(image, boxes)

    def _size(self, one: Annotated, image: tuple[int, int]) -> tuple[int, int]:
        """The extents of which the boxes are parts: as SSD's tool, those that the annotation has, if it has any."""
        if one.size is None or one.size == image:
            return image
        (high, wide), (height, width) = one.size, image
        if abs(high * width - wide * height) > _SIDES * max(high, wide, height, width):
            raise DataError(
                f"{one.file} is {height} x {width}, and {one.source} says {high} x {wide}, which is no other size of "
                "the same image (is it turned by its EXIF?): correct one"
            )
        self._scaled += 1
        self._first.setdefault("scaled", one.source)
        return one.size

    def _box(self, one: Object, height: int, width: int, where: Annotated) -> Box | None:
        name, xmin, ymin, xmax, ymax, difficult = one
        left, top = max(0.0, xmin / width), max(0.0, ymin / height)
        right, bottom = min(1.0, xmax / width), min(1.0, ymax / height)
        if name == _BACKGROUND:
            why = "of the class background"
        elif xmax < xmin or ymax < ymin:
            why = "with exchanged corners"
        elif xmax == xmin or ymax == ymin:
            why = "empty"
        elif left >= right or top >= bottom:
            why = "outside of their image"
        else:
            return Box(self.labels[name], left, top, right, bottom, difficult)
        self._left_out[why] += 1
        self._first.setdefault("left out", where.file)
        return None

    def notes(self) -> Iterator[str]:
        if self._left_out:
            counts = ", ".join(f"{count:,} {why}" for why, count in self._left_out.items())
            yield f"boxes left out: {counts}; the first in the annotation of {self._first['left out']}"
        if self._scaled:
            yield (
                f"annotations that count pixels of another size than their image's, so that their boxes are taken as "
                f"parts of that size: {self._scaled:,}, the first {self._first['scaled']}"
            )
        if self._cut:
            yield (
                f"JPEGs without their end, in which what is missing is gray: {self._cut:,}, the first "
                f"{self._first['cut']}"
            )


def _labels(file: Path, names: Sequence[str]) -> dict[str, int]:
    """The number of each class: that of the folder's label map if there is one, else from 1 on."""
    names = [name for name in dict.fromkeys(names) if name != _BACKGROUND]
    if not file.is_file():
        return {name: number for number, name in enumerate(names, 1)}
    known = caffe_pb2.LabelMap()
    try:
        text_format.Parse(read_file(file, _MOST_MAP_BYTES), known)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is no LabelMap of SSD's Caffe ({error}): correct it") from error
    labels = {item.name: int(item.label) for item in known.item if item.label}
    missing = sorted(set(names) - set(labels))
    if missing:
        raise DataError(
            f"{file} has no class {', '.join(map(repr, missing[:5]))}: make the database with all classes first, or "
            "use another folder"
        )
    return labels


def _label_map(labels: Mapping[str, int]) -> str:
    made = caffe_pb2.LabelMap()
    for name, label in {_BACKGROUND: 0, **labels}.items():
        made.item.add(name=name, label=label, display_name=name)
    return str(text_format.MessageToString(made, as_utf8=True))
