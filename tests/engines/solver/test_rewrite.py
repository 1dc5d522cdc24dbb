"""The text for one process: its share of the data, absolute paths, nothing driven from inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import (
    Draws,
    check_solver,
    read_solver,
    solver_for_server,
    solver_for_tester,
    solver_for_worker,
)
from speedo.engines.solver.rewrite import solver_for_scoring
from speedo.errors import SolverError
from tests.support.nets import LOSS, SMOOTH, Sequential, net_text, write_solver

pytestmark = pytest.mark.caffe


DRAWING = """
layer { name: "drawn" type: "DummyData" top: "drawn" top: "unread" dummy_data_param {
  shape { dim: 1 } shape { dim: 1 } data_filler { value: 2 } } }
layer { name: "silence" type: "Silence" bottom: "drawn" bottom: "unread" }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "msra" } bias_filler { value: 5 } } }
layer { name: "prelu" type: "PReLU" bottom: "conv" top: "prelu" prelu_param { filler { value: 3 } } }
layer { name: "scale" type: "Scale" bottom: "prelu" top: "top" }
"""


def parsed(text: str) -> Any:
    return parse_text(text, caffe_schema().SolverParameter())


def test_a_workers_solver_drives_nothing_itself(home: Path) -> None:
    path = write_solver(
        home, net_text(), snapshot=10, display=5, lr_policy='"step"', gamma=0.1, stepsize=5
    )
    solver = parsed(solver_for_worker(read_solver(path), rank=1, count=2, batch_size=3))
    assert solver.lr_policy == "fixed"
    assert (solver.snapshot, solver.snapshot_after_train, solver.display) == (0, False, 0)
    assert (len(solver.test_net_param), len(solver.test_iter), solver.test_interval) == (0, 0, 0)
    data = solver.train_net_param.layer[0].data_param
    assert (data.batch_size, data.source) == (3, str(home / "train"))
    assert solver.momentum == pytest.approx(0.9)


def test_the_seed_is_the_solvers_unless_one_is_given(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text()))
    for seed, expected in ((None, 7), (5, 5)):
        text = solver_for_worker(spec, rank=0, count=1, batch_size=8, seed=seed)
        assert parsed(text).random_seed == expected


def weights(engine: PycaffeEngine) -> np.ndarray:
    vector = engine.layout.zeros()
    engine.read_weights(vector)
    return vector


def test_ranks_draw_differently_and_again_alike(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text()))

    def start(rank: int) -> np.ndarray:
        text = solver_for_worker(spec, rank=rank, count=3, batch_size=2)
        return weights(PycaffeEngine(text, lr_policy=spec.lr_policy, rank=rank, count=3))

    assert len({start(rank).tobytes() for rank in range(3)}) == 3
    np.testing.assert_array_equal(start(1), start(1))


def test_server_and_tester_begin_with_the_weights_of_sequential_caffe(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text()))
    plain = Sequential(solver_for_worker(spec, rank=0, count=1, batch_size=8), home)
    for text in (solver_for_server(spec), solver_for_tester(spec)):
        engine = PycaffeEngine(text, lr_policy=spec.lr_policy)
        np.testing.assert_array_equal(weights(engine), plain.weights())


def test_who_is_given_weights_draws_none(home: Path) -> None:
    """What a layer makes of other settings stays: data that is drawn, and the ones of a scale without a filler."""
    spec = read_solver(write_solver(home, net_text(DRAWING)))
    given = solver_for_worker(spec, rank=0, count=1, batch_size=8, draws=Draws.NONE)
    for text in (given, solver_for_tester(spec, draws=Draws.NONE)):
        engine = PycaffeEngine(text, lr_policy=spec.lr_policy)
        drawn = weights(engine)
        for blob, place in engine.layout.slices():
            assert np.all(drawn[place] == (blob.name == "scale/0")), blob.name
        engine.close()
    drawn_data = [one for one in parsed(given).train_net_param.layer if one.name == "drawn"]
    assert drawn_data[0].dummy_data_param.data_filler[0].value == 2


def test_the_testers_batches_are_its_own(home: Path) -> None:
    solver = parsed(solver_for_tester(read_solver(write_solver(home, net_text()))))
    assert solver.train_net_param.layer[0].data_param.batch_size == 8
    assert solver.train_net_param.layer[0].data_param.prefetch == 1
    assert solver.test_net_param[0].layer[0].data_param.batch_size == 20
    assert list(solver.test_iter) == [2]


def test_data_is_looked_for_when_the_text_is_made(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(train="later")))
    with pytest.raises(
        SolverError,
        match=r"layer 'data' reads its records from 'later', which was not found \(tried",
    ):
        solver_for_worker(spec, rank=0, count=1, batch_size=8)
    (home / "later").mkdir()
    solver_for_worker(spec, rank=0, count=1, batch_size=8)


def test_data_is_found_below_the_data_root(home: Path, tmp_path_factory: Any) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / "elsewhere").mkdir()
    spec = read_solver(write_solver(home, net_text(train="elsewhere")), data_root=root)
    text = solver_for_worker(spec, rank=0, count=1, batch_size=8)
    assert parsed(text).train_net_param.layer[0].data_param.source == str(root / "elsewhere")


def test_all_missing_files_are_told_at_once(home: Path) -> None:
    net = net_text(train="a", test="b").replace("scale: 0.00390625", 'mean_file: "m"')
    spec = read_solver(write_solver(home, net, weights='"w1, w2"'))
    with pytest.raises(SolverError) as caught:
        solver_for_tester(spec)
    text = str(caught.value)
    assert "mean file 'm'" in text
    assert "weights 'w1'" in text


def test_pretrained_weights_are_found_and_used(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text(), random_seed=99))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=8)
    old = PycaffeEngine(text, lr_policy=spec.lr_policy)
    old.save(home / "old.caffemodel")
    tuned = read_solver(write_solver(home, net_text(), weights='"old.caffemodel"'))
    engine = PycaffeEngine(solver_for_server(tuned), lr_policy=tuned.lr_policy)
    np.testing.assert_array_equal(weights(engine), weights(old))


def source_net(layer: str) -> str:
    return f'layer {{ name: "data" top: "data" top: "label" {layer} }}{SMOOTH}{LOSS}'


def without_test(home: Path, layer: str) -> Path:
    return write_solver(home, source_net(layer), test_iter=None, test_interval=None)


def test_dummy_data_is_split_too(home: Path) -> None:
    layer = (
        'type: "DummyData" dummy_data_param { shape { dim: 8 dim: 1 dim: 8 dim: 8 } '
        "shape { dim: 8 } }"
    )
    spec = read_solver(without_test(home, layer))
    assert spec.batch_size == 8
    text = solver_for_worker(spec, rank=0, count=1, batch_size=3)
    engine = PycaffeEngine(text, lr_policy=spec.lr_policy)
    assert engine.samples_per_step == 3
    assert engine.step(1) > 0


@pytest.mark.parametrize("param_str", ["{'batch_size': 12}", "batch_size: 12", "batchsize=12"])
def test_a_python_layers_batch_is_read_and_set_in_its_parameters(
    home: Path, param_str: str
) -> None:
    (home / "records.py").touch()
    layer = (
        f'type: "Python" python_param {{ module: "records" layer: "R" param_str: "{param_str}" }}'
    )
    spec = read_solver(without_test(home, layer))
    assert spec.batch_size == 12
    text = solver_for_worker(spec, rank=0, count=2, batch_size=6)
    changed = parsed(text).train_net_param.layer[0].python_param.param_str
    assert changed == param_str.replace("12", "6")


def write_images(home: Path, count: int) -> None:
    """Binary PGM images of 8x8 whose label is their number."""
    (home / "images").mkdir()
    lines = []
    for number in range(count):
        header = b"P5\n8 8\n255\n"
        (home / "images" / f"{number}.pgm").write_bytes(header + bytes([number]) * 64)
        lines.append(f"images/{number}.pgm {number}\n")
    (home / "list.txt").write_text("".join(lines))


IMAGES = 'type: "ImageData" image_data_param { source: "list.txt" batch_size: 4 is_color: false }'


def test_image_lists_are_shared_out_line_by_line(home: Path) -> None:
    write_images(home, 12)
    spec = read_solver(without_test(home, IMAGES))
    seen = []
    for rank in range(3):
        scratch = home / f"scratch{rank}"
        text = solver_for_worker(spec, rank=rank, count=3, batch_size=4, scratch=scratch)
        # The labels are read back by Caffe itself; the net's loss has only four classes.
        net = parsed(text).train_net_param
        del net.layer[1:]
        file = home / f"net{rank}.prototxt"
        file.write_text(str(net))
        from speedo.engines.caffe_import import load_caffe

        caffe = load_caffe()
        built = caffe.Net(str(file), caffe.TRAIN)
        built.forward()
        seen.append([int(label) for label in built.blobs["label"].data])
        assert float(built.blobs["data"].data[1].mean()) == 3 + rank
    assert seen == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


@pytest.mark.parametrize(
    ("source", "root", "before"),
    [
        ("list.txt", None, "images/"),
        ("list.txt", None, "./images/"),
        ("list.txt", None, "images//"),
        ("list.txt", None, "images/../images/./"),
        ("list.txt", "./", "images/"),
        ("list.txt", "images/", "../images/"),
        ("list.txt", "ima", "ges/"),
        ("list.txt", "{home}", "/images/"),
        ("list.txt", "{home}/", "./images/"),
        ("list.txt", None, "{home}/./images//"),
        ("lists/../lists/list.txt", None, "./images/"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_names_in_an_image_list_may_be_written_in_any_way_that_caffe_reads(
    home: Path, source: str, root: str | None, before: str, count: int
) -> None:
    """Caffe puts folder and name together as text."""
    write_images(home, 4)
    (home / "lists").mkdir()
    names = [before.format(home=home) + f"{number}.pgm {number}\n" for number in range(4)]
    (home / source).write_text("".join(names))
    folder = "" if root is None else f'root_folder: "{root.format(home=home)}" '
    layer = IMAGES.replace('"list.txt"', f'"{source}" {folder}')
    check_solver(read_solver(without_test(home, layer)), workers=count, split=True)
    for rank in range(count):
        assert read_by_caffe(home, layer, rank, count) == list(range(rank, 4, count))


def test_absolute_and_relative_names_may_stand_in_one_list(home: Path) -> None:
    write_images(home, 4)
    absolute = [f"{home}/images/{number}.pgm {number}\n" for number in (0, 2)]
    relative = [f"./images/{number}.pgm {number}\r\n" for number in (1, 3)]
    for lines in (absolute + relative, relative + absolute):
        (home / "list.txt").write_text("".join(lines))
        assert sorted(read_by_caffe(home, IMAGES, 0, 1)) == [0, 1, 2, 3]


def read_by_caffe(home: Path, layer: str, rank: int, count: int) -> list[int]:
    """The labels of a batch of this worker, in each of which the image has the same value; read in another folder."""
    from speedo.engines.caffe_import import load_caffe

    image, _ = own_lines(home, layer, rank, count)
    lines = Path(image.source).read_text().splitlines()
    files = [image.root_folder + line.rpartition(" ")[0] for line in lines]
    assert all(map(os.path.isabs, files))
    assert all(map(os.path.isfile, files)), files  # Caffe would end this process
    net = caffe_schema().NetParameter()
    data = net.layer.add(name="data", type="ImageData", top=["data", "label"])
    data.image_data_param.CopyFrom(image)
    data.image_data_param.batch_size = 4 // count
    file = home / "read.prototxt"
    file.write_text(str(net))
    built = load_caffe().Net(str(file), load_caffe().TRAIN)
    built.forward()
    labels = [int(label) for label in built.blobs["label"].data]
    assert [int(pixels.mean()) for pixels in built.blobs["data"].data] == labels
    return labels


def own_lines(home: Path, layer: str, rank: int, count: int) -> tuple[Any, list[str]]:
    """The parameter of an ImageData layer of a worker, and the labels in its list."""
    spec = read_solver(without_test(home, layer))
    text = solver_for_worker(spec, rank=rank, count=count, batch_size=2, scratch=home / "own")
    image = parsed(text).train_net_param.layer[0].image_data_param
    return image, [line.split()[-1] for line in Path(image.source).read_text().splitlines()]


def test_shards_of_an_image_list_go_over_its_end_as_those_of_a_database(home: Path) -> None:
    """A database beside it would give other records from the second epoch on."""
    write_images(home, 7)
    for rank, expected in ((0, "0 3 6 2 5 1 4"), (1, "1 4 0 3 6 2 5"), (2, "2 5 1 4 0 3 6")):
        assert own_lines(home, IMAGES, rank, 3)[1] == expected.split()


def test_shards_of_a_shuffled_image_list_have_no_line_in_common(home: Path) -> None:
    write_images(home, 7)
    layer = IMAGES.replace("batch_size", "shuffle: true rand_skip: 6 batch_size")
    found = [own_lines(home, layer, rank, 3) for rank in range(3)]
    assert [lines for _, lines in found] == [["0", "3", "6"], ["1", "4"], ["2", "5"]]
    assert [image.rand_skip for image, _ in found] == [2, 2, 2]
    with pytest.raises(SolverError, match="reads 7 images, fewer than there are workers"):
        own_lines(home, layer, 7, 8)


def test_a_shuffled_hdf5_layer_gets_its_share_of_each_file(home: Path) -> None:
    with h5py.File(home / "a.h5", "w") as file:
        file["data"], file["label"] = np.zeros((5, 1, 8, 8)), np.arange(5)
    (home / "list.txt").write_text("a.h5\n")
    layer = 'type: "HDF5Data" hdf5_data_param { source: "list.txt" shuffle: true batch_size: 4 }'
    spec = read_solver(without_test(home, layer))
    labels = []
    for rank, count in ((0, 2), (1, 2), (0, 1)):
        text = solver_for_worker(spec, rank=rank, count=count, batch_size=2, scratch=home / "own")
        source = parsed(text).train_net_param.layer[0].hdf5_data_param.source
        with h5py.File(Path(source).read_text().strip()) as share:
            labels.append(share["label"][:].tolist())
    assert labels == [[0, 2, 4], [1, 3], [0, 1, 2, 3, 4]]


def test_processes_that_share_a_test_have_one_order_of_the_records(home: Path) -> None:
    with h5py.File(home / "a.h5", "w") as file:
        file["data"], file["label"] = np.zeros((5, 1, 8, 8)), np.arange(5)
    (home / "list.txt").write_text("a.h5\n")
    layer = 'type: "HDF5Data" hdf5_data_param { source: "list.txt" shuffle: true batch_size: 4 }'
    path = write_solver(home, source_net(layer), test_iter=1, random_seed=None)
    for make in (solver_for_scoring, solver_for_tester):
        solver = parsed(make(read_solver(path), scratch=home / "own"))
        assert not solver.test_net_param[0].layer[0].hdf5_data_param.shuffle
    assert parsed(solver_for_scoring(read_solver(path), scratch=home / "own")).random_seed == 0


def test_an_image_list_to_share_needs_a_scratch_folder(home: Path) -> None:
    write_images(home, 4)
    spec = read_solver(without_test(home, IMAGES))
    with pytest.raises(SolverError, match="give a scratch folder"):
        solver_for_worker(spec, rank=0, count=2, batch_size=2)
    whole = parsed(solver_for_worker(spec, rank=0, count=1, batch_size=2))
    assert whole.train_net_param.layer[0].image_data_param.root_folder == f"{home}/"


def test_the_names_in_an_hdf5_list_become_absolute(home: Path) -> None:
    """White space between them is that of C++: a name may hold a no-break space."""
    (home / "list.txt").write_text("./a.h5\x0b../" + home.name + "//b\xa0.h5\n")
    for name in ("a.h5", "b\xa0.h5"):
        (home / name).touch()
    layer = 'type: "HDF5Data" hdf5_data_param { source: "list.txt" batch_size: 4 }'
    spec = read_solver(without_test(home, layer))
    text = solver_for_worker(spec, rank=0, count=2, batch_size=2, scratch=home / "scratch")
    source = Path(parsed(text).train_net_param.layer[0].hdf5_data_param.source)
    assert source.parent == home / "scratch"
    found = source.read_text().removesuffix("\n").split("\n")
    assert [os.path.realpath(name) for name in found] == [
        os.path.realpath(home / name) for name in ("a.h5", "b\xa0.h5")
    ]
