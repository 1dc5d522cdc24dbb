"""Converts a list of image files and labels into a database and, for the training set, a mean image.

A raw datum holds blue, green and red planes, the order of OpenCV and so of Caffe. An encoded datum holds the image
file itself: small on disk, but decoded at every pass, by a Caffe that was built with OpenCV.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from speedo.data.base import (
    MANIFEST,
    MEAN_FILE,
    TRAIN_DATABASE,
    PreparedDataset,
    Progress,
    Shape,
    reported,
    silent,
)
from speedo.data.database import Record, record_key, write_database
from speedo.data.files import read_file
from speedo.data.folder import Built, DatasetRequest, prepare_folder
from speedo.data.manifest import Database
from speedo.data.mean import MeanImage, write_mean
from speedo.data.picture import Form, StoredImage, decode
from speedo.data.wire import datum
from speedo.errors import DataError
from speedo.system.bounds import said, whole_number

IMAGES: Final = "images"
# Decoded at once: enough to keep the threads busy, few enough to fit in memory at any size of
# image.
_CHUNK: Final = 64
_SHOWN_LINES: Final = 20
_MOST_LIST_BYTES: Final = 4 << 30  # some fifty million lines
_LARGEST_LABEL: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ImageLine:
    """One line of the list: where it stands, the file as written, its label."""

    number: int
    name: str
    label: int


def prepare_images(
    list_file: Path,
    folder: Path,
    *,
    root: Path | None = None,
    database: str = TRAIN_DATABASE,
    size: tuple[int, int] | None = None,
    gray: bool = False,
    encoded: bool = False,
    shuffle: bool = False,
    seed: int = 1,
    skip_bad: bool = False,
    mean: bool | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> PreparedDataset:
    """Images named in `list_file`, a line `path label` each, into `folder / database`.

    Paths are relative to `root`, by default the list's folder. `size` is (height, width) to resize
    to; without it all images must be of one size, unless `mean` is off and they are `encoded`.
    `mean` is made for `train_lmdb` unless said otherwise. A second call with another `database`
    adds it to the same folder. Raises DataError naming list and line of every kind of fault;
    `skip_bad` leaves such lines out and counts them. See also `prepare_folder`.
    """
    check_database(database)
    content = read_file(list_file, _MOST_LIST_BYTES)
    base = (root or list_file.parent).absolute()
    with_mean = database == TRAIN_DATABASE if mean is None else mean
    form = Form(size, gray, encoded)
    options: dict[str, Any] = asdict(form) | {
        "size": list(size) if size else None,
        "list_sha256": hashlib.sha256(content).hexdigest(),
        "root": str(base),
        "seed": seed if shuffle else None,
        "skip_bad": skip_bad,
        "mean": with_mean,
    }

    notes: list[str] = []

    def build(staging: Path) -> Built:
        faults = _Faults(list_file, skip_bad)
        lines = _read_lines(content, faults)
        if shuffle:
            order = np.random.default_rng(seed).permutation(len(lines))
            lines = [lines[place] for place in order]
        work = _Conversion(base, form, faults, with_mean or not encoded)
        written = write_database(staging / database, work.records(lines, database, progress))
        if not written.records:
            why = faults.first or "it has no line; write one 'path label' per image"
            raise DataError(f"{list_file} gives no image: {why}")
        if work.cut:
            notes.append(
                f"JPEGs without their end, in which what is missing is gray: {len(work.cut)}, the first in {list_file} "
                f"line {work.cut[0]}"
            )
        described = Database(
            **asdict(written),
            shape=work.shape if work.one_shape else None,
            channels="gray" if gray else "BGR",
            encoded=encoded,
            options=options,
            sources={list_file.name: options["list_sha256"]},
            skipped=faults.count,
            skipped_lines=tuple(faults.shown),
        )
        made = write_mean(staging, database, work.mean) if with_mean else None
        return Built({database: described}, made)

    request = DatasetRequest(IMAGES, {database: options}, alone=False)
    prepared = prepare_folder(folder, request, build, force=force)
    if prepared.built and mean is None and prepared.mean is None:
        notes.append(
            f"there is no {MEAN_FILE}: {TRAIN_DATABASE} gets one, and another database by `speedo data images --mean`"
        )
    return replace(prepared, notes=tuple(notes))


class _Faults:
    """Raises at the first fault, or counts them all and shows the first few."""

    def __init__(self, list_file: Path, skip: bool) -> None:
        self._list_file = list_file
        self._skip = skip
        self.count = 0
        self.shown: list[str] = []

    @property
    def first(self) -> str:
        return self.shown[0] if self.shown else ""

    def add(self, line: int, what: str) -> None:
        told = f"{self._list_file} line {line}: {what}"
        if not self._skip:
            raise DataError(f"{told}; correct it, or skip such lines with --skip-bad")
        self.count += 1
        if len(self.shown) < _SHOWN_LINES:
            self.shown.append(told)


class _Conversion:
    """Lines into records, with several threads, in the order of the lines."""

    def __init__(self, root: Path, form: Form, faults: _Faults, one_shape: bool) -> None:
        self._root = root
        self._form = form
        self._faults = faults
        self._need_one_shape = one_shape
        self.shape: Shape | None = None
        self.one_shape = True
        self.mean = MeanImage()
        self.cut: list[int] = []  # lines of JPEGs that lack their end

    def records(
        self, lines: Sequence[ImageLine], what: str, progress: Progress
    ) -> Iterator[Record]:
        index = 0
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            chunks = (lines[start : start + _CHUNK] for start in range(0, len(lines), _CHUNK))
            pictures = (one for chunk in chunks for one in pool.map(self._decode, chunk))
            pairs = zip(lines, pictures, strict=True)
            for line, picture in reported(pairs, len(lines), what, progress):
                if isinstance(picture, str):
                    self._faults.add(line.number, picture)
                elif self._fits(line, picture):
                    yield self._record(index, line, picture)
                    index += 1

    def _decode(self, line: ImageLine) -> StoredImage | str:
        """The picture, or what is wrong with it; threads report, the caller decides."""
        try:
            return decode(self._root / line.name, self._form)
        except DataError as error:
            return str(error)

    def _fits(self, line: ImageLine, picture: StoredImage) -> bool:
        shape = picture.shape
        if self.shape is None:
            self.shape = shape
        if shape == self.shape:
            return True
        if not self._need_one_shape:
            self.one_shape = False
            return True
        self._faults.add(
            line.number,
            f"{line.name} is {shape[1]} x {shape[2]} but the images before it are "
            f"{self.shape[1]} x {self.shape[2]}: give one size with --size",
        )
        return False

    def _record(self, index: int, line: ImageLine, picture: StoredImage) -> Record:
        if picture.cut:
            self.cut.append(line.number)
        # Without one shape there is no mean: the pixels of encoded images are then not needed.
        if self._need_one_shape:
            self.mean.add(picture.pixels)
        data = picture.file if self._form.encoded else picture.pixels.tobytes()
        made = datum(picture.shape, data, line.label, encoded=self._form.encoded)
        return record_key(index, line.name), made.SerializeToString()


def _read_lines(content: bytes, faults: _Faults) -> list[ImageLine]:
    lines: list[ImageLine] = []
    for number, raw in enumerate(content.decode("utf-8", "surrogateescape").split("\n"), 1):
        text = raw.strip()
        if not text:
            continue
        # The label is what follows the last blank, so that a path may hold blanks.
        name, _, label = text.rpartition(" ") if "\t" not in text else text.rpartition("\t")
        if not name.strip() or not label.isascii() or not label.isdigit():
            faults.add(number, f"{said(text)} is not 'path label' with a label of 0 or more")
        elif (value := whole_number(label)) is None or value > _LARGEST_LABEL:
            faults.add(number, f"the label {said(label)} does not fit into 32 bits")
        else:
            lines.append(ImageLine(number, name.strip(), value))
    return lines


def check_database(name: str) -> None:
    """Raise DataError for what cannot name a database in a dataset's folder."""
    if name in ("", MANIFEST, MEAN_FILE) or "/" in name or name.startswith("."):
        raise DataError(
            f"{name!r} cannot name a database: use a plain name such as {TRAIN_DATABASE}"
        )
