"""Reads all records of a data source and finds the first that does not fit the net.

First every shape, of an image by its header, and every label; then every image is decoded, which takes longer.
Caffe does not check records: it reads beyond the memory of one that is shorter than its shape, and aborts in the
middle of a run at one of another shape. The check at the start of a run has a time limit. As a child process of
lowest priority (`python -m speedo.engines.record_check`) it checks the remaining records while the run trains.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb
import numpy as np
import psutil
from pydantic import TypeAdapter

from caffenets.files import read_names
from caffenets.host_program import caffe_schema
from caffenets.shared_lmdb import SharedLmdb
from speedo.data.pixels import Colors, UnreadablePictureError, decoded, shape_of
from speedo.engines.caffe_import import prepare_environment
from speedo.engines.label_rules import Values
from speedo.engines.record_rules import RecordRule, Shape
from speedo.engines.schema import use_own_schema

ORIGIN: Final = "converted-from.json"  # beside an LMDB that was made from another database
_LOOK_RECORDS: Final = 64  # between two looks at the clock
_COLORS: Final[dict[int, Colors]] = {0: "own", 1: "gray", 3: "color"}
_READ_BYTES: Final = 4 << 20  # of an HDF5 dataset, between two looks at the clock
_NOT_FINITE: Final = "holds NaN or infinity: correct it, or leave it out"
_LABEL: Final = re.compile(r"\s*[+-]?\d+")
_DECODED: Final = 1  # of the marks in the cache: those before were made by headers alone


class _Record(NamedTuple):
    """`values` (C, H, W) if the rule is about them; `is_image` says that it has to be decoded."""

    name: str
    shape: Shape
    label: int
    values: Values | None
    is_image: bool


class _BadRecordError(Exception):
    """What is wrong with a record; follows `which `."""


def first_problem(
    rule: RecordRule, over: Callable[[], bool], note: Callable[[str], None] = lambda text: None
) -> tuple[str | None, bool]:
    """A sentence for the first record that breaks the rule, and whether all were read before `over()`.

    `note` is called with a sentence about a record that is good, but not as its user may think.
    """
    source = _shown(rule)
    start = f"layer {rule.layer!r} reads"
    try:
        if rule.datasets:
            return _hdf5_problem(rule, over)
        with closing(_lines(rule) if rule.images else _datums(rule)) as records:
            problem, whole, has_images = _problem_in(rule, records, source, over)
        if problem is None and whole and has_images:
            with closing(_files(rule)) as files:
                whole = _decode_all(rule, files, over, lambda name: note(_cut(rule, name, source)))
        return problem, whole
    except _BadRecordError as error:
        name, what = error.args
        return f"{start} the record {name!r} of {source}, which {what}", True
    except lmdb.Error as error:
        return f"{start} {source}, which is damaged ({error}): create it again", True


def _problem_in(
    rule: RecordRule, records: Iterable[_Record], source: str, over: Callable[[], bool]
) -> tuple[str | None, bool, bool]:
    """As `first_problem`, and whether there are images to decode."""
    first: Shape | None = None
    has_images = False
    fewest = min((use.classes.number for use in rule.uses), default=0)
    for count, (name, shape, label, values, is_image) in enumerate(records, 1):
        first = first or shape
        has_images |= is_image
        problem = rule.shape_problem(shape, first)
        if problem is not None:
            raise _BadRecordError(name, problem)
        found = None
        if not 0 <= label < fewest:
            found = rule.label_problem(1, np.array([label]))
        if found is None and values is not None:
            found = rule.label_problem(0, values[None])
        if found is not None:
            return _label_words(rule, found, f"{name!r} of {source}"), True, False
        if values is not None and 0 in rule.finite and not np.isfinite(values).all():
            raise _BadRecordError(name, _NOT_FINITE)
        if count % _LOOK_RECORDS == 0 and over():
            return None, False, has_images
    return None, True, has_images


def _decode_all(
    rule: RecordRule,
    files: Iterable[tuple[str, bytes]],
    over: Callable[[], bool],
    cut: Callable[[str], None],
) -> bool:
    """Decode every image as the engines do; whether all were decoded before `over()`. `cut` gets the first one's name
    that lacks its end."""
    told = False
    for name, content in files:
        try:
            made = decoded(content, _COLORS[rule.channels], in_record=not rule.images)
        except UnreadablePictureError as error:
            raise _BadRecordError(name, f"{error}: leave it out, or create it again") from error
        if made.cut and not told:
            told = True
            cut(name)
        if over():
            return False
    return True


def _cut(rule: RecordRule, name: str, source: str) -> str:
    return (
        f"layer {rule.layer!r} reads the record {name!r} of {source}, a JPEG without its end, perhaps not the only "
        "one: what is missing is gray"
    )


def _hdf5_problem(rule: RecordRule, over: Callable[[], bool]) -> tuple[str | None, bool]:
    """As `first_problem`, for the rows of HDF5 files; what is wrong with the files themselves, the engines tell."""
    import h5py

    for name in read_names(Path(rule.source)):
        try:
            with h5py.File(name, "r", locking=False) as file:
                for top, dataset in enumerate(map(file.get, rule.datasets)):
                    if not isinstance(dataset, h5py.Dataset) or not dataset.shape:
                        continue
                    for row, rows in _rows(dataset):
                        problem = _problem_of_rows(rule, top, rows, row, name)
                        if problem is not None:
                            return problem, True
                        if over():
                            return None, False
        except (OSError, RuntimeError, TypeError, ValueError):
            continue
    return None, True


def _rows(dataset: Any) -> Iterator[tuple[int, Values]]:
    """The rows as Caffe has them, some at a time, each time with the number of the first."""
    step = max(1, _READ_BYTES // max(1, 4 * math.prod(dataset.shape[1:])))
    if dataset.chunks:  # a compressed chunk is read as a whole
        step = math.ceil(step / dataset.chunks[0]) * dataset.chunks[0]
    for row in range(0, len(dataset), step):
        with np.errstate(over="ignore"):
            yield row, dataset[row : row + step].astype(np.float32)


def _problem_of_rows(rule: RecordRule, top: int, rows: Values, first: int, file: str) -> str | None:
    """A sentence for the first bad one of these rows, which begin with number `first` of the file."""

    def record(row: int) -> str:
        return f"'row {first + row}, counted from 0' of {file}"

    found = rule.label_problem(top, rows)
    if found is not None:
        return _label_words(rule, found, record(found[0]))
    if top in rule.finite and not (finite := np.isfinite(rows)).all():
        row = int(finite.reshape(len(rows), -1).all(axis=1).argmin())
        return f"layer {rule.layer!r} reads the record {record(row)}, whose {rule.datasets[top]!r} {_NOT_FINITE}"
    return None


def _label_words(rule: RecordRule, found: tuple[int, str, str], record: str) -> str:
    return f"layer {rule.layer!r} reads the label {found[1]} (record {record}), {found[2]}"


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
    """The cache file for this rule and the present state of its files; None for lists of images."""
    if cache is None or rule.images:
        return None
    source = Path(rule.source)
    try:
        files = [source / "data.mdb" if source.is_dir() else source]
        if rule.datasets:
            files += map(Path, read_names(source))
        found = [file.stat() for file in files]
    except OSError:
        return None
    state = [[one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns] for one in found]
    text = json.dumps([asdict(rule), state, _DECODED], sort_keys=True)
    return cache / hashlib.sha256(text.encode()).hexdigest()[:32]


def _shown(rule: RecordRule) -> str:
    """The source under the name that the user gave it."""
    try:
        return str(json.loads((Path(rule.source) / ORIGIN).read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return rule.source


def _datums(rule: RecordRule) -> Generator[_Record]:
    """The records of an LMDB; `name` is the key."""
    datum = caffe_schema().Datum()
    path = Path(rule.source)
    looks_at_labels = any(use.top == 0 for use in rule.uses)
    with SharedLmdb(path) as database, database.begin() as transaction:
        for key, value in transaction.cursor():
            name = key.decode(errors="replace")
            try:
                datum.ParseFromString(value)
            except Exception as error:  # protobuf's DecodeError differs between its implementations
                raise _BadRecordError(
                    name, "is not a Datum of Caffe: create the database again"
                ) from error
            try:
                shape = _image(BytesIO(datum.data), rule) if datum.encoded else _raw(datum)
                values: Values | None = None
                if min(shape) > 0 and not datum.encoded:
                    if not datum.data:
                        values = np.array(datum.float_data, np.float32)
                    elif looks_at_labels:
                        values = np.frombuffer(datum.data, np.uint8)
                    if values is not None:
                        values = values[: math.prod(shape)].reshape(shape)
                elif looks_at_labels and datum.encoded:
                    values = _pixels(datum.data, rule)
            except _BadRecordError as error:
                raise _BadRecordError(name, *error.args) from None
            yield _Record(name, shape, datum.label, values, bool(datum.encoded))


def _raw(datum: Any) -> Shape:
    shape = (datum.channels, datum.height, datum.width)
    needed = shape[0] * shape[1] * shape[2]
    # As Caffe takes them (Caffe: data_transformer.cpp)
    held = len(datum.data) or len(datum.float_data)
    if held < needed and min(shape) > 0:
        raise _BadRecordError(
            f"holds {held:,} values, but its shape {shape[0]} x {shape[1]} x {shape[2]} needs {needed:,}: Caffe would "
            "train on memory beyond it; create the database again"
        )
    return shape


def _files(rule: RecordRule) -> Generator[tuple[str, bytes]]:
    """Name and content of each image file, which `_lines` or `_datums` found to be one."""
    if rule.images:
        for where, file, _ in _named(rule):
            yield where, _content(where, file)
        return
    datum = caffe_schema().Datum()
    with SharedLmdb(Path(rule.source)) as database, database.begin() as transaction:
        for key, value in transaction.cursor():
            datum.ParseFromString(value)
            if datum.encoded:
                yield key.decode(errors="replace"), datum.data


def _image(file: Any, rule: RecordRule) -> Shape:
    """Shape of an image as Caffe will have it, by its header alone."""
    try:
        channels, height, width = shape_of(file, _COLORS[rule.channels])
    except UnreadablePictureError as error:
        raise _BadRecordError(f"{error}: leave it out, or create it again") from error
    return channels, *(rule.size or (height, width))


def _pixels(content: bytes, rule: RecordRule) -> Values:
    """The image of labels as Caffe decodes it."""
    try:
        return decoded(content, _COLORS[rule.channels], rule.size, in_record=not rule.images).pixels
    except UnreadablePictureError as error:
        raise _BadRecordError(f"{error}: leave it out, or create it again") from error


def _lines(rule: RecordRule) -> Generator[_Record]:
    """The images of a list."""
    looks_at_labels = any(use.top == 0 for use in rule.uses)
    for where, file, label in _named(rule):
        try:
            with open(file, "rb") as stream:
                shape = _image(stream, rule)
            values = _pixels(_content(where, file), rule) if looks_at_labels else None
        except _BadRecordError as error:
            raise _BadRecordError(where, *error.args) from None
        except OSError as error:
            raise _unread(where, file, error) from error
        yield _Record(where, shape, label, values, True)


def _content(where: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unread(where, file, error) from error


def _unread(where: str, file: Path, error: OSError) -> _BadRecordError:
    return _BadRecordError(
        where, f"cannot be read ({file}: {error.strerror}): correct the line or the file"
    )


def _named(rule: RecordRule) -> Generator[tuple[str, Path, int]]:
    """The lines of a list (Caffe: layers/image_data_layer.cpp): number and name, file, label."""
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
            yield where, file, int(label[0])


def main() -> None:
    """Check all records of the rules on standard input; answer with the first problem, if there is one, and notes."""
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
    problem, notes = None, list[str]()
    for rule in TypeAdapter(list[RecordRule]).validate_python(request["rules"]):
        problem, _ = first_problem(rule, lambda: False, notes.append)
        if problem is not None:
            break
        remember(rule, cache)
    print(json.dumps([problem, notes]), flush=True)


if __name__ == "__main__":
    main()
