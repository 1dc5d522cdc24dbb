"""Small datasets made up for the tests of this folder."""

from __future__ import annotations

import gzip
import struct
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import lmdb
import numpy as np
import numpy.typing as npt

from caffenets.caffe_schema import caffe_pb2

Bytes = npt.NDArray[np.uint8]
IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx_bytes(array: Bytes) -> bytes:
    """The array as an IDX file."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_folder(folder: Path, *, train: int = 30, test: int = 7, packed: bool = True) -> list[Bytes]:
    """Write the four files of an MNIST-like set of 4 x 5 pixels; returns their arrays in order."""
    chance = np.random.default_rng(3)
    arrays = []
    for count in (train, test):
        arrays.append(chance.integers(0, 256, (count, 4, 5), dtype=np.uint8))
        arrays.append(chance.integers(0, 10, count, dtype=np.uint8))
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(IDX_NAMES, arrays, strict=True):
        content = idx_bytes(array)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / name).write_bytes(content)
    return arrays


def cifar_files(records: int) -> dict[str, Bytes]:
    """The six binary files with so many records each, uint8 of shape (records, 3073)."""
    chance = np.random.default_rng(4)
    files = {}
    for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
        content = chance.integers(0, 256, (records, 3073), dtype=np.uint8)
        content[:, 0] %= 10
        files[name] = content
    return files


def cifar_archive(
    path: Path, files: dict[str, Bytes], extra: dict[str, bytes] | None = None
) -> None:
    """Pack the files as the published archive is; `extra` adds members under any name."""
    members = {f"cifar-10-batches-bin/{name}": file.tobytes() for name, file in files.items()}
    with tarfile.open(path, "w:gz") as tar:
        for name, content in (members | (extra or {})).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))


def mean_in(file: Path) -> npt.NDArray[np.float32]:
    """The values of a mean file, of shape (channels, height, width)."""
    blob = caffe_pb2.BlobProto.FromString(file.read_bytes())
    return np.array(blob.data, np.float32).reshape(blob.channels, blob.height, blob.width)


def read_database(folder: Path) -> Iterator[tuple[bytes, caffe_pb2.Datum]]:
    """Every key and datum of an LMDB in reading order."""
    with (
        lmdb.Environment(str(folder), readonly=True, create=False, lock=False) as environment,
        environment.begin() as transaction,
    ):
        for key, value in transaction.cursor():
            yield bytes(key), caffe_pb2.Datum.FromString(bytes(value))


def datum_image(datum: caffe_pb2.Datum) -> Bytes:
    """The pixels of a raw datum, uint8 of shape (channels, height, width)."""
    shape = (datum.channels, datum.height, datum.width)
    return np.frombuffer(datum.data, dtype=np.uint8).reshape(shape)
