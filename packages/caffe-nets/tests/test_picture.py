"""The picture of a net has a box for each layer, below those that it reads, and is well-formed for any name."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import caffenets
from caffenets.command import main
from caffenets.picture import picture

BUNDLED = Path(__file__).resolve().parents[3] / "prototxt"
SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg: str) -> dict[str, tuple[float, float]]:
    """The place of each box by the first line in it."""
    root = ElementTree.fromstring(svg)
    found, at = {}, (0.0, 0.0)
    for one in root:
        if one.tag == f"{SVG}rect" and "x" in one.attrib:
            at = float(one.attrib["x"]), float(one.attrib["y"])
        if one.tag == f"{SVG}text" and "font-weight" in one.attrib:
            found[str(one.text)] = at
    return found


def test_each_layer_is_below_those_that_it_reads_and_no_box_covers_another() -> None:
    net = caffenets.read_net(BUNDLED / "googlenet" / "train_test.prototxt")
    svg = picture(net)
    places = boxes(svg)
    assert len(set(places.values())) == len(places)
    makers: dict[str, str] = {}
    for layer in net.layer:
        if list(layer.bottom) == list(layer.top):
            assert layer.name not in places, "it works in place, in the box of another"
            continue
        for bottom in layer.bottom:
            assert places[layer.name][1] > places[makers[bottom]][1]
        makers.update(dict.fromkeys(layer.top, layer.name))
    width, height = (
        float(ElementTree.fromstring(svg).attrib[side]) for side in ("width", "height")
    )
    assert all(x + 200 <= width and y < height for x, y in places.values())


def test_names_of_strangers_stay_text(tmp_path: Path) -> None:
    file = tmp_path / "net.prototxt"
    file.write_text(
        'name: "<script>" layer { name: "<b>&\\"x" type: "Input" top: "x" input_param { shape { dim: 1 } } }'
        f'layer {{ name: "{"long" * 20}" type: "ReLU" bottom: "x" top: "y" }}'
    )
    svg = picture(caffenets.read_net(file))
    assert "<script>" not in svg
    assert '<b>&"x' in boxes(svg)
    assert re.search(r">(long)+\w*…<", svg)


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lenet, out = BUNDLED / "lenet" / "train_test.prototxt", tmp_path / "lenet.svg"
    with pytest.raises(SystemExit) as ended:
        main(["show", str(lenet), "--shape", "data=1x1x28x28", "--svg", str(out)])
    assert ended.value.code == 0
    assert "conv1" in boxes(out.read_text())
    with pytest.raises(SystemExit) as ended:
        main(["show", str(tmp_path / "net.caffemodel"), "--svg", str(out)])
    assert ended.value.code == 2
    assert "are for a net" in capsys.readouterr().err
