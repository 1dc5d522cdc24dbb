"""Nets of ONNX become nets of plain Caffe layers that compute the same, or each node that cannot is named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caffenets
from caffenets.errors import NetError
from caffenets.export.differences import difference
from caffenets.from_onnx.importing import import_net

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.torch

# Those of BVLC's Caffe 1.0 of 2017
PLAIN = set(
    """AbsVal BatchNorm Bias BNLL Concat Convolution Deconvolution ELU Eltwise Exp Flatten InnerProduct Input Log LRN
    Pooling Power PReLU ReLU Reduction Reshape Scale Sigmoid Silence Slice Softmax TanH Tile""".split()  # noqa: SIM905
)
Shape = tuple[int, ...]
IMAGE: Shape = (3, 4, 9, 8)  # three records
Weights = Mapping[str, Any]


def save(
    file: Path,
    nodes: str,
    weights: Weights,
    dims: Sequence[int | str | None] = ("batch", *IMAGE[1:]),
    opset: int = 17,
    outputs: Sequence[str] = ("y",),
) -> Path:
    """An ONNX file of these nodes, one a line; of `weights` a tuple is the shape of random ones."""
    rng, held = np.random.default_rng(2), []
    for name, given in weights.items():
        if isinstance(given, tuple):
            values = rng.uniform(0.5, 1.5, given).astype(np.float32)
            values *= rng.choice([-1, 1], given) if name in "wb" else 1
        else:
            values = np.array(given, np.float32 if isinstance(given, float) else None)
        held.append(onnx.numpy_helper.from_array(values, name))
    made = [onnx.parser.parse_node(line) for line in nodes.strip().splitlines()]
    of = onnx.helper.make_tensor_value_info
    ends = [of(name, 1, None) for name in outputs]
    graph = onnx.helper.make_graph(made, "net", [of("x", 1, dims)], ends, held)
    opsets = [onnx.helper.make_opsetid(*one) for one in (("", opset), ("com.acme", 1))]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    file.write_bytes(model.SerializeToString())
    return file


def take(file: Path, scratch: Path, **given: Shape) -> list[str]:
    return list(import_net(file, file.with_suffix(".prototxt"), given, "not compared", scratch))


def types_of(net: Path) -> list[str]:
    return [str(layer.type) for layer in caffenets.read_net(net).layer]


def apart(file: Path, shape: Shape) -> float:
    """How far the imported net is from ONNX Runtime, in its largest output."""
    import torch

    record = np.random.default_rng(3).standard_normal(shape, np.float32)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    theirs = dict(zip(names, session.run(names, {"x": record}), strict=True))
    module = caffenets.load(file.with_suffix(".prototxt"), file.with_suffix(".caffemodel"))
    with torch.no_grad():
        ours = {name: one.numpy() for name, one in module(torch.from_numpy(record)).items()}
    assert ours.keys() == theirs.keys()
    return difference(ours, theirs, "net", "ONNX Runtime")


C: Shape = (4, 1, 1)
CASES: dict[str, tuple[Any, ...]] = {
    "conv": ("y = Conv<pads=[1,2,1,2], strides=[2,1], dilations=[1,2]>(x, w, b)", {"w": (6, 4, 3, 3), "b": (6,)}),
    "conv groups": ("y = Conv<group=2>(x, w)", {"w": (6, 2, 3, 2)}),
    "conv one-sided": ("y = Conv<pads=[0,2,1,0], strides=[2,1]>(x, w, b)", {"w": (6, 4, 3, 3), "b": (6,)}),
    "conv one-sided, dilated": ("y = Conv<pads=[0,3,2,0], dilations=[2,2]>(x, w)", {"w": (6, 4, 3, 3)}),
    "conv same upper": ('y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)', {"w": (6, 4, 3, 3)}),
    "conv same lower": ('y = Conv<auto_pad="SAME_LOWER">(x, w)', {"w": (6, 4, 2, 4)}),
    "conv valid": ('y = Conv<auto_pad="VALID">(x, w)', {"w": (6, 4, 2, 4)}),
    "conv 1-d": ("y = Conv<pads=[1,0], strides=[2]>(x, w, b)", {"w": (6, 4, 3), "b": (6,)}, (3, 4, 9)),
    "deconv": ("y = ConvTranspose<pads=[1,1,1,1], strides=[2,2]>(x, w, b)", {"w": (4, 6, 4, 4), "b": (6,)}),
    "deconv one-sided": (
        "y = ConvTranspose<pads=[0,1,1,0], strides=[3,2], output_padding=[1,1], group=2>(x, w)", {"w": (4, 3, 3, 4)}
    ),
    "deconv dilated": (
        "y = ConvTranspose<pads=[0,1,1,0], strides=[2,2], dilations=[2,3], output_padding=[1,0]>(x, w)",
        {"w": (4, 3, 3, 2)},
    ),
    "batch norm": (
        "y = BatchNormalization<epsilon=0.01>(x, s, b, m, v)", {"s": (4,), "b": (4,), "m": (4,), "v": (4,)}
    ),
    "activations": ("a = Relu(x)\nb = Tanh(a)\nc = Sigmoid(b)\nd = Neg(c)\ne = Elu<alpha=0.5>(d)\ny = Exp(e)", {}),
    "leaky": ("y = LeakyRelu<alpha=0.2>(x)", {}), "prelu": ("y = PRelu(x, s)", {"s": C}),
    "prelu shared": ("y = PRelu(x, s)", {"s": (1,)}), "softplus": ("y = Softplus(x)", {}),
    "log": ("a = Abs(x)\nb = Add(a, o)\nc = Log(b)\nd = Sqrt(b)\ne = Reciprocal(d)\ny = Sum(c, d, e)", {"o": 1.0}),
    "clip": ("y = Clip(x, l, h)", {"l": -0.5, "h": 0.75}), "relu6": ("y = Clip(x, l, h)", {"l": 0.0, "h": 1.0}),
    "clip below": ("y = Clip(x, l)", {"l": -0.5}), "clip above": ("y = Clip(x, , h)", {"h": 0.5}),
    "clip of opset 6": ("y = Clip<min=-0.25, max=0.5>(x)", {}, IMAGE, 10),
    "hard": ("a = HardSigmoid<alpha=0.3>(x)\nb = HardSwish(a)\ny = Add(a, b)", {}),
    "max pool": ("y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)", {}),
    "max pool up": ("y = MaxPool<kernel_shape=[2,3], strides=[2,2], ceil_mode=1>(x)", {}),
    "max pool same": ('y = MaxPool<kernel_shape=[2,2], auto_pad="SAME_UPPER">(x)', {}),
    "max pool end": ("y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[0,0,1,1]>(x)", {}),
    "max pool 1-d": ("y = MaxPool<kernel_shape=[3], strides=[2], pads=[1,1]>(x)", {}, (3, 4, 9)),
    "average": ("y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)", {}),
    "average with pads": (
        "y = AveragePool<kernel_shape=[3,3], strides=[1,2], pads=[1,1,1,1], count_include_pad=1>(x)", {}
    ),
    "average one-sided": ("y = AveragePool<kernel_shape=[3,2], strides=[2,1], pads=[0,0,1,1]>(x)", {}),
    "average up": ("y = AveragePool<kernel_shape=[2,3], strides=[2,3], ceil_mode=1>(x)", {}),
    "global": ("a = GlobalAveragePool(x)\nb = GlobalMaxPool(x)\ny = Concat<axis=1>(a, b)", {}),
    "global 1-d": ("y = GlobalAveragePool(x)", {}, (3, 4, 9)),
    "means": (("a = ReduceMean<axes=[2,3], keepdims=0>(x)\nb = ReduceMean<axes=[-1], keepdims=0>(x)\n"
              "c = ReduceMax<axes=[2,3], keepdims=0>(x)\nd = Flatten(b)\ny = Concat<axis=1>(a, c, d)"), {}),
    "sum of opset 13": ("y = ReduceSum(x, a)", {"a": [1, 2, 3]}),
    "gemm": ("a = Flatten(x)\ny = Gemm<transB=1, alpha=0.5>(a, w, b)", {"w": (5, 288), "b": (5,)}),
    "matmul": ("a = MatMul(x, w)\ny = Add(a, b)", {"w": (8, 5), "b": (5,)}),
    "shapes": (("s = Shape(x)\nn = Gather(s, z)\nu = Unsqueeze(n, z1)\nc = Concat<axis=0>(u, m)\na = Reshape(x, c)\n"
               "y = Gemm(a, w)"), {"z": np.int64(0), "z1": [0], "m": [-1], "w": (288, 2)}),
    "squeeze": ("a = GlobalAveragePool(x)\nb = Squeeze(a, e)\nc = Unsqueeze(b, f)\ny = Mul(c, x)",
                {"e": [2, 3], "f": [2, 3]}),
    "arithmetic": ("a = Mul(x, c)\nb = Add(a, d)\ne = Sub(x, b)\nf = Sub(o, e)\ng = Div(f, c)\ny = Pow(g, p)",
                   {"c": C, "d": (8,), "o": 2.0, "p": 2.0}),
    "two blobs": ("a = Relu(x)\nb = Mul(x, a)\nc = Max(b, x)\nd = Sub(c, a)\ny = Min(d, x)", {}),
    "three of one shape": ("a = Relu(x)\nb = Neg(x)\nc = Sum(a, b, x)\ny = Max(c, b, x)", {}),
    "max with constants": ("a = Max(x, c)\ny = Min(a, h)", {"c": C, "h": 1.25}),
    "divided": ("a = Exp(x)\nb = ReduceSum(a, e)\ny = Div(a, b)", {"e": [1, 2, 3]}),
    "stretched": ("a = Slice(x, s, t, e)\nb = Mul(x, a)\nc = Slice(x, s, t, f)\ny = Add(b, c)",
                  {"s": [1], "t": [2], "e": [1], "f": [3]}),
    "softmax": ("a = Flatten(x)\ny = Softmax(a)", {}), "softmax of channels": ("y = Softmax<axis=1>(x)", {}),
    "softmax of opset 11": ("y = Softmax(x)", {}, IMAGE, 11), "log softmax": ("y = LogSoftmax<axis=1>(x)", {}),
    "lrn": ("y = LRN<size=3, alpha=0.1, beta=0.5, bias=2.0>(x)", {}),
    "split": ("a, b = Split<axis=1>(x, s)\nc = Relu(a)\nd = Neg(b)\ny = Concat<axis=1>(d, c)", {"s": [1, 3]}),
    "slice": ("y = Slice(x, s, e, a, t)",
              {"s": [1, -7, 0], "e": [9223372036854775807, -1, 3], "a": [2, 3, 1], "t": [1, 1, 1]}),
    "gather": ("y = Gather<axis=1>(x, i)", {"i": [2]}),
    "pad before conv": ("a = Pad(x, p)\ny = Conv<pads=[1,0,0,0]>(a, w)",
                        {"p": [0, 0, 1, 2, 0, 0, 0, 1], "w": (6, 4, 3, 3)}),
    "pad": ("a = Pad(x, p)\ny = MaxPool<kernel_shape=[3,3]>(a)", {"p": [0, 0, 0, 2, 0, 0, 1, 1]}),
    "pad that cuts": ("y = Pad(x, p)", {"p": [0, 0, -1, 2, 0, 0, 0, -3]}),
    "transpose": ("a = Reshape(x, s)\nb = Transpose<perm=[0,2,1,3,4]>(a)\ny = Reshape(b, t)",
                  {"s": [0, 2, 2, 9, 8], "t": [0, 4, 9, 8]}),
    "channels last": ("y = Transpose<perm=[0,2,3,1]>(x)", {}),
    "resize": ('y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , s)',
               {"s": np.array([1, 1, 2, 3], np.float32)}),
    "resize to sizes": ('h = Shape<start=0, end=2>(x)\nt = Concat<axis=0>(h, s)\ny = Resize(x, , , t)',
                        {"s": [27, 16]}),
    "upsample": ("y = Upsample(x, s)", {"s": np.array([1, 1, 2, 1], np.float32)}, IMAGE, 9),
    "in place": ("a = Conv(x, w)\nb = Relu(a)\nc = Clip(b, l, h)\nd = Add(c, a)\ny = Relu(d)",
                 {"w": (4, 4, 1, 1), "l": 0.0, "h": 1.0}),
    "aliases": ("a = Relu(x)\nb = Identity(a)\nc = Dropout(b)\ny = Identity(c)", {}),
    "input as output": ("y = Identity(x)", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_node_computes_as_in_onnx(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    nodes, weights, shape, opset = (*case, *(IMAGE, 17)[len(case) - 2 :])
    file = save(tmp_path / "net.onnx", nodes, weights, ("batch", *shape[1:]), opset)
    take(file, tmp_path)
    assert set(types_of(file.with_suffix(".prototxt"))) <= PLAIN
    assert apart(file, shape) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_windows_of_any_kind_compute_as_in_onnx(seed: int, tmp_path: Path) -> None:
    rng, tried = np.random.default_rng(seed), 0
    while tried < 12:
        op = rng.choice(["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
        kernel, strides = rng.integers(1, 5, (2, 2)).tolist()
        pads, dilations = rng.integers(0, 4, 4).tolist(), rng.integers(1, 4, 2).tolist()
        options, weights = f"strides={strides}, pads={pads}", {}
        if op.startswith("Conv"):
            weights = {"w": (4, 2, *kernel)}
            options += f", dilations={dilations}, group={2 if op == 'Conv' else 1}"
        else:
            options += f", kernel_shape={kernel}, ceil_mode={rng.integers(2)}"
            options += f", count_include_pad={rng.integers(2)}" if op == "AveragePool" else ""
        shape = (2, 4, *rng.integers(4, 12, 2).tolist())
        names = "x, w" if weights else "x"
        file = save(
            tmp_path / "net.onnx", f"y = {op}<{options}>({names})", weights, ("n", *shape[1:])
        )
        try:
            runtime.InferenceSession(str(file)).run(None, {"x": np.zeros(shape, np.float32)})
        except Exception:  # of any class: the kernel is larger than its input, or pads than it
            continue
        tried += 1
        take(file, tmp_path)
        assert apart(file, shape) <= 1e-5, (op, options, shape)


def test_layers_write_in_place_where_nobody_else_reads(tmp_path: Path) -> None:
    """`a` is read twice, and a Flatten shares its memory with what it reads."""
    nodes = "a = Conv(x, w)\nb = Relu(a)\nc = Tanh(b)\nd = Add(c, a)\ne = Flatten(d)\ny = Relu(e)\nz = Identity(y)"
    file = save(tmp_path / "net.onnx", nodes, {"w": (4, 4, 1, 1)}, outputs=("y", "z"))
    take(file, tmp_path)
    layers = caffenets.read_net(file.with_suffix(".prototxt")).layer
    made = {str(one.name): (list(one.bottom), list(one.top)) for one in layers}
    assert made == {
        "x": ([], ["x"]), "a": (["x"], ["a"]), "b": (["a"], ["b"]), "c": (["b"], ["b"]), "d": (["b", "a"], ["d"]),
        "e": (["d"], ["e"]), "y": (["e"], ["y_2"]), "y_2": (["y_2"], ["y"]), "z": (["y_2"], ["z"]),
    }  # fmt: skip
    assert apart(file, IMAGE) <= 1e-5


def test_places_that_are_cut_off_are_no_outputs(tmp_path: Path, run: Any) -> None:
    file = save(tmp_path / "net.onnx", "y = Slice(x, s, e, s)", {"s": [1], "e": [3]})
    take(file, tmp_path)
    assert types_of(file.with_suffix(".prototxt")) == ["Input", "Slice", "Silence"]
    assert apart(file, IMAGE) == 0.0
    net = file.with_suffix(".prototxt")
    assert (
        run("export", net, file.with_suffix(".caffemodel"), "--onnx", tmp_path / "o.onnx")[0] == 0
    )


def test_every_node_without_layers_is_named_before_anything_is_written(
    tmp_path: Path, run: Any
) -> None:
    nodes = """
