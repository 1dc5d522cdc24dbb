"""Both engines read the records that they are told, from every source that has numbers, with Caffe's transformation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from speedo.engines.base import ModelEngine
from speedo.engines.make import EngineChoice, make_engine
from speedo.engines.solver import read_solver, solver_for_worker
from speedo.engines.solver.data_layers import obstacle_to_placing
from speedo.system.bounds import EngineName
from tests.support.nets import write_lmdb, write_solver

pytestmark = pytest.mark.caffe
RECORDS, BATCH = 24, 4
NET = """
layer { name: "data" type: %s }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {
  num_output: 1 weight_filler { type: "constant" } } }
layer { name: "flat" type: "Reshape" bottom: "label" top: "ones" reshape_param { shape { dim: -1 dim: 1 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "ones" top: "loss" }
"""
TOPS = 'top: "data" top: "label"'
SOURCES = {
    "database": f'"Data" {TOPS} transform_param {{ scale: 0.5 mean_value: 3 }} '
    'data_param { source: "db" batch_size: 4 backend: LMDB }',
    "one file": f'"HDF5Data" {TOPS} hdf5_data_param {{ batch_size: 4 source: "one.txt" }}',
    "files": f'"HDF5Data" {TOPS} hdf5_data_param {{ batch_size: 4 source: "all.txt" }}',
    "images": f'"ImageData" {TOPS} image_data_param {{ batch_size: 4 is_color: false source: "list.txt" }}',
}
# Ranges that are placed before a batch or two, and what follows: goes on, jumps, goes back, is in parts.
PLACES = (
    ([(4, 8)], 12),
    ([(8, 12)], 8),
    ([(12, 20)], 0),
    ([(0, 4)], 0),
    ([(22, 24), (0, 2)], 4),
    ([(2, 6)], 0),
    ([(7, 8), (3, 4), (20, 22)], 2),
    ([(22, 24), (0, 6)], 0),
    ([(6, 10)], 0),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    images = np.random.default_rng(1).integers(0, 255, (RECORDS, 1, 4, 6), np.uint8)
    labels = np.arange(RECORDS)
    write_lmdb(folder / "db", images, labels)
    bounds = [0, 3, 12, 13, RECORDS, 0, RECORDS]
    names = []
    for number, (first, end) in enumerate(pairwise(bounds)):
        if end:
            with h5py.File(folder / f"{number}.h5", "w") as file:
                file["data"] = images[first:end].astype(np.float32)
                file["label"] = labels[first:end].astype(np.float32)
            names.append(f"{number}.h5\n")
    (folder / "all.txt").write_text("".join(names[:-1]))
    (folder / "one.txt").write_text(names[-1])
    for number, image in enumerate(images):
        Image.fromarray(image[0]).save(folder / f"{number}.png")
    lines = (f"{number}.png {number}\n" for number in range(RECORDS))
    (folder / "list.txt").write_text("".join(lines))
    return folder


def engine_of(folder: Path, source: str, engine: EngineName, scratch: Path) -> ModelEngine:
    path = write_solver(folder, NET % SOURCES[source], test_iter=None, test_interval=None)
    spec = read_solver(path)
    assert not obstacle_to_placing(spec)
    text = solver_for_worker(spec, rank=0, count=1, batch_size=BATCH, seed=5, scratch=scratch)
    return make_engine(EngineChoice(engine, "cpu"), text, lr_policy=spec.lr_policy, scratch=scratch)


@pytest.mark.parametrize("engine", ["caffe", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.parametrize("source", SOURCES)
def test_an_engine_reads_the_records_that_it_is_told(
    folder: Path, tmp_path: Path, source: str, engine: EngineName
) -> None:
    plain = engine_of(folder, source, engine, tmp_path)
    every = [plain.next_batch() for _ in range(RECORDS // BATCH)]
    plain.close()
    data, label = (
        np.concatenate([np.array(one[name]).reshape(BATCH, -1) for one in every])
        for name in ("data", "label")
    )
    assert label.ravel().tolist() == list(range(RECORDS))
    placed = engine_of(folder, source, engine, tmp_path)
    for ranges, ahead in PLACES:
        placed.place(ranges, ahead)
        wanted = [number for start, stop in ranges for number in range(start, stop)]
        for at in range(0, len(wanted), BATCH):
            batch = placed.next_batch()
            assert batch["label"].ravel().tolist() == wanted[at : at + BATCH]
            np.testing.assert_array_equal(
                batch["data"].reshape(BATCH, -1), data[wanted[at : at + BATCH]]
            )
    placed.close()


@pytest.mark.parametrize("engine", ["caffe", pytest.param("torch", marks=pytest.mark.torch)])
def test_a_step_on_placed_records_is_that_on_the_same_records_of_a_shard(
    folder: Path, tmp_path: Path, engine: EngineName
) -> None:
    plain = engine_of(folder, "database", engine, tmp_path)
    placed = engine_of(folder, "database", engine, tmp_path)
    placed.place([(0, 12)], 12)
    assert plain.step(3) == placed.step(3)
    placed.place([(12, 24)])
    assert plain.step(3) == placed.step(3)
    weights = [one.layout.zeros() for one in (plain, placed)]
    plain.read_weights(weights[0])
    placed.read_weights(weights[1])
    assert weights[0].tobytes() == weights[1].tobytes()
    plain.close()
    placed.close()
