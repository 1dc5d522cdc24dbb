"""Converts records in another form into an LMDB: the same records, labels and order, counted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

from speedo.data.base import TRAIN_DATABASE, PreparedDataset, Progress, silent
from speedo.data.database import DATA_FILE, write_database
from speedo.data.datum_files import datum_files, read_datums
from speedo.data.files import open_file
from speedo.data.folder import Built, DatasetRequest, prepare_folder
from speedo.data.hdf5 import hdf5_files, is_hdf5, read_hdf5
from speedo.data.images import check_database, prepare_images
from speedo.data.leveldb import is_leveldb, state_of, write_copy
from speedo.data.manifest import Database
from speedo.data.survey import Survey, opened, read_records
from speedo.errors import DataError

CONVERTED: Final = "converted"
Form = Literal["leveldb", "datums", "images", "hdf5"]
_LOOK_BYTES: Final = 1 << 16


def convert(
    source: Path,
    folder: Path,
    *,
    form: Form | None = None,
    database: str = TRAIN_DATABASE,
    root: Path | None = None,
    data_name: str = "data",
    label_name: str = "label",
    size: tuple[int, int] | None = None,
    gray: bool = False,
    encoded: bool = False,
    shuffle: bool = False,
    seed: int = 1,
    skip_bad: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> PreparedDataset:
    """The records of `source` as the LMDB `folder / database`.

    `form` is found out where it is None. `root` is the folder of relative names in a list. The names are those of
    HDF5 datasets; the options from `size` on are those of `prepare_images`. Raises `DataError`, see `prepare_folder`.
    """
    form = form or form_of(source)
    images = {
        "size": size,
        "gray": gray,
        "encoded": encoded,
        "shuffle": shuffle,
        "skip_bad": skip_bad,
    }
    if form == "images":
        return prepare_images(
            source, folder, root=root, database=database, size=size, gray=gray, encoded=encoded, shuffle=shuffle,
            seed=seed, skip_bad=skip_bad, force=force, progress=progress,
        )  # fmt: skip
    if given := [name.replace("_", "-") for name, value in images.items() if value]:
        raise DataError(
            f"{source} is converted as {form}: --{given[0]} is for lists of images alone"
        )
    check_database(database)
    files = _files(source, form, root)
    options: dict[str, Any] = {
        "form": form,
        "source": str(source.absolute()),
        "state": _state(source, form, files),
    }
    if form == "hdf5":
        options |= {"data_name": data_name, "label_name": label_name}

    def build(staging: Path) -> Built:
        made = staging / database
        if form == "leveldb":
            written = write_copy(source.resolve(), made, staging / "links", progress)
            shutil.rmtree(staging / "links")
        elif form == "datums":
            written = write_database(made, read_datums(source, progress))
        else:
            written = write_database(made, read_hdf5(files, data_name, label_name, progress))
        if not written.records:
            raise DataError(f"{source} holds no record: name another source")
        if _state(source, form, files) != options["state"]:
            raise DataError(f"{source} changed while it was converted: wait until it is complete")
        survey = Survey()
        with opened(made) as transaction:
            for record in read_records(made, transaction):
                survey.add(record)
        described = Database(
            **asdict(written),
            shape=survey.shape,
            channels="as in the source",
            encoded=survey.encoded > 0,
            options=options,
        )
        return Built({database: described}, None)

    request = DatasetRequest(CONVERTED, {database: options}, alone=False)
    return prepare_folder(folder, request, build, force=force)


def form_of(source: Path) -> Form:
    """What this file or folder is, by its content; raises `DataError` if it is none of the forms."""
    if source.is_dir():
        if (source / DATA_FILE).exists():
            raise DataError(f"{source} is an LMDB already: Caffe reads it as it is")
        return "leveldb" if is_leveldb(source) else "datums"
    with open_file(source) as stream:
        start = stream.read(_LOOK_BYTES)
    if is_hdf5(source):
        return "hdf5"
    try:
        text = start.decode("utf-8", "surrogateescape" if b"\0" not in start else "strict")
        first = next(line for line in text.splitlines() if line.strip())
    except (UnicodeDecodeError, StopIteration):
        return "datums"
    if b"\0" in start or not first.isprintable():
        return "datums"
    if len(first.split()) > 1 and first.split()[-1].isdigit():
        return "images"
    return "hdf5" if first.strip().endswith((".h5", ".hdf5", ".hdf")) else "datums"


def _files(source: Path, form: Form, root: Path | None) -> list[Path]:
    if form == "hdf5":
        return hdf5_files(source, root)
    return datum_files(source) if form == "datums" else []


def _state(source: Path, form: Form, files: list[Path]) -> str:
    """A digest of names, sizes and times of all files that hold records."""
    found: list[Any]
    if form == "leveldb":
        if not is_leveldb(source):
            raise DataError(f"{source} is not a LevelDB: correct its name, or --form")
        found = list(state_of(source.resolve()))
    else:
        try:
            stats = [(str(file), os.stat(file)) for file in files]
        except OSError as error:
            raise DataError(
                f"{error.filename} cannot be read ({error.strerror}): correct the name, or the list {source}"
            ) from None
        found = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
