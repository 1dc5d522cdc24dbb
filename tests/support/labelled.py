"""Eight records whose labels are their numbers, and a net whose every process writes down what it trains on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.nets import write_lmdb, write_solver

RECORDS = 8
BATCH = 2
WAIT_S = 240
LAYER = """
import os
import time
from pathlib import Path

import caffe

class Seen(caffe.Layer):
    def setup(self, bottom, top):
        network = os.stat("/proc/self/ns/net").st_ino
        self.file = Path(__file__).parent / "seen" / f"{network}-{os.getpid()}-{id(self)}-{time.time_ns()}"
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)
    def forward(self, bottom, top):
        time.sleep(float(self.param_str))
        with self.file.open("a") as file:
            file.write(" ".join(str(int(label)) for label in bottom[1].data.ravel()) + "\\n")
        top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom):
        pass
"""
NET = """
name: "seen"
layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: TRAIN }}
  data_param {{ source: "train" backend: LMDB batch_size: {batch} }} }}
layer {{ name: "seen" type: "Python" bottom: "data" bottom: "label" top: "same"
  python_param {{ module: "seen" layer: "Seen" param_str: "{seconds}" }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "same" top: "ip"
  inner_product_param {{ num_output: 8 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""


def write_records(folder: Path, labels: range) -> Path:
    """An LMDB with a record for each label."""
    images = np.array([np.full((1, 2, 2), label, np.uint8) for label in labels])
    return write_lmdb(folder, images, np.array(labels))


def write_problem(folder: Path, seconds: float = 0.02, *, with_data: bool = True) -> Path:
    """A solver whose net reads `train`, which lies beside it `with_data`."""
    folder.mkdir()
    (folder / "seen").mkdir()
    (folder / "seen.py").write_text(LAYER)
    if with_data:
        write_records(folder / "train", range(RECORDS))
    net = NET.format(batch=BATCH, seconds=seconds)
    return write_solver(folder, net, base_lr=1e-6, test_iter=None, test_interval=None)


def read(solver: Path, *, after: int = 0) -> list[tuple[int, ...]]:
    """What each net has trained on, in order of their making, of those made `after` this moment (ns)."""
    found = {}
    for file in (solver.parent / "seen").iterdir():
        made = int(file.name.rpartition("-")[2])
        if made >= after:
            whole = file.read_text().rpartition("\n")[0]
            found[made] = tuple(int(label) for label in whole.split())
    return [seen for _, seen in sorted(found.items()) if seen]


def wait_to_read(solver: Path, nets: int, records: int, after: int) -> list[tuple[int, ...]]:
    """The first `records` of each of the last `nets` nets made `after` this moment, once all have read them."""
    deadline = time.monotonic() + WAIT_S
    while True:
        seen = [one[:records] for one in read(solver, after=after) if len(one) >= records]
        if len(seen) >= nets:
            return sorted(seen[-nets:])
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)


def wait_for_sets(
    solver: Path, sets: Sequence[tuple[int, ...]], after: int, starts: Sequence[int] = ()
) -> None:
    """Until the last nets made `after` this moment read these sets of records, one each, and begin at `starts`.

    How many nets are made before depends on how far apart the new workers join.
    """
    deadline = time.monotonic() + WAIT_S
    wanted = sorted(sets)
    while True:
        newest = [one[:RECORDS] for one in read(solver, after=after)][-len(wanted) :]
        whole = [one for one in newest if len(one) == RECORDS]
        begun = sorted(one[0] for one in whole) == sorted(starts) or not starts
        if begun and sorted(tuple(sorted({*one})) for one in whole) == wanted:
            return
        assert time.monotonic() < deadline, newest
        time.sleep(0.1)


def cycles(starts: Sequence[int], step: int, count: int) -> list[tuple[int, ...]]:
    """So many records from each start on, `step` apart, from the first again after the last."""
    return sorted(tuple((start + step * at) % RECORDS for at in range(count)) for start in starts)
