"""Every format of weights gives its arrays by name, and two files are compared value by value."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caffenets
from caffenets.caffe_schema import caffe_pb2
from caffenets.errors import EngineError
from caffenets.weight_files.caffemodel import write_model
from caffenets.weights import differences, read_weights

W = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([0.5, -0.5], np.float32)


def caffemodel(file: Path, **arrays: Any) -> Path:
    """One layer `ip` with these blobs, and one without any."""
    ip = caffe_pb2.LayerParameter(name="ip", type="InnerProduct")
    relu = caffe_pb2.LayerParameter(name="relu", type="ReLU")
    with file.open("wb") as out:
        write_model(out, "net", [(ip, list(arrays.values())), (relu, [])])
    return file


def hdf5(file: Path) -> Path:
    import h5py

    with h5py.File(file, "w") as out:
        layer = out.create_group("data/ip")
        layer.create_dataset("0", data=W)
        layer.create_dataset("1", data=B)
    return file


def npz(file: Path) -> Path:
    np.savez(file, **{"ip/0": W, "ip/1": B})
    return file


def oldest(file: Path) -> Path:
    """A net of Caffe's first format, whose blobs have four sizes and no shape."""
    net = caffe_pb2.NetParameter(name="net")
    layer = net.layers.add(bottom=["data"], top=["ip"]).layer
    layer.name, layer.type = "ip", "innerproduct"
    for values in (W, B):
        sizes = (1,) * (4 - values.ndim) + values.shape
        num, channels, height, width = sizes
        layer.blobs.add(num=num, channels=channels, height=height, width=width, data=values.ravel())
    file.write_bytes(net.SerializeToString())
    return file


@pytest.mark.parametrize(
    "made",
    [
        lambda folder: caffemodel(folder / "net.caffemodel", w=W, b=B),
        lambda folder: hdf5(folder / "net.caffemodel.h5"),
        lambda folder: npz(folder / "net.npz"),
        lambda folder: oldest(folder / "old.caffemodel"),
    ],
    ids=["caffemodel", "hdf5", "npz", "first format"],
)
def test_each_format_gives_the_same_arrays_by_name(tmp_path: Path, made: Any) -> None:
    found = read_weights(made(tmp_path))
    assert list(found) == ["ip/0", "ip/1"]
    for name, values in (("ip/0", W), ("ip/1", B)):
        np.testing.assert_array_equal(found[name].read().reshape(values.shape), values)


@pytest.mark.torch
def test_state_dicts_and_onnx_are_told_apart_by_their_content_and_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    onnx = pytest.importorskip("onnx")
    state = {"ip.weight": torch.from_numpy(W.copy())}
    for new in (True, False):
        torch.save(state, tmp_path / "state.pth", _use_new_zipfile_serialization=new)
        np.testing.assert_array_equal(read_weights(tmp_path / "state.pth")["ip.weight"].read(), W)
    graph = onnx.helper.make_graph(
        [], "net", [], [], [onnx.numpy_helper.from_array(W, "ip.weight")]
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "net.onnx")
    np.testing.assert_array_equal(read_weights(tmp_path / "net.onnx")["ip.weight"].read(), W)


def test_differences_are_named_with_how_far_values_are_apart(tmp_path: Path) -> None:
    first = caffenets.read_weights(caffemodel(tmp_path / "a.caffemodel", w=W, b=B))
    other = W.copy()
    other[1, 2] += 0.5
    second = caffenets.read_weights(caffemodel(tmp_path / "b.caffemodel", w=other, b=B[:1]))
    found = {one.name: one for one in differences(first, second)}
    assert found["ip/0"].apart == pytest.approx(0.1)
    assert found["ip/0"].text == "1 of 6 values differ, by up to 1.0e-01 of the largest"
    assert found["ip/1"].text == "has two shapes: 2 and 1"
    assert list(differences(first, first)) == []
    del second["ip/1"]
    assert [one.text for one in differences(second, first)][-1] == "only in the second file, 2"


def test_values_that_are_not_finite_differ_from_all_others_but_their_like(tmp_path: Path) -> None:
    nan = np.array([np.nan, np.inf], np.float32)
    first = read_weights(caffemodel(tmp_path / "a.caffemodel", w=nan))
    assert list(differences(first, first)) == []
    second = read_weights(caffemodel(tmp_path / "b.caffemodel", w=B))
    (one,) = differences(first, second)
    assert one.text.startswith("2 of 2 values differ")
    assert one.apart is None or not one.apart <= 1.0, "no tolerance takes it for equal"


def test_the_command_shows_and_compares(tmp_path: Path, run: Any) -> None:
    first = caffemodel(tmp_path / "a.caffemodel", w=W, b=B)
    second = caffemodel(tmp_path / "b.caffemodel", w=W * np.float32(1.01), b=B)
    status, out, _ = run("show", first)
    assert (status, out.splitlines()[-1]) == (0, "2 arrays, 8 values, 0.0 MB as float32")
    status, out, _ = run("show", "--json", first)
    assert json.loads(out.splitlines()[0]) == {"name": "ip/0", "shape": [2, 3], "values": 6}
    assert run("diff", first, first)[:2] == (0, "0 of 2 arrays differ\n")
    status, out, _ = run("diff", first, second)
    assert (status, out.splitlines()[-1]) == (1, "1 of 2 arrays differ")
    assert run("diff", "--within", "0.02", first, second)[0] == 0
    status, out, _ = run("diff", "--json", first, second)
    assert json.loads(out)["apart"] == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    "content",
    [
        b"\x89HDF\r\n\x1a\n" + b"\0" * 40,
        b"PK\x03\x04" + b"\0" * 60,
        b"\x80\x02}q\0",
        b"layer { }",
    ],
    ids=["HDF5", "archive", "pickle", "text"],
)
def test_a_file_that_is_none_is_refused_in_a_sentence(
    tmp_path: Path, run: Any, content: bytes
) -> None:
    file = tmp_path / "net.caffemodel"
    file.write_bytes(content)
    status, out, err = run("show", file)
    assert (status, out) == (2, "")
    assert err.startswith(f"caffenets: {file}")
    assert err.count("\n") == 1
    with pytest.raises(EngineError):
        read_weights(tmp_path / "nothing")


@pytest.mark.processes
def test_reading_weights_loads_nothing_but_numpy_and_protobuf(tmp_path: Path) -> None:
    file = caffemodel(tmp_path / "a.caffemodel", w=W)
    script = (
        "import sys, caffenets; before = 'numpy' in sys.modules; caffenets.read_weights(sys.argv[1]); "
        "print(before, sorted({'speedo', 'ray', 'redis', 'torch', 'onnx', 'caffe', 'h5py'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, file], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False []\n"


def test_an_array_is_read_only_when_it_is_asked_for(tmp_path: Path) -> None:
    file = caffemodel(tmp_path / "a.caffemodel", w=W)
    found = read_weights(file)
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(EngineError, match=r"a\.caffemodel"):
        found["ip/0"].read()
