"""A net that `caffenets import` made of ONNX computes in pycaffe as in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caffenets.export.differences import difference
from caffenets.from_onnx.importing import import_net
from speedo.engines.caffe_import import load_caffe
from tests.engines.export.in_process import in_onnx_runtime

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.caffe
# One-sided pads, pooling that rounds down, averages without their padding, ReLU6, a gate for each channel, cut channels
NODES = """
a = Conv<strides=[2,2], pads=[0,0,1,1]>(x, w, b)
c = BatchNormalization(a, b, b, b, v)
d = Clip(c, l, h)
e = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(d)
f = AveragePool<kernel_shape=[3,3], pads=[0,0,1,1]>(e)
g = ConvTranspose<strides=[2,2], output_padding=[1,0], group=2>(f, t)
i = GlobalAveragePool(g)
j = HardSigmoid(i)
k = Mul(g, j)
m, n = Split<axis=1>(k)
o = Sub(m, n)
p = Slice(o, one, two, one)
q = Flatten(p)
r = Gemm<transB=1>(q, u)
y = Softmax(r)
z = Relu(o)
"""


def test_a_net_of_onnx_computes_in_pycaffe(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.standard_normal((6, 3, 3, 3)), "b": rng.standard_normal(6), "v": rng.uniform(0.5, 2, 6),
        "l": 0.0, "h": 1.5, "t": rng.standard_normal((6, 4, 2, 2)), "u": rng.standard_normal((5, 30)),
    }  # fmt: skip
    held = [onnx.numpy_helper.from_array(np.float32(one), name) for name, one in weights.items()]
    held += [
        onnx.numpy_helper.from_array(np.array([n]), word) for n, word in ((1, "one"), (2, "two"))
    ]
    of = onnx.helper.make_tensor_value_info
    nodes = [onnx.parser.parse_node(line) for line in NODES.strip().splitlines()]
    ends = [of(name, 1, None) for name in "yz"]
    graph = onnx.helper.make_graph(nodes, "net", [of("x", 1, [None, 3, 12, 14])], ends, held)
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    net = tmp_path / "net.prototxt"
    list(import_net(tmp_path / "net.onnx", net, {}, "not compared", tmp_path))
    records = {"x": rng.standard_normal((1, 3, 12, 14), np.float32)}
    caffe = load_caffe()
    caffe.set_mode_cpu()
    loaded = caffe.Net(str(net), str(net.with_suffix(".caffemodel")), caffe.TEST)
    loaded.blobs["x"].data[...] = records["x"]
    theirs = in_onnx_runtime(model.SerializeToString(), records)
    assert difference(loaded.forward(), theirs, "net", "ONNX Runtime") <= 1e-5
