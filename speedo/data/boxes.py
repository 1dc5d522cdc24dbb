"""Makes databases of images with boxes, for SSD and Faster R-CNN, from Pascal VOC and COCO.

A record is an `AnnotatedDatum` of SSD's Caffe: the image file itself, and the boxes of each class. The names of the
classes are in `labelmap.prototxt`, a LabelMap of SSD's Caffe, in which 0 is the background; a second database in the
same folder takes them from there.
"""

from __future__ import annotations

import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from speedo.data.base import PROGRESS_RECORDS, TRAIN_DATABASE, Prepared, Progress, silent
from speedo.data.database import Record, record_key, write_database
from speedo.data.files import read_file
from speedo.data.folder import Built, Request, prepare_folder
from speedo.data.images import check_database
from speedo.data.lock import LOCK_WAIT_SECONDS
from speedo.data.manifest import Database
from speedo.data.picture import Form, decode
from speedo.data.wire import Box, Datum, annotated_to_bytes
from speedo.errors import DataError

BOXES: Final = "boxes"
LABEL_MAP: Final = "labelmap.prototxt"
_BACKGROUND: Final = "background"
_MOST_JSON_BYTES: Final = 4 << 30
_MOST_XML_BYTES: Final = 16 << 20
_ITEM: Final = re.compile(r'item\s*\{[^}]*?name:\s*"([^"]*)"[^}]*?label:\s*(\d+)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Annotated:
    """An image file, and its objects: class name, xmin, ymin, xmax, ymax in pixels, whether it is difficult.

    `size` is (height, width) as the annotation says it, or None.
    """

    file: Path
    objects: tuple[tuple[str, float, float, float, float, bool], ...]
    size: tuple[int, int] | None = None


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
    wait_seconds: float = LOCK_WAIT_SECONDS,
) -> Prepared:
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

    def build(staging: Path) -> Built:
        if is_coco:
            found, names, content = _coco(source, images or source.parent)
        else:
            found, names, content = _voc(source, images or source / "JPEGImages", subset)
        if not found:
            raise DataError(
                f"{source} names no image: give a folder of Pascal VOC or a JSON file of COCO"
            )
        labels = _labels(folder / LABEL_MAP, names)
        form = Form(size, gray=False, encoded=True)
        work = _records(found, labels, form, database, progress)
        written = write_database(staging / database, work)
        (staging / LABEL_MAP).write_text(_label_map(labels), encoding="utf-8")
        described = Database(
            records=written.records,
            shape=(3, *size) if size else None,
            channels="BGR",
            encoded=True,
            file_bytes=written.file_bytes,
            sha256=written.sha256,
            options=options,
            sources={source.name: hashlib.sha256(content).hexdigest()},
        )
        return Built({database: described}, None, (LABEL_MAP,))

    request = Request(BOXES, {database: options}, alone=False)
    return prepare_folder(folder, request, build, force=force, wait_seconds=wait_seconds)


def _records(
    found: Sequence[Annotated], labels: Mapping[str, int], form: Form, what: str, progress: Progress
) -> Iterator[Record]:
    for index, one in enumerate(found):
        if index % PROGRESS_RECORDS == 0 or index + 1 == len(found):
            progress(index + 1, len(found), what)
        original = decode(one.file, Form(None, gray=False, encoded=True))
        _, height, width = original.shape
        if one.size is not None and one.size != (height, width):
            raise DataError(
                f"{one.file} is {height} x {width}, and its annotation says {one.size[0]} x {one.size[1]}: correct one"
            )
        picture = original if form.size is None else decode(one.file, form)
        boxes = []
        for name, xmin, ymin, xmax, ymax, difficult in one.objects:
            low, high = (
                (max(0.0, xmin / width), max(0.0, ymin / height)),
                (xmax / width, ymax / height),
            )
            if not (low[0] < min(1.0, high[0]) and low[1] < min(1.0, high[1])):
                continue  # nothing of it is in the image
            boxes.append(Box(labels[name], *low, min(1.0, high[0]), min(1.0, high[1]), difficult))
        datum = Datum(*picture.shape, picture.file, 0, encoded=True)
        yield record_key(index, one.file.name), annotated_to_bytes(datum, boxes)


