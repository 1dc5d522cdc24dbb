"""Reads all records of a data source and finds the first that does not fit the net.

Caffe does not check records: it reads beyond the memory of one that is shorter than its shape, and aborts in the
middle of a run at one of another shape. The check at the start of a run has a time limit. As a child process of
lowest priority (`python -m speedo.engines.record_check`) it checks the remaining records while the run trains.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import lmdb
import psutil
from PIL import Image

from speedo.engines.caffe_import import prepare_environment
from speedo.engines.record_rules import RecordRule, Shape
from speedo.engines.schema import caffe_schema, use_own_schema
from speedo.system.shared_lmdb import SharedLmdb

ORIGIN: Final = "converted-from.json"  # beside an LMDB that was made from another database
_LOOK_RECORDS: Final = 64  # between two looks at the clock
_ROTATED: Final = (5, 6, 7, 8)  # values of EXIF's Orientation that exchange height and width
_ORIENTATION: Final = 0x0112
_FORMATS: Final = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000")  # what OpenCV decodes
_CHANNELS: Final = {"RGB": 3, "RGBA": 4, "P": 3, "CMYK": 3}  # as OpenCV has them; others have one
_LABEL: Final = re.compile(r"\s*[+-]?\d+")


class _BadRecordError(Exception):
    """What is wrong with a record; follows `which `."""


def first_problem(rule: RecordRule, over: Callable[[], bool]) -> tuple[str | None, bool]:
    """A sentence for the first record that breaks the rule, and whether all were read before `over()`."""
    source = _shown(rule)
    start = f"layer {rule.layer!r} reads"
    first: Shape | None = None
    try:
        with closing(_lines(rule) if rule.images else _datums(rule)) as records:
            for count, (name, shape, label) in enumerate(records, 1):
                first = first or shape
                problem = rule.shape_problem(shape, first)
                if problem is not None:
                    raise _BadRecordError(name, problem)
                problem = rule.label_problem(label, f"{name!r} of {source}")
                if problem is not None:
                    return problem, True
                if count % _LOOK_RECORDS == 0 and over():
                    return None, False
    except _BadRecordError as error:
        name, what = error.args
        return f"{start} the record {name!r} of {source}, which {what}", True
    except lmdb.Error as error:
        return f"{start} {source}, which is damaged ({error}): create it again", True
    return None, True


def until(deadline: float) -> Callable[[], bool]:
    """For `first_problem`: whether this time of the monotonic clock has passed."""
    return lambda: time.monotonic() >= deadline


def is_known(rule: RecordRule, cache: Path | None) -> bool:
    """Whether an earlier check of exactly these records under this rule found no problem."""
    mark = _mark(rule, cache)
    return mark is not None and mark.exists()


def remember(rule: RecordRule, cache: Path | None) -> None:
    """Store that all records follow the rule, if the cache can be written."""
    mark = _mark(rule, cache)
    if mark is not None:
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mark.touch()


def _mark(rule: RecordRule, cache: Path | None) -> Path | None:
    """The cache file for this rule and the present state of its LMDB; None for lists of images."""
    if cache is None or rule.images:
        return None
    source = Path(rule.source)
    try:
        found = (source / "data.mdb" if source.is_dir() else source).stat()
    except OSError:
        return None
    state = [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
    text = json.dumps([rule.to_plain(), state], sort_keys=True)
    return cache / hashlib.sha256(text.encode()).hexdigest()[:32]


def _shown(rule: RecordRule) -> str:
    """The source under the name that the user gave it."""
    try:
        return str(json.loads((Path(rule.source) / ORIGIN).read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return rule.source


def _datums(rule: RecordRule) -> Generator[tuple[str, Shape, int]]:
    """Key, shape and label of each record of an LMDB."""
    datum = caffe_schema().Datum()
    path = Path(rule.source)
    with (
        SharedLmdb(path) as database,
        database.begin() as transaction,
    ):
        for key, value in transaction.cursor():
            name = key.decode(errors="replace")
            try:
                datum.ParseFromString(value)
            except Exception as error:  # protobuf's DecodeError differs between its implementations
                raise _BadRecordError(
                    name, "is not a Datum of Caffe: create the database again"
                ) from error
            try:
                shape = _image(io.BytesIO(datum.data), rule) if datum.encoded else _raw(datum)
            except _BadRecordError as error:
                raise _BadRecordError(name, *error.args) from None
            yield name, shape, datum.label


def _raw(datum: Any) -> Shape:
    shape = (datum.channels, datum.height, datum.width)
    needed = shape[0] * shape[1] * shape[2]
    held = len(datum.data) or len(
        datum.float_data
    )  # as Caffe takes them (Caffe: data_transformer.cpp)
    if held < needed and min(shape) > 0:
        raise _BadRecordError(
            f"holds {held:,} values, but its shape {shape[0]} x {shape[1]} x {shape[2]} needs {needed:,}: Caffe would "
            "train on memory beyond it; create the database again"
        )
    return shape


def _image(file: Any, rule: RecordRule) -> Shape:
    """Shape of an image as Caffe will have it, by its header alone."""
    try:
        with Image.open(file, formats=_FORMATS) as image:
            width, height = image.size
            channels = rule.channels or _CHANNELS.get(image.mode, 1) + (
                "transparency" in image.info
            )
            turned = rule.channels and image.getexif().get(_ORIENTATION) in _ROTATED
    except Exception as error:  # Pillow raises almost anything on a damaged file
        raise _BadRecordError(
            "is not an image that can be decoded: leave it out, or create it again"
        ) from error
    if turned:  # OpenCV turns what it converts
        width, height = height, width
    return channels, *(rule.size or (height, width))


def _lines(rule: RecordRule) -> Generator[tuple[str, Shape, int]]:
    """Name, shape and label of each line of a list (Caffe: layers/image_data_layer.cpp)."""
    with open(rule.source, encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            name, _, text = line.rstrip("\n").rpartition(" ")
            label = _LABEL.match(text)
            where = f"line {number}: {name or line.strip()}".encode(errors="replace").decode()
            if not name or label is None:
                raise _BadRecordError(where, "is not `image label`: correct the line")
            file = Path(rule.root + name)
            if not file.is_file():
                raise _BadRecordError(
                    where, f"is not a file ({file}): correct the line or put the image there"
                )
            try:
                shape = _image(file, rule)
            except _BadRecordError as error:
                raise _BadRecordError(where, *error.args) from None
            yield where, shape, int(label[0])


def main() -> None:
    """Check all records of the rules on standard input; answer with the first problem, if there is one."""
    request = json.loads(sys.stdin.readline())

    def end_with_the_run() -> None:
        sys.stdin.read()  # it comes to its end with the process that holds the other one
        os._exit(0)

    threading.Thread(target=end_with_the_run, daemon=True).start()
    os.nice(19)
    with suppress(psutil.Error, OSError, AttributeError):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    prepare_environment(1)
    use_own_schema()  # it defines a Datum as pycaffe does, whose import takes a second
    cache = None if request["cache"] is None else Path(request["cache"])
    for rule in map(RecordRule.from_plain, request["rules"]):
        problem, _ = first_problem(rule, lambda: False)
        if problem is not None:
            print(json.dumps(problem), flush=True)
            return
        remember(rule, cache)


if __name__ == "__main__":
    main()