a = Erf(x)
b = Relu(a)
c = NonZero(b)
d = Pad<mode="reflect">(b, p)
e = com.acme.Fancy(d)
y = Transpose<perm=[3,2,1,0]>(x)
z = Det(y)"""
    file = save(
        tmp_path / "net.onnx", nodes, {"p": [0] * 8}, (1, 40, 40, 40), outputs=("y", "z", "e", "c")
    )
    model = onnx.shape_inference.infer_shapes(onnx.load(str(file)))
    file.write_bytes(model.SerializeToString())
    status, out, err = run("import", file, "--to", tmp_path / "net.prototxt")
    assert (status, out) == (2, "")
    named = re.findall(r"node '(\w)' \(([\w.]+)\) ([^:]+): (.+)", err)
    assert [(node, op) for node, op, _, _ in named] == [
        ("a", "Erf"), ("c", "NonZero"), ("d", "Pad"), ("e", "com.acme.Fancy"), ("y", "Transpose"), ("z", "Det"),
    ]  # fmt: skip
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(
    ("nodes", "weights", "said"),
    [
        ("y = MaxPool<kernel_shape=[2,2], dilations=[2,2]>(x)", {}, "has dilations"),
        ("y, i = MaxPool<kernel_shape=[2,2]>(x)\nz = Identity(i)", {}, "gives indices"),
        ("y = ConvTranspose<output_shape=[20,20]>(x, w)", {"w": (4, 4, 2, 2)}, "give pads"),
        ("y = Conv(x, x)", {}, "make it constant"),
        ("y = MatMul(x, x)", {}, "make it constant"),
        ('y = Resize<mode="linear">(x, , s)', {"s": np.array([1, 1, 2, 2], np.float32)}, "learn a ConvTranspose"),
        ("y = LRN<size=4>(x)", {}, "odd number"),
        ("y = Cast<to=7>(x)", {}, "leave it out"),
        ("y = ReduceMean<axes=[1], keepdims=0>(x)", {}, "reduce these"),
        ("y = Concat<axis=1>(x, w)", {"w": (1, 4, 9, 8)}, "no constant blob"),
        ("y = BatchNormalization<training_mode=1>(x, w, w, w, w)", {"w": (4,)}, "export the net for inference"),
        ("y = Identity(w)", {"w": (4,)}, "does not depend on the inputs"),
    ],
)  # fmt: skip
def test_what_caffe_cannot_is_said_with_a_remedy(
    nodes: str, weights: Weights, said: str, tmp_path: Path
) -> None:
    outputs = ("y", "z") if "z =" in nodes else ("y",)
    file = save(tmp_path / "net.onnx", nodes, weights, (1, *IMAGE[1:]), outputs=outputs)
    with pytest.raises(NetError, match=said):
        take(file, tmp_path)


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        ("y = Conv<pads=[1099511627776,0,0,0]>(x, w)", {"w": (4, 4, 3, 3)}),
        ("y = Conv<pads=[100000000,0,0,0]>(x, w)", {"w": (4, 4, 3, 3)}),
        ("y = Conv<pads=[1]>(x, w)", {"w": (4, 4, 3, 3)}),
        ("y = Conv<strides=[0,1]>(x, w)", {"w": (4, 4, 3, 3)}),
        ("y = Conv<group=0>(x, w)", {"w": (4, 4, 3, 3)}),
        ("y = Conv(x, w)", {"w": (4, 3, 3, 3)}),
        ("y = Conv<dilations=[100000000,1], pads=[100000000,0,99999999,0]>(x, w)", {"w": (4, 4, 3, 3)}),
        ("y = ConvTranspose<strides=[1000000,1000000]>(x, w)", {"w": (4, 4, 3, 3)}),
        ("y = MaxPool<kernel_shape=[1000000000,1000000000], pads=[99999999,99999999,99999999,99999999]>(x)", {}),
        ("y = MaxPool(x)", {}),
        ("y = Conv(x, nowhere)", {}),
        ("y = Conv(x)", {}),
        ("y = Concat<axis=9>(x, x)", {}),
        ("y = Reshape(x, s)", {"s": [7, -1]}),
        ("y = Reshape(x, s)", {"s": [-9223372036854775808, 3]}),
        ("y = Slice(x, s, s)", {"s": [5]}),
        ("a = ConstantOfShape(s)\ny = Add(x, a)", {"s": [1 << 20, 1 << 20]}),
        ("a = Add(w, v)\ny = Mul(x, a)", {"w": (60000, 1), "v": (1, 60000)}),
        ("y = Add(x, w)", {"w": (1000000, 1, 1, 1, 1)}),
        ("y = Upsample<scales=[1.0,1.0,1000000.0,1000000.0]>(x)", {}),
        ("y = Split<axis=1>(x, s)", {"s": [1 << 62, 4 - (1 << 62)]}),
        ("y = Gather<axis=1>(x, s)", {"s": [1, 2]}),
        ("y = Pad(x, s)", {"s": [0, 0, 0, 0, 0, 0, -50, 0]}),
        ("y = Pow(x)", {}),
        ("y = Slice(x, s, e, s, t)", {"s": [1], "e": [4], "t": [2]}),
    ],
)  # fmt: skip
def test_a_damaged_net_is_refused_in_words_and_little_memory(
    nodes: str, weights: Weights, tmp_path: Path
) -> None:
    import tracemalloc

    file = save(tmp_path / "net.onnx", nodes, weights, (1, *IMAGE[1:]))
    tracemalloc.start()
    try:
        with pytest.raises(NetError, match=r"net\.onnx: node '[ay]' "):
            take(file, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert not file.with_suffix(".prototxt").exists()


def test_values_in_another_file_and_half_a_file_are_refused(tmp_path: Path, run: Any) -> None:
    file = save(tmp_path / "net.onnx", "y = Conv(x, w)", {"w": (4, 4, 3, 3)})
    whole = file.read_bytes()
    out = tmp_path / "net.prototxt"
    out.write_text("before")
    model = onnx.load(str(file))
    tensor = model.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, "../../etc/passwd", 0)
    for content in (
        model.SerializeToString(),
        whole[: len(whole) // 2],
        b"",
        b"\x00" * 64,
        whole * 2,
    ):
        file.write_bytes(content)
        status, said, err = run("import", file, "--to", out)
        assert (status, said, err.count("\n")) == (2, "", 1), err
        assert "net.onnx" in err
        assert (out.read_text(), (tmp_path / "net.caffemodel").exists()) == ("before", False)


def test_sizes_that_the_file_leaves_open_are_asked_for(tmp_path: Path, run: Any) -> None:
    file = save(tmp_path / "net.onnx", "y = Relu(x)", {}, ("batch", 4, "height", None))
    out = tmp_path / "net.prototxt"
    status, _, err = run("import", file, "--to", out)
    assert (
        status,
        "'x' has the sizes (?, 4, ?, ?): give all of them, as in --shape x=" in err,
    ) == (2, True)
    assert run("import", file, "--to", out, "--shape", "x=1x3x9x8")[0] == 2
    assert run("import", file, "--to", out, "--shape", "data=1x4x9x8")[0] == 2
    status, said, _ = run("import", file, "--to", out, "--shape", "x=2x4x9x8")
    assert (status, "2 layers, x (2, 4, 9, 8) -> y (2, 4, 9, 8)" in said) == (0, True)


def test_the_command_compares_both_nets(tmp_path: Path, run: Any) -> None:
    nodes = (
        "a = Conv(x, w)\nb = Relu(a)\nc = GlobalAveragePool(b)\nd = Flatten(c)\ny = LogSoftmax(d)"
    )
    file = save(tmp_path / "net.onnx", nodes, {"w": (5, 4, 3, 3)})
    status, out, err = run("import", file, "--to", tmp_path / "deploy.prototxt")
    assert (status, err) == (0, "")
    note, net, model = out.splitlines()
    assert note.startswith("LogSoftmax is Softmax and Log")
    assert net.endswith("deploy.prototxt: 7 layers, x (1, 4, 9, 8) -> y (1, 5)")
    found = re.search(
        r"deploy.caffemodel: 180 values; differs from ONNX Runtime by at most (\S+) on", model
    )
    assert found is not None
    assert float(found[1]) <= 1e-5
    (tmp_path / "old.prototxt").mkdir()
    for to, remedy in (
        ("net.txt", "one in .prototxt"),
        ("none/n.prototxt", "make it first"),
        ("old.prototxt", "is a folder"),
    ):
        status, out, err = run("import", file, "--to", tmp_path / to)
        assert (status, out, remedy in err) == (2, "", True)


@pytest.mark.parametrize("form", ["onnx", "pt", "npz"])
def test_weights_come_back_to_the_bit(form: str, tmp_path: Path, run: Any) -> None:
    given = save(tmp_path / "net.onnx", "a = Conv(x, w, b)\nc = Flatten(a)\ny = Gemm(c, v)", {
        "w": (5, 4, 3, 3), "b": (5,), "v": (210, 3)
    })  # fmt: skip
    take(given, tmp_path)
    net, model = given.with_suffix(".prototxt"), given.with_suffix(".caffemodel")
    assert (
        run("export", net, model, "--onnx", tmp_path / "o.onnx", "--torch", tmp_path / "o.py")[0]
        == 0
    )
    arrays = caffenets.read_weights(tmp_path / "o.pt")
    np.savez(tmp_path / "o.npz", **{name: one.read() for name, one in arrays.items()})
    back = tmp_path / "back.caffemodel"
    status, out, _ = run("import", tmp_path / f"o.{form}", "--net", net, "--to", back)
    assert (status, "815 values in 2 layers" in out) == (0, True), out
    before, after = caffenets.read_weights(model), caffenets.read_weights(back)
    assert before.keys() == after.keys()
    assert all(before[key].read().tobytes() == after[key].read().tobytes() for key in before)
