"""Reads which objects are in which image, as Pascal VOC and COCO write it."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, Final

from speedo.data.files import read_file
from speedo.errors import DataError

_MOST_JSON_BYTES: Final = 4 << 30
_MOST_XML_BYTES: Final = 16 << 20
_SUFFIXES: Final = (
    ".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".jp2", ".gif", ".tga",
)  # fmt: skip
_DECLARED: Final = re.compile(rb"""^\s*<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)["'][^>]*\?>""")
_CHINESE: Final = (
    "gb2312",
    "gbk",
    "gb_2312-80",
    "cp936",
)  # what is declared so is often of the last

Object = tuple[str, float, float, float, float, bool]
"""Class name, xmin, ymin, xmax, ymax in pixels, whether it is difficult."""


@dataclass(frozen=True, slots=True)
class Annotated:
    """An image file, its objects, and the file that says so, which counts pixels of `size` (height, width) if given."""

    file: Path
    objects: tuple[Object, ...]
    source: Path
    size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Annotations:
    """Images in their order, all names of classes in theirs, what they were read from, and what is to be said of it."""

    images: Sequence[Annotated]
    names: Sequence[str]
    content: bytes
    notes: tuple[str, ...] = ()


def read_voc(folder: Path, images: Path, subset: str) -> Annotations:
    """The images of a set, or those of all annotations. Raises `DataError`.

    As for Pascal VOC's and SSD's tools, an annotation belongs to the image of its own name, whatever it says in
    `filename`; only if there is none, to the one that it names.
    """
    annotations = folder / "Annotations"
    if not annotations.is_dir():
        raise DataError(
            f"{folder} has no folder Annotations: give a folder of Pascal VOC such as VOCdevkit/VOC2007, or a JSON "
            "file of COCO"
        )
    if subset:
        content = read_file(folder / "ImageSets" / "Main" / f"{subset}.txt", _MOST_XML_BYTES)
        text = content.decode("utf-8", "replace")
        stems = [line.split()[0] for line in text.splitlines() if line.strip()]
    else:
        stems = sorted(file.stem for file in annotations.glob("*.xml"))
        content = "\n".join(stems).encode()
    pictures = _Images(images, annotations)
    found = [_voc_image(annotations / f"{stem}.xml", pictures) for stem in stems]
    names = sorted({name for one in found for name, *_ in one.objects})
    return Annotations(found, names, content, pictures.notes())


class _Images:
    """The image files of a folder, by the name of their annotation."""

    def __init__(self, folder: Path, annotations: Path) -> None:
        self._folder, self._annotations = folder, annotations
        self._by_name: dict[str, list[Path]] = defaultdict(list)
        try:
            files = sorted(folder.iterdir())
        except OSError as error:
            raise DataError(
                f"the folder of images {folder} cannot be read ({error.strerror}): give it with --images"
            ) from error
        for file in files:
            if file.suffix.lower() in _SUFFIXES:
                self._by_name[file.stem.lower()].append(file)
        self._otherwise: list[tuple[Path, str]] = []

    def of(self, annotation: Path, named: str) -> Path:
        """The image of an annotation that names it so; raises `DataError` if there is none, or more than one."""
        name = PureWindowsPath(named.strip()).name  # which takes both kinds of slashes
        if (found := self._named(annotation.stem, name)) is not None:
            # The name may be without an extension, and have a dot.
            if name and found.stem.lower() not in (
                name.lower(),
                PureWindowsPath(name).stem.lower(),
            ):
                self._otherwise.append((annotation, named))
            return found
        stem = PureWindowsPath(name).stem
        below = Path(PureWindowsPath(named.strip()).as_posix())
        other = self._named(stem, name) or self._named(name, name)
        if name and not below.is_absolute() and ".." not in below.parts:
            other = self._folder / below if (self._folder / below).is_file() else other
        if other is None:
            raise DataError(
                f"{annotation} has no image: neither {annotation.stem}.jpg (or .png, ...) nor {name or 'another'!r} is "
                f"in {self._folder}: correct its name, or give the folder with --images"
            )
        if (self._annotations / f"{other.stem}.xml").is_file():
            raise DataError(
                f"{annotation} names the image {name!r}, which has an annotation of its own, and there is no image of "
                f"the name {annotation.stem} in {self._folder}: put it there, or remove the annotation"
            )
        return other

    def _named(self, stem: str, name: str) -> Path | None:
        """The image of this name without extension; upper and lower case count where there are several."""
        found = self._by_name.get(stem.lower(), [])
        for narrowed in (
            [file for file in found if file.stem == stem],
            [file for file in found if file.name == name],
        ):
            found = narrowed if len(found) > 1 and narrowed else found
        if len(found) > 1:
            files = ", ".join(file.name for file in found[:3])
            raise DataError(f"{self._folder} has {files} for one annotation: keep one of them")
        return found[0] if found else None

    def notes(self) -> tuple[str, ...]:
        if not self._otherwise:
            return ()
        annotation, name = self._otherwise[0]
        text = "annotations that name another image than that of their own name, which is used"
        return (f"{text}: {len(self._otherwise):,}, the first {annotation}, which names {name!r}",)


