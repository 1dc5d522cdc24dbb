"""docs/layers.md says of each layer of Caffe or of the PyTorch engine what the registries say."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.engines.caffe_import import load_caffe, prepare_environment

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "layers.md"
BEGIN = "<!-- layers: written by `pytest tests/engines/pytorch/test_layers_page.py --rewrite-tables` -->\n"
END = "<!-- end of layers -->\n"


def types_of_caffe() -> list[str]:
    prepare_environment(1)
    return sorted(load_caffe().layer_type_list())


def table() -> str:
    from caffenets.known_types import NATIVE_PYTHON, refusals
    from caffenets.prototxt.forks import LAYERS as FORKS
    from speedo.engines.layer_types import layer_types
    from speedo.engines.schema import ONNX_LAYER

    ours = {
        kind: f"py-faster-rcnn's Python layer {'.'.join(name)}"
        for name, kind in NATIVE_PYTHON.items()
        if name[0] != ONNX_LAYER
    } | {"OnnxNet": "SpeeDO: the core of a net that `speedo test --int8` scores"}
    lines = ["| layer | PyTorch engine | from |", "|---|---|---|"]
    for name in sorted(layer_types("torch")):
        answer = f"refused: it {refusals()[name]}" if name in refusals() else "yes"
        origin = FORKS.get(name) or ours.get(name) or "BVLC's Caffe"
        lines.append(
            f"| {name} | {answer.replace('--engine caffe', '`--engine caffe`')} | {origin} |"
        )
    return "\n".join(lines)


def test_each_layer_of_caffe_is_supported_or_refused() -> None:
    from caffenets.known_types import refusals
    from caffenets.layers import LAYERS
    from speedo.engines.pytorch.data import SOURCES

    assert {*LAYERS, *SOURCES, *refusals()} >= {*types_of_caffe()}


def test_the_page_is_current(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    now = f"{before}{BEGIN}\n{table()}\n\n{END}{after}"
    if request.config.getoption("--rewrite-tables"):
        PAGE.write_text(now, encoding="utf-8")
    else:
        assert text == now, (
            "write it anew: pytest tests/engines/pytorch/test_layers_page.py --rewrite-tables"
        )


@pytest.mark.parametrize("kind", ["HDF5Output", "MemoryData", "Python", "WindowData"])
def test_a_net_with_a_refused_layer_names_it_and_the_remedy(kind: str) -> None:
    from google.protobuf import text_format

    from caffenets.known_types import refusals
    from speedo.engines.pytorch.net import Net
    from speedo.errors import EngineError

    prepare_environment(1)
    net = load_caffe().proto.caffe_pb2.NetParameter()
    text_format.Parse(f'layer {{ name: "named" type: "{kind}" top: "a" }}', net)
    with pytest.raises(EngineError) as refused:
        Net(net, "TRAIN")
    assert str(refused.value) == f"layer 'named' ({kind}) {refusals()[kind]}"
