"""A net of two halves with shared parameters over pairs of images, whose records lie in LevelDBs.

Built as Caffe's siamese example is: two data layers, slices, shared parameters by name, a contrastive loss.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from speedo.engines.caffe_import import load_caffe
from tests.data.leveldbs import write_leveldb
from tests.support.nets import records, write_solver

HALF = """
layer {{ name: "conv{0}" type: "Convolution" bottom: "half{0}" top: "conv{0}"
  param {{ name: "conv_w" lr_mult: 1 }} param {{ name: "conv_b" lr_mult: 2 }}
  convolution_param {{ num_output: 6 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "sig{0}" type: "Sigmoid" bottom: "conv{0}" top: "sig{0}" }}
layer {{ name: "feat{0}" type: "InnerProduct" bottom: "sig{0}" top: "feat{0}"
  param {{ name: "feat_w" lr_mult: 1 }} param {{ name: "feat_b" lr_mult: 2 }}
  inner_product_param {{ num_output: 2 weight_filler {{ type: "xavier" }} }} }}
"""
NET = f"""name: "twins"
layer {{ name: "pairs" type: "Data" top: "pairs" top: "similar" include {{ phase: TRAIN }}
  transform_param {{ scale: 0.00390625 }} data_param {{ source: "pairs_train_leveldb" batch_size: 16 }} }}
layer {{ name: "pairs" type: "Data" top: "pairs" top: "similar" include {{ phase: TEST }}
  transform_param {{ scale: 0.00390625 }} data_param {{ source: "pairs_test_leveldb" batch_size: 20 }} }}
layer {{ name: "halves" type: "Slice" bottom: "pairs" top: "half1" top: "half2"
  slice_param {{ slice_dim: 1 slice_point: 1 }} }}
{HALF.format(1)}{HALF.format(2)}
layer {{ name: "loss" type: "ContrastiveLoss" bottom: "feat1" bottom: "feat2" bottom: "similar" top: "loss"
  contrastive_loss_param {{ margin: 1 }} }}
"""


def pairs(count: int, seed: int) -> list[tuple[bytes, bytes]]:
    """Keys and datums of pairs of images: two channels, and whether both are of one class."""
    proto = load_caffe().proto.caffe_pb2
    images, labels = records(2 * count, seed)
    made = []
    for index in range(count):
        one, other = 2 * index, 2 * index + (0 if index % 2 else 1)
        both = np.concatenate([images[one], images[other]])
        same = int(labels[one] == labels[other])
        datum = proto.Datum(channels=2, height=8, width=8, label=same, data=both.tobytes())
        made.append((b"%08d" % index, datum.SerializeToString()))
    return made


def write_siamese(folder: Path, /, **fields: Any) -> Path:
    """The solver, with its net and its two databases in `folder`."""
    write_leveldb(folder / "pairs_train_leveldb", pairs(160, 1))
    write_leveldb(folder / "pairs_test_leveldb", pairs(40, 2))
    return write_solver(folder, NET, **{"max_iter": 60, "test_interval": 60, **fields})
