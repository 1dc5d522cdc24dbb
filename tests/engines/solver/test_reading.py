"""Reading a solver: nets found, upgraded, filtered as Caffe does, and put inside."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import SolverOverrides, SolverSpec, read_solver, solver_for_worker
from speedo.errors import SolverError
from tests.support.nets import LENET, Sequential, net_text, records, write_solver

pytestmark = pytest.mark.caffe


def parsed(spec: SolverSpec) -> Any:
    return parse_text(spec.text, caffe_schema().SolverParameter())


def layers(net: Any) -> list[str]:
    return [layer.name for layer in net.layer]


def test_the_facts_of_a_solver(home: Path) -> None:
    path = write_solver(home, net_text(), iter_size=3, snapshot=5, type='"Nesterov"')
    spec = read_solver(path)
    assert (spec.batch_size, spec.iter_size, spec.batch) == (8, 3, 24)
    assert (spec.max_iter, spec.test_interval, spec.test_iter) == (100, 10, (2,))
    assert (spec.type, spec.random_seed, spec.net_name) == ("Nesterov", 7, "tiny")
    assert (spec.snapshot, spec.snapshot_prefix) == (5, str(home / "solver"))
    assert spec.momentum == pytest.approx(0.9)
    assert spec.weight_decay == pytest.approx(0.001)
    assert spec.has_test
    assert spec.test_initialization
    assert spec.train_source == "train"
    assert spec.folder == home
    assert spec.net_files == (str(home / "net.prototxt"),) * 2


def test_a_spec_travels_by_pickle(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text()))
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_spec_needs_no_prototxt_any_more(home: Path) -> None:
    path = write_solver(home, net_text())
    spec = read_solver(path)
    path.unlink()
    (home / "net.prototxt").unlink()
    text = solver_for_worker(spec, rank=0, count=1, batch_size=8)
    PycaffeEngine(text, lr_policy=spec.lr_policy).step(1)


def test_overrides_take_the_place_of_the_solvers_values(home: Path) -> None:
    overrides = SolverOverrides(
        max_iter=9, test_interval=3, lr=0.5, momentum=0.25, weight_decay=0.125, batch=6, seed=11
    )
    spec = read_solver(write_solver(home, net_text()), overrides=overrides)
    assert (spec.max_iter, spec.test_interval, spec.batch, spec.random_seed) == (9, 3, 6, 11)
    assert (spec.momentum, spec.weight_decay, spec.lr_policy.rate(0)) == (0.25, 0.125, 0.5)
    assert parsed(spec).test_net_param[0].layer[0].data_param.batch_size == 20


def test_an_override_mends_what_the_solver_lacks(home: Path) -> None:
    path = write_solver(home, net_text(), max_iter=None)
    assert read_solver(path, overrides=SolverOverrides(max_iter=5)).max_iter == 5


@pytest.mark.parametrize("place", ["folder", "working", "root"])
def test_nets_are_looked_for_in_three_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for name in ("folder", "working", "root"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "working")
    path = write_solver(tmp_path / "folder", net_text(), net='"sub/net.txt"')
    (tmp_path / place / "sub").mkdir()
    (tmp_path / place / "sub" / "net.txt").write_text(net_text())
    assert read_solver(path, data_root=tmp_path / "root").net_name == "tiny"


def test_the_solvers_folder_comes_before_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    (tmp_path / "working" / "net.prototxt").write_text(net_text().replace("tiny", "other"))
    assert read_solver(write_solver(tmp_path, net_text())).net_name == "tiny"


def test_a_missing_net_is_told_with_every_place_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    path = write_solver(tmp_path, net_text(), net='"n.txt"')
    with pytest.raises(SolverError) as caught:
        read_solver(path, data_root=tmp_path / "root")
    tried = f"(tried {tmp_path}/n.txt, {tmp_path}/working/n.txt, {tmp_path}/root/n.txt)"
    assert tried in str(caught.value)


NET_FIELDS: dict[str, dict[str, Any]] = {
    "net": {},
    "train_net": {"net": None, "train_net": '"net.prototxt"', "test_net": '"net.prototxt"'},
    "inside": {"net": None, "net_param": "{" + net_text() + "}"},
    "both inside": {
        "net": None,
        "train_net_param": "{" + net_text() + "}",
        "test_net_param": "{" + net_text() + "}",
    },
}


@pytest.mark.parametrize("fields", NET_FIELDS.values(), ids=NET_FIELDS)
def test_every_way_to_name_the_nets_gives_the_same(home: Path, fields: dict[str, Any]) -> None:
    inlined = parsed(read_solver(write_solver(home, net_text(), **fields)))
    assert layers(inlined.train_net_param) == ["data", "conv", "pool", "sig", "ip", "loss"]
    assert [layers(net) for net in inlined.test_net_param] == [
        ["data", "conv", "pool", "sig", "ip", "accuracy", "loss"]
    ]
    assert inlined.train_net_param.layer[0].data_param.source == "train"
    assert inlined.test_net_param[0].layer[0].data_param.source == "test"


def test_test_nets_come_in_caffes_order(home: Path) -> None:
    (home / "other.txt").write_text(net_text().replace("tiny", "second"))
    first = "{" + net_text().replace("tiny", "first") + "}"
    path = write_solver(
        home, net_text(), test_net_param=first, test_net='"other.txt"', test_iter=[1, 2, 3, 4]
    )
    nets = parsed(read_solver(path)).test_net_param
    assert [net.name for net in nets] == ["first", "second", "tiny", "tiny"]


def test_stages_and_levels_choose_the_layers(home: Path) -> None:
    def extra(name: str, rule: str) -> str:
        return f'layer {{ name: "{name}" type: "Silence" bottom: "label" {rule} }}'

    net = (
        net_text()
        + extra("a", "include { phase: TRAIN stage: 'warm' }")
        + extra("b", "include { phase: TRAIN not_stage: 'warm' }")
        + extra("c", "exclude { min_level: 2 }")
        + extra("d", "exclude { max_level: 2 }")
        + extra("e", "include { phase: TEST stage: 'deploy' } include { phase: TRAIN }")
    )
    path = write_solver(
        home, net, train_state="{ stage: 'warm' level: 3 }", test_state="{ stage: 'deploy' }"
    )
    inlined = parsed(read_solver(path))
    assert layers(inlined.train_net_param)[-3:] == ["a", "d", "e"]
    assert layers(inlined.test_net_param[0])[-2:] == ["c", "e"]


V1_NET = """
name: "old"
layers { name: "data" type: DATA top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "FOLDER/train" backend: LMDB batch_size: 8 scale: 0.00390625 } }
layers { name: "conv1" type: CONVOLUTION bottom: "data" top: "conv1" blobs_lr: 1 blobs_lr: 2
  weight_decay: 1 weight_decay: 0
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layers { name: "relu" type: RELU bottom: "conv1" top: "conv1" }
layers { name: "norm" type: LRN bottom: "conv1" top: "norm" lrn_param { local_size: 3 } }
layers { name: "ip" type: INNER_PRODUCT bottom: "norm" top: "ip" param: "w" param: "b"
  blobs_lr: 1 blobs_lr: 0 inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layers { name: "tanh" type: TANH bottom: "ip" top: "ip" }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip" bottom: "label" top: "loss" loss_weight: 2 }
"""


def test_the_old_layer_format_trains_as_caffe_reads_it(home: Path) -> None:
    path = write_solver(
        home, V1_NET.replace("FOLDER", str(home)), test_iter=None, test_interval=None,
        net=f'"{home / "net.prototxt"}"', solver_type="NESTEROV",
    )  # fmt: skip
    plain = Sequential(path.read_text(), home)
    spec = read_solver(path)
    assert spec.type == "Nesterov"
    assert spec.layer_types == (
        "Data", "Convolution", "ReLU", "LRN", "InnerProduct", "TanH", "SoftmaxWithLoss",
    )  # fmt: skip
    text = solver_for_worker(spec, rank=0, count=1, batch_size=8)
    engine = PycaffeEngine(text, lr_policy=spec.lr_policy)
    found = engine.layout.zeros()
    engine.step(5)
    plain.step(5)
    engine.read_weights(found)
    np.testing.assert_array_equal(found, plain.weights())


FIRST_NET = """
name: "first"
layers { layer { name: "data" type: "hdf5_data" source: "FOLDER/list" batchsize: 8 } top: "data" top: "label" }
layers { layer { name: "pad1" type: "padding" pad: 1 } bottom: "data" top: "pad1" }
layers { layer { name: "conv1" type: "conv" num_output: 6 kernelsize: 3 stride: 2 blobs_lr: 1 blobs_lr: 2
  weight_decay: 1 weight_decay: 0 weight_filler { type: "xavier" } bias_filler { type: "constant" value: 0.1 } }
  bottom: "pad1" top: "conv1" }
layers { layer { name: "conv2" type: "conv" num_output: 4 kernelsize: 3 group: 2 pad: 1 biasterm: false
  weight_filler { type: "gaussian" std: 0.1 } } bottom: "conv1" top: "conv2" }
layers { layer { name: "relu" type: "relu" } bottom: "conv2" top: "conv2" }
layers { layer { name: "pool" type: "pool" pool: AVE kernelsize: 3 stride: 2 } bottom: "conv2" top: "pool" }
layers { layer { name: "norm" type: "lrn" local_size: 3 alpha: 0.001 beta: 0.5 } bottom: "pool" top: "norm" }
layers { layer { name: "both" type: "concat" concat_dim: 2 } bottom: "norm" bottom: "pool" top: "both" }
layers { layer { name: "ip" type: "innerproduct" num_output: 4 weight_filler { type: "xavier" } }
  bottom: "both" top: "ip" }
layers { layer { name: "loss" type: "softmax_loss" } bottom: "ip" bottom: "label" }
"""


def test_the_first_layer_format_trains_as_caffe_reads_it(home: Path) -> None:
    import h5py

    images, labels = records(32)
    with h5py.File(home / "records.h5", "w") as file:
        file["data"], file["label"] = images.astype(np.float32) / 256, labels.astype(np.float32)
    (home / "list").write_text(f"{home}/records.h5\n")
    path = write_solver(
        home, FIRST_NET.replace("FOLDER", str(home)), test_iter=None, test_interval=None,
        net=f'"{home / "net.prototxt"}"',
    )  # fmt: skip
    plain = Sequential(path.read_text(), home)
    spec = read_solver(path)
    assert spec.layer_types == (
        "HDF5Data", "Convolution", "ReLU", "Pooling", "LRN", "Concat", "InnerProduct", "SoftmaxWithLoss",
    )  # fmt: skip
    text = solver_for_worker(spec, rank=0, count=1, batch_size=8)
    engine = PycaffeEngine(text, lr_policy=spec.lr_policy)
    found = engine.layout.zeros()
    engine.step(5)
    plain.step(5)
    engine.read_weights(found)
    np.testing.assert_array_equal(found, plain.weights())


@pytest.mark.parametrize(
    ("first", "today"),
    [
        (
            'type: "data" source: "x" batchsize: 3 rand_skip: 4 scale: 0.5 meanfile: "m" cropsize: 6 mirror: true',
            (
                'type: "Data" data_param { source: "x" batch_size: 3 rand_skip: 4 } '
                'transform_param { scale: 0.5 mean_file: "m" crop_size: 6 mirror: true }'
            ),
        ),
        (
            'type: "images" source: "x" batchsize: 3 shuffle_images: true new_height: 7 new_width: 8',
            'type: "ImageData" image_data_param { source: "x" batch_size: 3 shuffle: true new_height: 7 new_width: 8 }',
        ),
        (
            (
                'type: "window_data" source: "x" batchsize: 3 det_fg_threshold: 0.25 det_bg_threshold: 0.125 '
                'det_fg_fraction: 0.5 det_context_pad: 2 det_crop_mode: "square"'
            ),
            (
                'type: "WindowData" window_data_param { source: "x" batch_size: 3 fg_threshold: 0.25 '
                'bg_threshold: 0.125 fg_fraction: 0.5 context_pad: 2 crop_mode: "square" }'
            ),
        ),
        (
            'type: "hdf5_output" hdf5_output_param { file_name: "x" }',
            'type: "HDF5Output" hdf5_output_param { file_name: "x" }',
        ),
        (
            'type: "dropout" dropout_ratio: 0.25',
            'type: "Dropout" dropout_param { dropout_ratio: 0.25 }',
        ),
        (
            'type: "infogain_loss" source: "x"',
            'type: "InfogainLoss" infogain_loss_param { source: "x" }',
        ),
    ],
)
def test_layers_of_the_first_format_keep_each_option(first: str, today: str) -> None:
    from caffenets.prototxt.upgrade import upgrade_net

    net, expected = (caffe_schema().NetParameter() for _ in range(2))
    parse_text(f'layers {{ layer {{ name: "x" {first} }} top: "y" }}', net)
    parse_text(f'layer {{ name: "x" {today} top: "y" }}', expected)
    upgrade_net(net, "net")
    assert net == expected


def test_every_old_layer_type_has_its_name_of_today(home: Path) -> None:
    from caffenets.prototxt.upgrade import upgrade_net
    from speedo.engines.caffe_import import load_caffe

    proto = caffe_schema()
    net = proto.NetParameter()
    for name, number in proto.V1LayerParameter.LayerType.items():
        if name != "NONE":
            net.layers.add(name=name, type=number)
    upgrade_net(net, "net")
    unknown = {layer.type for layer in net.layer} - set(load_caffe().layer_type_list())
    assert not unknown
    assert len(net.layer) == 39


def test_old_input_fields_become_an_input_layer() -> None:
    from caffenets.prototxt.upgrade import upgrade_net

    net = parse_text(
        'input: "a" input: "b" input_dim: [1, 2, 3, 4, 5, 6, 7, 8] layer { name: "x" }',
        caffe_schema().NetParameter(),
    )
    upgrade_net(net, "net")
    assert layers(net) == ["input", "x"]
    assert list(net.layer[0].top) == ["a", "b"]
    assert [list(shape.dim) for shape in net.layer[0].input_param.shape] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
    ]
    assert not net.input


def test_old_batch_norm_parameters_are_held_fixed(home: Path) -> None:
    bn = 'layer { name: "bn" type: "BatchNorm" bottom: "top" top: "bn" param {} param {} param {} }'
    net = net_text(LENET + bn)
    found = parsed(read_solver(write_solver(home, net))).train_net_param.layer
    params = next(layer for layer in found if layer.name == "bn").param
    assert [(param.lr_mult, param.decay_mult) for param in params] == [(0, 0)] * 3


@pytest.mark.parametrize(
    ("net", "words"),
    [
        ('layers { layer { name: "x" type: "cov" } }', "layer 'x' has the type 'cov', which is none of Caffe's first"),
        ('layers { layer { name: "x" type: "relu" stride: 2 } }', r"layer 'x' \(relu\) takes no 'stride': remove it"),
        (('layers { layer { name: "p" type: "padding" pad: 1 } bottom: "a" top: "b" } '
         'layers { layer { name: "x" type: "relu" } bottom: "b" top: "c" }'), "'x' reads the padding layer 'p'"),
        ('layers { name: "x" type: RELU } layer { name: "y" }', "both `layer` and `layers`"),
        ('input: "a" input: "b" input_dim: [1, 2, 3, 4]', "has 2 `input` but 1 shapes"),
    ],
)  # fmt: skip
def test_nets_that_cannot_be_upgraded_are_refused(tmp_path: Path, net: str, words: str) -> None:
    with pytest.raises(SolverError, match=words):
        read_solver(write_solver(tmp_path, net))


def test_an_unset_snapshot_prefix_is_the_solver_and_a_folder_gets_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "out").mkdir()
    path = write_solver(home, net_text(), snapshot_prefix='"out"')
    assert read_solver(path).snapshot_prefix == "out/solver"
    path = write_solver(home, net_text(), snapshot_prefix='"out/run"')
    assert read_solver(path).snapshot_prefix == "out/run"
