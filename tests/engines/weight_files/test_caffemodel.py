"""Trained nets are read and written as plain Caffe reads and writes them, from its oldest format to HDF5."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from google.protobuf import text_format

from caffenets.caffe_schema import caffe_pb2 as ours
from caffenets.weight_files import caffemodel
from caffenets.weight_files.caffemodel import matched, read_model, write_model
from caffenets.weight_files.stored import Stored
from speedo.engines.caffe_import import load_caffe
from speedo.engines.snapshot_hdf5 import write_model_hdf5
from speedo.engines.weights_check import check_weights
from speedo.errors import EngineError, SolverError
from speedo.exchange.vector import Blob, Layout

NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "gaussian" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" param { lr_mult: 0 } param { lr_mult: 0 }
  param { lr_mult: 0 } batch_norm_param { use_global_stats: false } }
layer { name: "scale" type: "Scale" bottom: "bn" top: "scale" scale_param { bias_term: true } }
layer { name: "ip" type: "InnerProduct" bottom: "scale" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } bias_filler { type: "gaussian" } } }
"""
SHARED = """
name: "shared"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 8 } } }
layer { name: "first" type: "InnerProduct" bottom: "data" top: "first" param { name: "w" }
  inner_product_param { num_output: 8 weight_filler { type: "xavier" } bias_filler { type: "gaussian" } } }
layer { name: "second" type: "InnerProduct" bottom: "first" top: "second" param { name: "w" }
  inner_product_param { num_output: 8 weight_filler { type: "xavier" } bias_filler { type: "gaussian" } } }
"""
SHAPES = {
    "conv": [(4, 3, 3, 3), (4,)],
    "bn": [(4,), (4,), (1,)],
    "scale": [(4,), (4,)],
    "ip": [(5, 64), (5,)],
}


def built(folder: Path, text: str = NET) -> Any:
    """The net in Caffe, in which a forward pass has moved the statistics."""
    caffe = load_caffe()
    caffe.set_mode_cpu()
    (folder / "net.prototxt").write_text(text)
    net = caffe.Net(str(folder / "net.prototxt"), caffe.TRAIN)
    net.blobs["data"].data[...] = np.random.default_rng(1).normal(size=net.blobs["data"].data.shape)
    net.forward()
    return net


def blobs(net: Any) -> list[tuple[str, int, tuple[int, ...]]]:
    return [
        (name, index, tuple(blob.data.shape))
        for name, held in net.params.items()
        for index, blob in enumerate(held)
    ]


def values(net: Any) -> dict[tuple[str, int], np.ndarray]:
    return {
        (name, index): blob.data.copy()
        for name, held in net.params.items()
        for index, blob in enumerate(held)
    }


def assert_equal(found: dict[tuple[str, int], Any], expected: dict[tuple[str, int], Any]) -> None:
    assert found.keys() == expected.keys()
    for which, array in expected.items():
        one = found[which].read() if isinstance(found[which], Stored) else found[which]
        assert one.dtype == np.float32
        np.testing.assert_array_equal(one, array, err_msg=str(which))


