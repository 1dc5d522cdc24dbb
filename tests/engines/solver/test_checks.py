"""Every mistake is told, all at once, each with its file, its value and its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import pytest

from caffenets.host_program import caffe_schema
from speedo.engines.solver import SolverOverrides, check_solver, read_solver, split_batch
from speedo.errors import SolverError
from tests.support.nets import LOSS, SMOOTH, net_text, write_solver

pytestmark = pytest.mark.caffe


def problems(path: Path, *, workers: int = 1, split: bool = True) -> list[str]:
    with pytest.raises(SolverError) as caught:
        check_solver(read_solver(path), workers=workers, split=split)
    return list(caught.value.problems)


def test_a_good_solver_has_no_problem(home: Path) -> None:
    check_solver(read_solver(write_solver(home, net_text())), workers=8, split=True)


SOLVERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"net": None}, ["names no train net", 'add `net: "..."`']),
    ({"train_net": '"net.prototxt"'}, ["more than once (net and train_net)", "keep one"]),
    (
        {"net": '"nte.prototxt"'},
        ["names the net 'nte.prototxt', which was not found", "tried", "--data-root"],
    ),
    ({"base_lr": None}, ["has no base_lr"]),
    ({"base_lr": -1}, ["base_lr is -1: use a learning rate of 0 or more"]),
    ({"lr_policy": None}, ["has no lr_policy", "fixed, step"]),
    ({"lr_policy": '"stepp"'}, ["lr_policy 'stepp' is not one of", "did you mean 'step'?"]),
    ({"lr_policy": '"step"', "gamma": 0.1}, ["lr_policy 'step' needs stepsize"]),
    ({"lr_policy": '"step"', "stepsize": 5}, ["lr_policy 'step' needs gamma"]),
    ({"lr_policy": '"step"', "stepsize": 0, "gamma": 1}, ["stepsize is 0: use 1 or more"]),
    ({"lr_policy": '"exp"', "gamma": -1}, ["gamma is -1: use 0 or more"]),
    ({"lr_policy": '"exp"'}, ["'exp' needs gamma"]),
    ({"lr_policy": '"inv"', "gamma": 1}, ["'inv' needs power"]),
    ({"lr_policy": '"multistep"', "gamma": 1}, ["'multistep' needs stepvalue"]),
    ({"lr_policy": '"poly"'}, ["'poly' needs power"]),
    ({"lr_policy": '"sigmoid"', "gamma": 1}, ["'sigmoid' needs stepsize"]),
    ({"max_iter": None}, ["has no max_iter"]),
    ({"max_iter": -1}, ["max_iter is -1: use 0 or more"]),
    ({"iter_size": 0}, ["iter_size is 0"]),
    ({"average_loss": 0}, ["average_loss is 0"]),
    ({"snapshot": -5}, ["snapshot is -5"]),
    ({"test_interval": None}, ["has test_iter but no test_interval"]),
    ({"test_iter": None}, ["test_interval is 10 but there is no test net", "add test_iter"]),
    ({"test_iter": -1}, ["test_iter is -1: use 0 or more"]),
    ({"test_net": ['"net.prototxt"'] * 2}, ["has 2 test nets but 1 test_iter"]),
    ({"test_state": ["{}", "{}"]}, ["has 2 test_state for 1 test nets"]),
    ({"momentum": 1.5}, ["momentum is 1.5: use 0 or more and less than 1"]),
    ({"type": '"AdaGrad"'}, ["momentum is 0.9, but AdaGrad has none: set momentum: 0"]),
    ({"solver_type": "RMSPROP"}, ["but RMSProp has none"]),
    ({"type": '"Adm"'}, ["solver type 'Adm' is not one of SGD", "did you mean 'Adam'?"]),
    ({"type": '"Adam"', "momentum2": 1}, ["momentum2 is 1"]),
    ({"type": '"RMSProp"', "momentum": 0, "rms_decay": 1}, ["rms_decay is 1"]),
    ({"type": '"SGD"', "solver_type": "ADAM"}, ["both type and the old solver_type"]),
    ({"regularization_type": '"L3"'}, ["regularization_type 'L3' is neither L1 nor L2"]),
    ({"solver_mode": "GPU"}, ["solver_mode is GPU", "CPU only", "set solver_mode: CPU"]),
    ({"weights": '"old.caffemodel"'}, ["weights 'old.caffemodel', which was not found"]),
    ({"base_lrr": 1}, ["line 11: SolverParameter has no field 'base_lrr'", "mean 'base_lr'?"]),
    ({"solver_mode": "CPUU"}, ["line 8: 'CPUU' is not one of CPU, GPU", "did you mean 'CPU'?"]),
    ({"base_lr": '"high"'}, ["line 2", "high"]),
]


@pytest.mark.parametrize(("fields", "words"), SOLVERS, ids=lambda value: str(value)[:40])
def test_a_bad_solver_is_told(home: Path, fields: dict[str, Any], words: list[str]) -> None:
    path = write_solver(home, net_text(), **fields)
    found = problems(path)
    assert len(found) == 1, found
    assert "\n" not in found[0]
    for word in words:
        assert word in found[0]


NETS: list[tuple[str, str, list[str]]] = [
    ('type: "Sigmoid"', 'type: "Sigmoids"', ["layer 'sig' has the unknown type 'Sigmoids'",
                                             "did you mean 'Sigmoid'?"]),
    ('type: "Sigmoid"', 'type: "RoiPooling"', ["layer 'sig' has the unknown type 'RoiPooling': it is no layer of",
                                               "but of Fast R-CNN's Caffe"]),
    ('type: "SoftmaxWithLoss"', 'type: "MultiBoxLoss"', ["no layer of BVLC's Caffe, but of SSD's Caffe"]),
    ('bottom: "pool"', 'bottom: "pol"', ["layer 'sig' reads 'pol', which no earlier layer makes",
                                         "did you mean 'pool'?"]),
    ('top: "pool"', 'top: "pool" top: "conv"', ["layer 'pool' makes 'conv', which another"]),
    ('source: "train"', 'source: "trian"', ["layer 'data' reads its records from 'trian'"]),
    ('source: "train" ', "", ["layer 'data' has no source"]),
    ('source: "test"', 'source: "empty"', ["empty, which holds no record: create it again"]),
    ('source: "train" backend: LMDB', 'source: "train"', ["as LevelDB, but it is an LMDB",
                                                          "add `backend: LMDB`"]),
    ('source: "train"', 'source: "level"', ["it is a LevelDB: set `backend: LEVELDB`"]),
    ('source: "train"', 'source: "folder"', ["it is no LMDB"]),
    ('source: "train" backend: LMDB', 'source: "level"', ["which holds no record"]),
    ("batch_size: 8", "", ["layer 'data' has no batch_size"]),
    ("scale: 0.00390625 }\n  data_param { source: \"train\"",
     "mean_file: \"mean\" }\n  data_param { source: \"train\"",
     ["layer 'data' needs the mean file 'mean', which was not found"]),
    ("scale: 0.00390625 }\n  data_param { source: \"train\"",
     "mean_file: \"here\" mean_value: 1 }\n  data_param { source: \"train\"",
     ["has both mean_file and mean_value"]),
    ('type: "SoftmaxWithLoss"', 'type: "Softmax"', ["has no loss"]),
    ("num_output: 6", "num_outputs: 6",
     ["line 12: ConvolutionParameter has no field 'num_outputs'", "'num_output'?"]),
    ("include { phase: TRAIN }", "include { phase: TRAIN } exclude { phase: TEST }",
     ["layer 'data' has both include and exclude"]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "words"), NETS, ids=lambda value: str(value)[:40])
def test_a_bad_net_is_told_with_its_file(home: Path, old: str, new: str, words: list[str]) -> None:
    (home / "here").touch()
    (home / "folder").mkdir()
    (home / "level").mkdir()
    (home / "level" / "CURRENT").write_text("MANIFEST-000001\n")
    lmdb.open(str(home / "empty")).close()
    text = net_text()
    assert old in text
    found = problems(write_solver(home, text.replace(old, new)))
    told = next((text for text in found if words[0] in text), None)
    assert told is not None, found
    assert told.startswith(str(home / "net.prototxt"))
    for word in words:
        assert word in told


DATA: list[tuple[str, list[str]]] = [
    ('type: "MemoryData" memory_data_param { batch_size: 4 channels: 1 height: 8 width: 8 }',
     ["gets its records from outside (layer 'data', type MemoryData)"]),
    ('type: "Input" input_param { shape { dim: 4 } }', ["from outside", "type Input"]),
    ('type: "HDF5Data" hdf5_data_param { source: "list" batch_size: 4 }', ["'list', which was"]),
    ('type: "HDF5Data" hdf5_data_param { source: "none" batch_size: 4 }', ["none, which is empty"]),
    ('type: "HDF5Data" hdf5_data_param { source: "names" batch_size: 4 }',
     ["whose file 'a.h5', which was not found"]),
    ('type: "HDF5Data" hdf5_data_param { source: "names" batch_size: 4 } transform_param {}',
     ["has transform_param, which HDF5Data does not take"]),
    ('type: "ImageData" image_data_param { source: "none" batch_size: 4 }', ["which is empty"]),
    ('type: "ImageData" image_data_param { source: "names" batch_size: 4 }',
     ["whose first image 'a.h5', which was not found"]),
    ('type: "ImageData" image_data_param { source: "names" batch_size: 4 new_width: 8 }',
     ["only one of new_height and new_width"]),
    ('type: "WindowData" window_data_param { source: "none" batch_size: 4 }', ["window file"]),
    ('type: "Python" python_param { module: "nowhere_at_all" layer: "L" }',
     ["needs the Python module 'nowhere_at_all'"]),
    ('type: "Python" python_param { module: "os" layer: "L" }', ["batch size of the train net"]),
    ('type: "Python"', ["needs python_param with module and layer"]),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "words"), DATA, ids=lambda value: str(value)[:60])
def test_bad_data_layers_are_told(home: Path, layer: str, words: list[str]) -> None:
    (home / "none").touch()
    (home / "names").write_text("a.h5 1\n")
    net = f'layer {{ name: "data" top: "data" top: "label" {layer} }}{SMOOTH}{LOSS}'
    found = "\n".join(problems(write_solver(home, net, test_iter=None, test_interval=None)))
    for word in words:
        assert word in found


def test_a_net_without_data_is_told(home: Path) -> None:
    net = net_text().replace("include { phase: TRAIN }", "include { phase: TEST stage: 'never' }")
    found = "\n".join(problems(write_solver(home, net)))
    assert "the train net has no data layer" in found


def test_all_problems_come_at_once(home: Path) -> None:
    net = net_text(train="nowhere").replace('type: "Sigmoid"', 'type: "Sigmoidal"')
    fields = {"base_lr": None, "max_iter": -1, "lr_policy": '"poly"', "momentum": 2}
    found = problems(write_solver(home, net, **fields), workers=99)
    text = "\n".join(found)
    for words in (
        "base_lr",
        "max_iter is -1",
        "needs power",
        "momentum is 2",
        "nowhere",
        "Sigmoidal",
    ):
        assert words in text
    assert len(found) == 6


def test_every_net_file_that_is_missing_is_told_once(home: Path) -> None:
    path = write_solver(home, net_text(), net='"a.txt"', test_net='"b.txt"', test_iter=[1, 1])
    found = problems(path)
    assert len(found) == 2
    assert "'a.txt'" in found[0]
    assert "'b.txt'" in found[1]


def test_a_solver_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SolverError, match=r"no/solver\.prototxt: there is no such solver file"):
        read_solver(tmp_path / "no" / "solver.prototxt")


def test_a_solver_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "model.caffemodel"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(SolverError, match="is not text"):
        read_solver(path)


def test_a_published_solver_that_says_gpu_can_be_taken_to_the_cpu(home: Path) -> None:
    path = write_solver(home, net_text(), solver_mode="GPU")
    spec = read_solver(path, overrides=SolverOverrides(cpu=True))
    check_solver(spec, workers=1, split=True)


def test_an_absent_mode_is_the_cpu(home: Path) -> None:
    path = write_solver(home, net_text(), solver_mode=None)
    check_solver(read_solver(path), workers=1, split=False)


def test_a_batch_smaller_than_the_workers_is_told_only_when_it_is_split(home: Path) -> None:
    path = write_solver(home, net_text(batch=3))
    assert "batch_size is 3, too small to split over 4 workers" in problems(path, workers=4)[0]
    check_solver(read_solver(path), workers=4, split=False)
    check_solver(read_solver(path), workers=3, split=True)


def test_data_layers_of_different_batches_cannot_be_split(home: Path) -> None:
    second = (
        'layer { name: "more" type: "Data" top: "more" include { phase: TRAIN } '
        'data_param { source: "train" backend: LMDB batch_size: 5 } } '
        'layer { name: "hush" type: "Silence" bottom: "more" include { phase: TRAIN } }'
    )
    path = write_solver(home, net_text() + second)
    assert "data layer 'more' has batch_size 5, the first one 8" in problems(path, workers=2)[0]


@pytest.mark.parametrize(
    ("batch", "workers", "shares"),
    [(64, 3, (22, 21, 21)), (64, 4, (16,) * 4), (5, 5, (1,) * 5), (7, 1, (7,)), (8, 3, (3, 3, 2))],
)
def test_a_batch_is_split_evenly_larger_shares_first(
    batch: int, workers: int, shares: tuple[int, ...]
) -> None:
    assert split_batch(batch, workers) == shares


def test_a_batch_that_cannot_be_split_names_the_remedy() -> None:
    with pytest.raises(SolverError, match="use a batch of 4 or more, fewer workers"):
        split_batch(3, 4)
    with pytest.raises(SolverError, match="0 workers"):
        split_batch(3, 0)


def test_a_batch_of_nothing_has_one_remedy(home: Path) -> None:
    path = write_solver(home, net_text(batch=0))
    assert problems(path) == [
        f"{home}/net.prototxt, line 3: layer 'data' has batch_size 0: use 1 or more"
    ]


def test_a_database_that_was_cut_short_is_not_read(home: Path) -> None:
    """Caffe would be killed by SIGBUS in the middle of a run."""
    (home / "cut").mkdir()
    (home / "cut" / "data.mdb").write_bytes((home / "train" / "data.mdb").read_bytes()[:8192])
    (found,) = problems(write_solver(home, net_text(train="cut")))
    assert "cut, which is truncated: create it again, or copy it again" in found


def test_a_file_that_is_no_hdf5_is_named(home: Path) -> None:
    (home / "text.h5").write_text("no HDF5")
    (home / "behind.h5").write_bytes(bytes(512) + b"\x89HDF\r\n\x1a\n")
    (home / "list.txt").write_text("text.h5\nbehind.h5\n")
    layer = (
        'layer { name: "more" type: "HDF5Data" top: "more" include { phase: TRAIN } '
        'hdf5_data_param { source: "list.txt" batch_size: 8 } } '
        'layer { name: "hush" type: "Silence" bottom: "more" include { phase: TRAIN } }'
    )
    (found,) = problems(write_solver(home, net_text() + layer))
    assert (
        f"whose file {home}/text.h5 is not an HDF5 file: create it again or correct the list"
        in found
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.5] * 63, "holds 63 values and says that it has the shape 1 x 1 x 8 x 8"),
        ([0.5] * 63 + [float("nan")], "holds NaN or infinity"),
        (None, "is not one, or is truncated"),
    ],
)
def test_a_mean_file_that_would_spoil_every_image_is_told(
    home: Path, values: list[float] | None, words: str
) -> None:
    blob = caffe_schema().BlobProto(num=1, channels=1, height=8, width=8, data=values or [])
    content = blob.SerializeToString() if values else b"hello"
    (home / "mean").write_bytes(content)
    path = write_solver(home, net_text().replace("scale: 0.00390625", 'mean_file: "mean"'))
    assert f"{home}/mean, which {words}: create it again" in problems(path)[0]