def _voc_image(file: Path, images: _Images) -> Annotated:
    """Corners in VOC count pixels from 1, and include the last one."""
    content = read_file(file, _MOST_XML_BYTES)
    try:
        root = _parsed(content, file)
        objects = []
        for one in root.iter("object"):
            box = one.find("bndbox")
            if box is None:
                raise ValueError("an object has no bndbox")
            sides = [_number(box.findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax")]
            difficult = (one.findtext("difficult") or "0").strip() not in ("", "0")
            name = (one.findtext("name") or "").strip()
            if not name:
                raise ValueError("an object has no name")
            objects.append((name, sides[0] - 1, sides[1] - 1, sides[2], sides[3], difficult))
        width, height = (
            _number(root.findtext(f"size/{one}") or "0") for one in ("width", "height")
        )
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"{file} is no annotation of Pascal VOC ({error}): correct it") from None
    image = images.of(file, root.findtext("filename") or "")
    size = (int(height), int(width)) if min(height, width) >= 1 else None
    return Annotated(image, tuple(objects), file, size)


def _parsed(content: bytes, file: Path) -> ElementTree.Element:
    """The XML in whatever encoding it declares; the parser itself knows none of several bytes but UTF-8 and UTF-16."""
    text: str | bytes = content
    declared = _DECLARED.match(content)
    if declared is not None and declared[1].lower() not in (b"utf-8", b"utf-16"):
        encoding = declared[1].decode().lower()
        text = content[declared.end() :].decode("gb18030" if encoding in _CHINESE else encoding)
    if b"<!ENTITY" in content:
        raise DataError(f"{file} defines entities, which no annotation needs: remove them")
    return ElementTree.fromstring(text)


def _number(text: Any) -> float:
    value = float(text or "")
    if not math.isfinite(value):
        raise ValueError(f"{value} is no place in an image")
    return value


def read_coco(file: Path, images: Path) -> Annotations:
    """The images of a file of COCO's instances. Raises `DataError`."""
    content = read_file(file, _MOST_JSON_BYTES)
    try:
        read = json.loads(content)
        names = {
            one["id"]: str(one["name"])
            for one in sorted(read["categories"], key=lambda one: one["id"])
        }
        objects: dict[Any, list[Object]] = defaultdict(list)
        for one in read["annotations"]:
            left, top, width, height = map(_number, map(str, one["bbox"]))
            crowd = bool(one.get("iscrowd", 0))
            name = names[one["category_id"]]
            objects[one["image_id"]].append((name, left, top, left + width, top + height, crowd))
        found = [
            Annotated(
                _inside(images, str(one["file_name"]), file),
                tuple(objects.get(one["id"], ())),
                file,
                (int(one["height"]), int(one["width"]))
                if one.get("height") and one.get("width")
                else None,
            )
            for one in read["images"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{file} is no file of COCO's instances ({type(error).__name__}: {error}): give one with "
            "images, annotations and categories"
        ) from None
    return Annotations(found, list(names.values()), content)


def _inside(images: Path, name: str, file: Path) -> Path:
    """The image of this name; one outside of the folder is refused."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataError(
            f"{file} names the image {name!r}, which is not below {images}: correct the name"
        )
    return images / name
