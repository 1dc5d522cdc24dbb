"""The files that the data layers of `tests.support.field_probes` read. No tests itself."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from caffenets.caffe_schema import caffe_pb2
from tests.support.data_layers import datum, encoded_datum, pixels, write_records
from tests.support.detection import make_databases


def write_files(folder: Path) -> None:
    """Databases, lists, images and blobs."""
    make_databases(folder, train=12, test=1)
    for seed, (name, channels) in enumerate((("colors", 3), ("grays", 1))):
        images = pixels((9, channels, 8, 7), seed)
        write_records(folder / name, (datum(one, at) for at, one in enumerate(images)))
    pictures = [Image.fromarray(one) for one in pixels((9, 8, 7), 5)]
    (folder / "other").mkdir()
    for at, picture in enumerate(pictures):
        picture.save(folder / f"{at}.png")
        Image.fromarray(pixels((8, 7, 3), 40 + at)).save(folder / "other" / f"{at}.png")
    write_records(
        folder / "encoded",
        (encoded_datum((folder / f"{at}.png").read_bytes(), at) for at in range(9)),
    )
    for name, step in (("list.txt", 1), ("list2.txt", -1)):
        (folder / name).write_text("".join(f"{at}.png {at}\n" for at in range(9)[::step]))
    for name in ("h5", "h52"):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["t0"] = pixels((9, 3), len(name)).astype(np.float32)
            file["t1"] = np.arange(9, dtype=np.float32)
        (folder / f"{name}.txt").write_text(f"{folder}/{name}.h5\n")
    blobs = {
        "mean": np.full((1, 1, 8, 7), 3.0),
        "infogain": np.eye(4)[None, None] * 2,
        "infogain 2": np.ones((1, 1, 4, 4)),
    }
    for name, values in blobs.items():
        blob = caffe_pb2.BlobProto(data=values.ravel(), num=1, channels=values.shape[1])
        blob.height, blob.width = values.shape[2:]
        if name == "mean":
            blob.channels = 3
            blob.data.extend(values.ravel().tolist() * 2)
        (folder / name).write_bytes(blob.SerializeToString())
