"""`--data-share once` without Ray: Caffe's own bits, over a checkpoint, and what is refused before the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.engines.solver import SolverOverrides
from speedo.errors import ConfigError
from speedo.run.config.run_config import make_config
from speedo.run.prepare import prepare
from speedo.run_dir.checkpoint_file import checkpoints_in, read_checkpoint
from speedo.run_dir.events import LogFollower, ResultMerged
from speedo.storage.memory_store import MemoryStore
from tests.support.nets import SMOOTH, net_text, records, write_lmdb, write_solver
from tests.support.record_counts import RecordCounts
from tests.whole_runs.local import train_here

pytestmark = pytest.mark.caffe
RECORDS, BATCH, EPOCHS = 240, 16, 3


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    images, labels = records(RECORDS, 5)
    write_lmdb(tmp_path / "train", images, labels)
    body = net_text(SMOOTH, batch=BATCH, train="train", test="train")
    return write_solver(tmp_path, body, test_iter=None, test_interval=None, base_lr=0.002)


def counted(*runs: Path) -> RecordCounts:
    counts = RecordCounts()
    for run in runs:
        log = LogFollower(run)
        while found := log.new():
            for one in found:
                if isinstance(one, ResultMerged):
                    counts.add(one.records)
    return counts


def until(epochs: float) -> SolverOverrides:
    return SolverOverrides(max_iter=int(epochs * RECORDS / BATCH))


def test_one_worker_trains_to_the_bit_as_on_its_shard(solver: Path, tmp_path: Path) -> None:
    models = []
    for share in ("shard", "once"):
        _, _, center = train_here(
            solver, MemoryStore(), tmp_path / share, workers=1, overrides=until(2), data_share=share
        )
        models.append(center.tobytes())
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("mode", "engine"),
    [
        ("sync", "caffe"),
        ("async", "caffe"),
        ("easgd", "caffe"),
        ("weed-out", "caffe"),
        pytest.param("async", "torch", marks=pytest.mark.torch),
    ],
)
def test_a_resumed_run_trains_each_record_once_an_epoch(
    solver: Path, tmp_path: Path, mode: str, engine: str
) -> None:
    store = MemoryStore()
    options = {"mode": mode, "engine": engine, "workers": 3, "data_share": "once"}
    first, second = tmp_path / "first", tmp_path / "second"
    train_here(solver, store, first, overrides=until(1.4), checkpointed=True, **options)
    former = read_checkpoint(checkpoints_in(first / "checkpoints")[0])
    assert former.records
    train_here(solver, store, second, overrides=until(EPOCHS), checkpoint=former, **options)
    counts = counted(first, second)
    assert counts.twice() == counts.never(RECORDS, EPOCHS * RECORDS) == 0


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (
            (
                'name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param { '
                "shape { dim: 4 dim: 1 dim: 4 dim: 6 } shape { dim: 4 } }"
            ),
            "the training records of this net cannot be counted",
        ),
        (
            (
                'name: "data" type: "HDF5Data" top: "data" top: "label" '
                'hdf5_data_param { source: "rows.txt" batch_size: 4 shuffle: true }'
            ),
            "layer 'data' (HDF5Data) shuffles its records",
        ),
    ],
)
def test_a_net_whose_records_have_no_numbers_is_refused(
    tmp_path: Path, layer: str, said: str
) -> None:
    import h5py
    import numpy as np

    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"], file["label"] = np.ones((8, 1, 4, 6), np.float32), np.ones(8, np.float32)
    (tmp_path / "rows.txt").write_text("rows.h5\n")
    net = (
        f"layer {{ {layer} }}\n"
        'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 } }\n'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }'
    )
    solver = write_solver(tmp_path, net, test_iter=None, test_interval=None)
    with pytest.raises(
        ConfigError, match=r"data_share is once, but .*use --data-share shard"
    ) as no:
        prepare(make_config({"solver": solver, "data_share": "once"}), print)
    assert said in str(no.value)
