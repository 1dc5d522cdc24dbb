"""MNIST and Fashion-MNIST: four IDX files each, kept in the order of the files.

Both are published in shuffled order, and Caffe's Data layer reads in database order, so the order is kept.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.data.base import (
    COMMAND,
    TEST_DATABASE,
    TRAIN_DATABASE,
    PreparedDataset,
    Progress,
    reported,
    silent,
)
from speedo.data.database import Record, raw_record, record_key, write_database
from speedo.data.download import PublishedFile, check_sha256, fetch, file_sha256
from speedo.data.folder import Built, DatasetRequest, prepare_folder
from speedo.data.idx import read_idx
from speedo.data.manifest import Database
from speedo.data.mean import MeanImage, write_mean
from speedo.errors import DataError

FASHION_MNIST: Final = "fashion-mnist"
MNIST: Final = "mnist"
# Where Debian's package dataset-fashion-mnist puts its files.
FASHION_MNIST_SOURCE: Final = Path("/usr/share/datasets/fashion-mnist")
FASHION_MNIST_PACKAGE: Final = "dataset-fashion-mnist"

# Images and labels of each database.
FILES: Final = {
    TRAIN_DATABASE: ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    TEST_DATABASE: ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# The copies that TensorFlow Datasets and torchvision fetch; the page of the authors no longer
# serves them.
MNIST_URLS: Final = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
# SHA-256 of the published files, as in the checksums of TensorFlow Datasets (url_checksums, mnist).
MNIST_SHA256: Final[Mapping[str, str]] = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}

Files = Mapping[str, Path]


def prepare_fashion_mnist(
    folder: Path,
    *,
    source: Path | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> PreparedDataset:
    """Fashion-MNIST (Xiao, Rasul, Vollgraf 2017) from the IDX files in `source`, by default
    Debian's.

    Images of shape (1, 28, 28). Raises DataError, see `prepare_folder`. The files bear no published
    checksum: Debian compresses them again; gzip's own check and their sizes are tested.
    """
    place = source or FASHION_MNIST_SOURCE
    remedy = (
        f"apt-get install {FASHION_MNIST_PACKAGE}, or with a folder of the four files: "
        f"{COMMAND} {FASHION_MNIST} {folder} --source FOLDER"
    )
    return _prepare(folder, FASHION_MNIST, lambda _: _local(place, remedy), {}, force, progress)


def prepare_mnist(
    folder: Path,
    *,
    source: Path | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> PreparedDataset:
    """MNIST from the IDX files in `source`, or downloaded; compressed files must bear the published
    checksum.

    Images of shape (1, 28, 28). Raises DataError, see `prepare_folder`.
    """
    names = ", ".join(f"{name}.gz" for name in MNIST_SHA256)
    remedy = f"put {names} into a folder and name it: {COMMAND} {MNIST} --source FOLDER"

    def files(downloads: Path) -> Files:
        if source is not None:
            return _local(source, remedy)
        return {
            name: fetch(
                PublishedFile(f"{name}.gz", sha256, tuple(f"{url}{name}.gz" for url in MNIST_URLS)),
                downloads,
                remedy=remedy,
                progress=progress,
            )
            for name, sha256 in MNIST_SHA256.items()
        }

    return _prepare(folder, MNIST, files, MNIST_SHA256, force, progress)


def _prepare(
    folder: Path,
    dataset: str,
    find: Callable[[Path], Files],
    published: Mapping[str, str],
    force: bool,
    progress: Progress,
) -> PreparedDataset:
    """Both datasets: `find` gives the four files, for which it may download into the folder it is
    given."""

    def build(staging: Path) -> Built:
        databases: dict[str, Database] = {}
        mean = MeanImage()
        with tempfile.TemporaryDirectory(dir=staging) as downloads:
            files = find(Path(downloads))
            for name, (images, labels) in FILES.items():
                counted = mean if name == TRAIN_DATABASE else None
                databases[name] = _write(
                    staging / name, files[images], files[labels], published, counted, progress
                )
        return Built(databases, write_mean(staging, TRAIN_DATABASE, mean))

    request = DatasetRequest(dataset, {name: {} for name in FILES})
    return prepare_folder(folder, request, build, force=force)


def _write(
    database: Path,
    image_file: Path,
    label_file: Path,
    published: Mapping[str, str],
    mean: MeanImage | None,
    progress: Progress,
) -> Database:
    sources = {path.name: _checksum(path, published) for path in (image_file, label_file)}
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels) or not len(images):
        raise DataError(
            f"{image_file} has {len(images)} images but {label_file} has {len(labels)} labels: "
            "they are not of one set"
        )
    written = write_database(database, _records(images, labels, mean, database.name, progress))
    return Database(
        **asdict(written),
        shape=(1, images.shape[1], images.shape[2]),
        channels="gray",
        encoded=False,
        sources=sources,
    )


def _records(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.uint8],
    mean: MeanImage | None,
    what: str,
    progress: Progress,
) -> Iterator[Record]:
    pairs = reported(zip(images, labels, strict=True), len(images), what, progress)
    for index, (image, label) in enumerate(pairs):
        image = image[np.newaxis]
        if mean:
            mean.add(image)
        yield raw_record(record_key(index), image, int(label))


def _local(folder: Path, remedy: str) -> Files:
    """The four files in a folder, compressed or plain; raises DataError naming those that are
    missing."""
    files: dict[str, Path] = {}
    for name in (name for pair in FILES.values() for name in pair):
        for path in (folder / f"{name}.gz", folder / name):
            if os.path.isfile(path):
                files[name] = path
                break
    missing = [name for pair in FILES.values() for name in pair if name not in files]
    if missing:
        raise DataError(f"{folder} has no {', '.join(missing)} (.gz or plain): {remedy}")
    return files


def _checksum(path: Path, published: Mapping[str, str]) -> str:
    if path.suffix == ".gz" and path.stem in published:
        return check_sha256(path, published[path.stem])
    return file_sha256(path)