def _voc(folder: Path, images: Path, subset: str) -> tuple[list[Annotated], list[str], bytes]:
    """The images of a set, in its order, all names of classes in theirs, and the content of the list."""
    annotations = folder / "Annotations"
    if not annotations.is_dir():
        raise DataError(
            f"{folder} has no folder Annotations: give a folder of Pascal VOC such as VOCdevkit/VOC2007, or a JSON "
            "file of COCO"
        )
    if subset:
        content = read_file(folder / "ImageSets" / "Main" / f"{subset}.txt", _MOST_XML_BYTES)
        stems = [
            line.split()[0]
            for line in content.decode("utf-8", "replace").splitlines()
            if line.strip()
        ]
    else:
        stems = sorted(file.stem for file in annotations.glob("*.xml"))
        content = "\n".join(stems).encode()
    found = [_voc_image(annotations / f"{stem}.xml", images, stem) for stem in stems]
    return found, sorted({name for one in found for name, *_ in one.objects}), content


def _voc_image(file: Path, images: Path, stem: str) -> Annotated:
    """Corners in VOC count pixels from 1, and include the last one."""
    content = read_file(file, _MOST_XML_BYTES)
    if b"<!ENTITY" in content:
        raise DataError(f"{file} defines entities, which no annotation needs: remove them")
    try:
        root = ElementTree.fromstring(content)
        name = (root.findtext("filename") or f"{stem}.jpg").strip()
        objects = []
        for one in root.iter("object"):
            box = one.find("bndbox")
            assert box is not None
            xmin, ymin, xmax, ymax = (
                float(box.findtext(side) or "") for side in ("xmin", "ymin", "xmax", "ymax")
            )
            difficult = (one.findtext("difficult") or "0").strip() not in ("", "0")
            objects.append(
                ((one.findtext("name") or "").strip(), xmin - 1, ymin - 1, xmax, ymax, difficult)
            )
    except (ElementTree.ParseError, AssertionError, ValueError) as error:
        raise DataError(
            f"{file} is no annotation of Pascal VOC ({str(error) or 'an object has no bndbox'}): correct it"
        ) from None
    return Annotated(_inside(images, name, file), tuple(objects))


def _coco(file: Path, images: Path) -> tuple[list[Annotated], list[str], bytes]:
    """The images in the order of the file, the names of the categories in theirs, and the file's content."""
    content = read_file(file, _MOST_JSON_BYTES)
    try:
        read = json.loads(content)
        names = {
            one["id"]: str(one["name"])
            for one in sorted(read["categories"], key=lambda one: one["id"])
        }
        objects: dict[Any, list[tuple[str, float, float, float, float, bool]]] = {}
        for one in read["annotations"]:
            left, top, width, height = map(float, one["bbox"])
            objects.setdefault(one["image_id"], []).append(
                (
                    names[one["category_id"]],
                    left,
                    top,
                    left + width,
                    top + height,
                    bool(one.get("iscrowd", 0)),
                )
            )
        found = [
            Annotated(
                _inside(images, str(one["file_name"]), file), tuple(objects.get(one["id"], ()))
            )
            for one in read["images"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{file} is no file of COCO's instances ({type(error).__name__}: {error}): give one with "
            "images, annotations and categories"
        ) from None
    return found, list(names.values()), content


def _inside(images: Path, name: str, file: Path) -> Path:
    """The image of this name; one outside of the folder is refused."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataError(
            f"{file} names the image {name!r}, which is not below {images}: correct the name"
        )
    return images / name


def _labels(file: Path, names: Sequence[str]) -> dict[str, int]:
    """The number of each class: that of the folder's label map if there is one, else from 1 on."""
    if not file.is_file():
        return {name: number for number, name in enumerate(names, 1)}
    text = read_file(file, _MOST_XML_BYTES).decode("utf-8", "replace")
    known = {name: int(label) for name, label in _ITEM.findall(text)}
    missing = sorted(set(names) - set(known))
    if missing:
        raise DataError(
            f"{file} has no class {', '.join(map(repr, missing[:5]))}: make the database with all classes first, or "
            "use another folder"
        )
    return {name: label for name, label in known.items() if label}


def _label_map(labels: Mapping[str, int]) -> str:
    items = {_BACKGROUND: 0, **labels}
    return "".join(
        f'item {{\n  name: "{name}"\n  label: {label}\n  display_name: "{name}"\n}}\n'
        for name, label in items.items()
    )