def loads(folder: Path, file: Path) -> subprocess.CompletedProcess[str]:
    """Plain Caffe loads the file into the net of `folder` in a process of its own, and saves its values."""
    script = (
        "import sys, caffe, numpy; net = caffe.Net(sys.argv[1], caffe.TRAIN); net.copy_from(sys.argv[2]);"
        "numpy.savez(sys.argv[3], **{f'{name}:{i}': blob.data for name, blobs in net.params.items()"
        " for i, blob in enumerate(blobs)})"
    )
    return subprocess.run(
        [sys.executable, "-c", script, "net.prototxt", str(file), "loaded.npz"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def loaded_by_caffe(folder: Path, file: Path) -> dict[tuple[str, int], np.ndarray]:
    child = loads(folder, file)
    assert child.returncode == 0, child.stderr
    with np.load(folder / "loaded.npz") as found:
        return {(key.split(":")[0], int(key.split(":")[1])): found[key] for key in found}


@pytest.mark.caffe
@pytest.mark.parametrize("hdf5", [False, True])
@pytest.mark.parametrize("text", [NET, SHARED])
def test_what_caffe_saves_is_read_to_the_bit(tmp_path: Path, text: str, hdf5: bool) -> None:
    net = built(tmp_path, text)
    file = tmp_path / ("net.caffemodel.h5" if hdf5 else "net.caffemodel")
    (net.save_hdf5 if hdf5 else net.save)(str(file))
    found = matched(read_model(file), blobs(net), layers=net._layer_names, shared=[("second", 0)])
    expected = values(net)
    if hdf5 and text is SHARED:
        del expected["second", 0]  # Caffe writes it once
    assert_equal(found, expected)


@pytest.mark.caffe
@pytest.mark.parametrize("schema", ["caffe", "ours"])
@pytest.mark.parametrize("text", [NET, SHARED])
def test_caffe_loads_what_is_written(tmp_path: Path, text: str, schema: str) -> None:
    net = built(tmp_path, text)
    kind = ours if schema == "ours" else load_caffe().proto.caffe_pb2
    layers = text_format.Parse(text, kind.NetParameter()).layer
    wanted = values(net)
    random = np.random.default_rng(2)
    for (name, index), array in wanted.items():
        array[...] = random.normal(size=array.shape)
        if (name, index) == ("second", 0):
            array[...] = wanted["first", 0]
    file = tmp_path / "written.caffemodel"
    with file.open("wb", buffering=0) as out:
        write_model(
            out,
            "small",
            [(one, [v for (n, _), v in wanted.items() if n == one.name]) for one in layers],
        )
    assert_equal(loaded_by_caffe(tmp_path, file), wanted)
    assert_equal(matched(read_model(file), blobs(net)), wanted)
    parsed = load_caffe().proto.caffe_pb2.NetParameter.FromString(file.read_bytes())
    assert parsed.name == "small"
    assert [(one.name, one.type) for one in parsed.layer] == [
        (one.name, one.type) for one in layers
    ]
    assert not layers[1].blobs  # the caller's message is left as it was


def legacy(proto: Any, array: np.ndarray, field: str = "data") -> None:
    """Values as old Caffe wrote them: with four numbers for a shape."""
    shape = (1,) * (4 - array.ndim) + array.shape
    proto.num, proto.channels, proto.height, proto.width = shape
    getattr(proto, field).extend(array.ravel().tolist())


def v1(caffe_pb2: Any, wanted: dict[tuple[str, int], np.ndarray]) -> Any:
    net = caffe_pb2.NetParameter(name="old")
    for name, kind in (("conv", "CONVOLUTION"), ("ip", "INNER_PRODUCT"), ("relu", "RELU")):
        layer = net.layers.add(name=name, type=caffe_pb2.V1LayerParameter.LayerType.Value(kind))
        for (owner, _), array in wanted.items():
            if owner == name:
                legacy(layer.blobs.add(), array)
    return net


def v0(caffe_pb2: Any, wanted: dict[tuple[str, int], np.ndarray]) -> Any:
    net = caffe_pb2.NetParameter(name="oldest", input=["data"], input_dim=[2, 3, 6, 6])
    for name, kind in (("pad", "padding"), ("conv", "conv"), ("ip", "innerproduct")):
        layer = net.layers.add(bottom=["data"], top=["data"]).layer
        layer.name, layer.type = name, kind
        for (owner, _), array in wanted.items():
            if owner == name:
                legacy(layer.blobs.add(), array)
    return net


def doubles(caffe_pb2: Any, wanted: dict[tuple[str, int], np.ndarray]) -> Any:
    net = caffe_pb2.NetParameter()
    for (name, index), array in wanted.items():
        if name in ("conv", "ip"):
            if not index:
                layer = net.layer.add(name=name)
            legacy(layer.blobs.add(), array, "double_data")
    return net


@pytest.mark.caffe
@pytest.mark.parametrize("make", [v1, v0, doubles])
def test_old_formats_are_read_as_caffe_upgrades_them(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    net = built(tmp_path)
    started = values(net)
    wanted = {which: array + 1 for which, array in started.items() if which[0] in ("conv", "ip")}
    file = tmp_path / "old.caffemodel"
    file.write_bytes(make(load_caffe().proto.caffe_pb2, wanted).SerializeToString())
    found = matched(read_model(file), blobs(net), layers=net._layer_names)
    assert_equal(found, wanted)
    by_caffe = loaded_by_caffe(tmp_path, file)
    assert_equal(found, {which: by_caffe[which] for which in wanted})


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7]) if value > 0x7F else bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


@pytest.mark.caffe
@pytest.mark.parametrize("packed", [False, True])
def test_values_in_several_pieces_are_read(tmp_path: Path, packed: bool) -> None:
    numbers = np.arange(6, dtype="<f4")
    if packed:
        data = field(5, numbers[:2].tobytes()) + field(5, numbers[2:].tobytes())
    else:
        data = b"".join(bytes([5 << 3 | 5]) + number.tobytes() for number in numbers)
    blob = field(7, bytes([8, 2, 8, 3])) + data  # the shape is not packed either
    content = field(1, b"net") + field(100, field(1, b"ip") + field(7, blob))
    file = tmp_path / "pieces.caffemodel"
    file.write_bytes(content)
    theirs = load_caffe().proto.caffe_pb2.NetParameter.FromString(content)
    assert list(theirs.layer[0].blobs[0].data) == [0, 1, 2, 3, 4, 5]
    (layer,) = read_model(file).layers
    (array,) = layer.blobs
    assert layer.name == "ip"
    assert array is not None
    np.testing.assert_array_equal(array.read(), [[0, 1, 2], [3, 4, 5]])


Layers = list[tuple[str, list[tuple[int, ...]]]]


def wants(
    shapes: dict[str, list[tuple[int, ...]]] = SHAPES,
) -> list[tuple[str, int, tuple[int, ...]]]:
    return [
        (name, index, shape) for name, held in shapes.items() for index, shape in enumerate(held)
    ]


def saved(folder: Path, layers: Layers, *, old: bool = False) -> Path:
    """Zeros of these shapes in a file, as Caffe of its time wrote them."""
    net = ours.NetParameter()
    for number, (name, shapes) in enumerate(layers):
        message = net.layer.add(name=name)
        for shape in shapes:
            array = np.full(shape, number, np.float32)
            if old:
                legacy(message.blobs.add(), array)
            else:
                blob = message.blobs.add(data=array.ravel())
                blob.shape.dim.extend(array.shape)
    file = folder / "some.caffemodel"
    file.write_bytes(net.SerializeToString())
    return file


@pytest.mark.caffe
@pytest.mark.parametrize(
    ("layers", "old", "words"),
    [
        ([("elsewhere", [(9,)])], False, None),
        ([("ip", SHAPES["ip"]), ("relu7", [])], False, None),
        ([("ip", [(1, 1, 5, 64), (1, 1, 1, 5)])], True, None),
        ([("bn", [(1, 1, 1, 4), (1, 1, 1, 4), (1, 1, 1, 1)])], True, None),
        ([("ip", [(1, 1, 5, 64), (1, 1, 1, 5)])], False,
         ("blob 0 of layer 'ip' is 5 x 64 in this net, but 1 x 1 x 5 x 64 in the weights: give the weights of this "
          "net, or rename the layer to train it from its fillers")),
        ([("ip", [(5, 64, 1, 1), (1, 1, 1, 5)])], True, "is 5 x 64 in this net, but 5 x 64 x 1 x 1 in"),
        ([("ip", [(5, 64), (6,)])], False, "blob 1 of layer 'ip' is 5 in this net, but 6 in the weights"),
        ([("ip", [(64, 5), (5,)])], False, "blob 0 of layer 'ip' is 5 x 64 in this net, but 64 x 5 in the weights"),
        ([("ip", [(5, 64)])], False, "layer 'ip' has 2 blobs in this net, but 1 blob in the weights: give"),
        ([("ip", [])], False, "layer 'ip' has 2 blobs in this net, but 0 blobs in the weights"),
        ([("ip", [(5, 64), (5,), (1,)])], False, "layer 'ip' has 2 blobs in this net, but 3 blobs in the weights"),
        ([("data", [(1,)])], False, "layer 'data' has 0 blobs in this net, but 1 blob in the weights"),
    ],
)  # fmt: skip
def test_weights_match_a_net_where_caffe_would_load_them(
    tmp_path: Path, layers: Layers, old: bool, words: str | None
) -> None:
    file = saved(tmp_path, layers, old=old)
    (tmp_path / "net.prototxt").write_text(NET)
    found = read_model(file)
    assert loads(tmp_path, file).returncode == (0 if words is None else -6)
    if words is None:
        matched(found, wants(), layers=["data"])
    else:
        with pytest.raises(EngineError) as caught:
            matched(found, wants(), layers=["data"])
        assert str(caught.value).startswith(f"{file}: ")
        assert words in str(caught.value)


def test_a_layer_that_is_there_twice_gives_its_last_values(tmp_path: Path) -> None:
    twice = read_model(saved(tmp_path, [("a", [(3,)]), ("b", [(3,)]), ("a", [(3,)])]))
    found = matched(twice, [("a", 0, (3,)), ("b", 0, (3,))])
    assert list(found) == [("b", 0), ("a", 0)]
    np.testing.assert_array_equal(found["a", 0].read(), [2, 2, 2])


def test_only_hdf5_may_lack_a_shared_blob(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "shared.caffemodel.h5", "w") as out:
        out["data/second/1"] = np.ones(2, np.float32)
    hdf5 = read_model(tmp_path / "shared.caffemodel.h5")
    binary = read_model(saved(tmp_path, [("second", [(2,)])]))
    net = [("second", 0, (2, 2)), ("second", 1, (2,))]
    assert list(matched(hdf5, net, shared=[("second", 0)])) == [("second", 1)]
    for held, shared in ((hdf5, []), (binary, [("second", 0)])):
        with pytest.raises(EngineError, match="has 2 blobs in this net, but 1 blob in the weights"):
            matched(held, net, shared=shared)


def test_layers_with_a_slash_in_their_name_come_back_from_hdf5(tmp_path: Path) -> None:
    layout = Layout((Blob("conv1/7x7/0", (2, 3)), Blob("conv1/7x7/1", (2,)), Blob("conv1/0", (1,))))
    weights = np.arange(9, dtype=np.float32)
    file = tmp_path / "slash.caffemodel.h5"
    with file.open("w+b") as out:
        write_model_hdf5(["data", "conv1/7x7", "conv1"], layout, weights, out)
    found = matched(
        read_model(file),
        [("conv1/7x7", 0, (2, 3)), ("conv1/7x7", 1, (2,)), ("conv1", 0, (1,))],
        layers=["data"],
    )
    assert_equal(
        found,
        {
            ("conv1", 0): weights[8:],
            ("conv1/7x7", 0): weights[:6].reshape(2, 3),
            ("conv1/7x7", 1): weights[6:8],
        },
    )


def test_values_in_hdf5_are_read_from_other_kinds_of_numbers(tmp_path: Path) -> None:
    file = tmp_path / "kinds.caffemodel.h5"
    with h5py.File(file, "w") as out:
        out["data/ip/0"] = np.array([0.1, 0.2], ">f8")
        out["data/ip/1"] = np.arange(2)
    ((first, second),) = (layer.blobs for layer in read_model(file).layers)
    assert_equal(
        {("ip", 0): first, ("ip", 1): second},
        {("ip", 0): np.array([0.1, 0.2], np.float32), ("ip", 1): np.array([0, 1], np.float32)},
    )
    with h5py.File(file, "a") as out:
        out["data/ip/2"] = "a text"
    with pytest.raises(EngineError, match="has values of the type object in /data/ip/2"):
        read_model(file)


def damaged(content: bytes, number: int) -> bytes:
    """The content with a fault of its own for each number: cut, a byte changed, or bytes taken out."""
    random = np.random.default_rng(number)
    place = int(random.integers(1, len(content)))
    if number % 3 == 0:
        return content[:place]
    if number % 3 == 1:
        return content[:place] + bytes([int(random.integers(256))]) + content[place + 1 :]
    return content[:place] + content[place + int(random.integers(1, 40)) :]


@pytest.mark.parametrize("hdf5", [False, True])
def test_a_damaged_file_is_read_or_refused_in_words(tmp_path: Path, hdf5: bool) -> None:
    file = saved(tmp_path, list(SHAPES.items()))
    if hdf5:
        with h5py.File(tmp_path / "whole.h5", "w") as out:
            for name, shapes in SHAPES.items():
                for index, shape in enumerate(shapes):
                    out[f"data/{name}/{index}"] = np.zeros(shape, np.float32)
        file = tmp_path / "whole.h5"
    content = file.read_bytes()
    refused = []
    for number in range(300):
        file.write_bytes(damaged(content, number))
        try:
            read_model(file)
        except EngineError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert {said.partition(" ")[0] for said in refused} == {str(file)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"name: 'a net in text'\n",
         "is not a .caffemodel, or a truncated one (a field has a kind that protobuf does not have): give"),
        (field(100, field(1, b"ip"))[:-1], "is not a .caffemodel, or a truncated one"),
        (field(100, field(1, b"ip")) + b"\xa2\x06\xff\xff\xff\xff\xff\xff\x7f", "is not a .caffemodel, or"),
        (field(100, field(1, b"ip") + field(7, field(7, field(1, b"\x04")) + field(5, bytes(12)))),
         "is damaged: blob 0 of layer 'ip' holds 3 values, but its shape is 4"),
        (field(100, field(1, b"ip")) + field(2, field(4, b"ip")), "has layers in two formats"),
        (b"\x89HDF\r\n\x1a\n and then nothing", "is not a .caffemodel.h5, or a truncated one"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "some.caffemodel"
    file.write_bytes(content)
    with pytest.raises(EngineError) as caught:
        read_model(file)
    assert str(caught.value).startswith(f"{file} {words}")


def test_a_file_beyond_protobufs_limit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large.caffemodel"
    with file.open("wb") as out:
        out.write(b"\n\x03net")
        out.truncate(2**31)
    with pytest.raises(
        EngineError, match=r"has 2,147,483,648 bytes, but a .caffemodel ends at 2,147,483,647"
    ):
        read_model(file)


def test_a_model_beyond_protobufs_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [(ours.LayerParameter(name="ip"), [np.zeros(100, np.float32)])]
    whole = io.BytesIO()
    write_model(whole, "net", layers)
    size = len(whole.getvalue())
    monkeypatch.setattr(caffemodel, "LIMIT", size)
    write_model(io.BytesIO(), "net", layers)
    monkeypatch.setattr(caffemodel, "LIMIT", size - 1)
    none = io.BytesIO()
    with pytest.raises(EngineError, match=rf"the model has {size} bytes.*snapshot_format: HDF5"):
        write_model(none, "net", layers)
    assert not none.getvalue()


def test_weights_of_another_net_are_refused_in_either_format(tmp_path: Path) -> None:
    binary = saved(tmp_path, [("conv", [(4,)])])
    hdf5 = tmp_path / "some.caffemodel.h5"
    with h5py.File(hdf5, "w") as out:
        out["data/conv/0"] = np.zeros(4, np.float32)
    for file in (binary, hdf5):
        check_weights(file, ["data", "conv"])
        with pytest.raises(
            SolverError, match=f"^weights {file} has no layer of this net, only conv"
        ):
            check_weights(file, ["data", "fc"])
    with pytest.raises(SolverError, match=r"^weights .*/none cannot be read \(No such file"):
        check_weights(tmp_path / "none", ["data"])
    with pytest.raises(SolverError, match="holds no parameters: give another --weights"):
        check_weights(saved(tmp_path, [("conv", [])]), ["conv"])
