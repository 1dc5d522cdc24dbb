"""Workers that divide the records read each once an epoch, from every source, shuffled or not, on both engines.

Record j has 255 in place j alone and the label 1, so a linear net at zero tells by its gradient how often it was read.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from speedo.engines.make import EngineChoice, make_engine
from speedo.engines.solver import read_solver, solver_for_worker
from speedo.system.bounds import EngineName
from tests.support.nets import write_lmdb, write_solver

pytestmark = pytest.mark.caffe
RECORDS = 24
FILES = (3, 9, 1, 11)
NET = """
layer { name: "data" type: %s }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {
  num_output: 1 bias_term: false weight_filler { type: "constant" } } }
layer { name: "flat" type: "Reshape" bottom: "label" top: "ones" reshape_param { shape { dim: -1 dim: 1 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "ones" top: "loss" }
"""
HDF5 = '"HDF5Data" top: "data" top: "label" hdf5_data_param { batch_size: 12 source: '
IMAGES = '"ImageData" top: "data" top: "label" image_data_param { batch_size: 12 is_color: false source: "list.txt" '
SOURCES = {
    "one file": HDF5 + '"one.txt" }',
    "one file, shuffled": HDF5 + '"one.txt" shuffle: true }',
    "files": HDF5 + '"all.txt" }',
    "files, shuffled": HDF5 + '"all.txt" shuffle: true }',
    "database": '"Data" top: "data" top: "label" data_param { source: "db" batch_size: 12 backend: LMDB }',
    "images": IMAGES + "}",
    "images, shuffled": IMAGES + "shuffle: true }",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    images = (255 * np.eye(RECORDS, dtype=np.uint8)).reshape(RECORDS, 1, 4, 6)
    write_lmdb(folder / "db", images, np.ones(RECORDS))
    bounds = [0, *np.cumsum(FILES), 0, RECORDS]
    for number, (first, end) in enumerate(pairwise(bounds)):
        if end:
            with h5py.File(folder / f"{number}.h5", "w") as file:
                file["data"] = images[first:end].astype(np.float32)
                file["label"] = np.ones(end - first, np.float32)
    (folder / "all.txt").write_text("".join(f"{number}.h5\n" for number in range(len(FILES))))
    (folder / "one.txt").write_text(f"{len(FILES) + 1}.h5\n")
    for number, image in enumerate(images):
        Image.fromarray(image[0]).save(folder / f"{number}.png")
    (folder / "list.txt").write_text("".join(f"{number}.png 1\n" for number in range(RECORDS)))
    return folder


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("engine", ["caffe", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.parametrize("source", SOURCES)
def test_each_record_is_read_once_an_epoch(
    folder: Path, tmp_path: Path, source: str, engine: EngineName, workers: int
) -> None:
    path = write_solver(folder, NET % SOURCES[source], test_iter=None, test_interval=None)
    spec, batch = read_solver(path), 12 // workers
    for epochs in (1, 3):
        read = np.zeros(RECORDS)
        for rank in range(workers):
            text = solver_for_worker(
                spec, rank=rank, count=workers, batch_size=batch, seed=5 + rank, scratch=tmp_path
            )
            made = make_engine(
                EngineChoice(engine, "cpu"),
                text,
                lr_policy=spec.lr_policy,
                rank=rank,
                count=workers,
            )
            gradient = made.layout.zeros()
            made.advance(2 * (epochs - 1))  # two batches are an epoch
            made.gradient(2, gradient)
            made.close()
            read -= gradient * 2 * batch / 255
        assert np.rint(read).tolist() == [1] * RECORDS
