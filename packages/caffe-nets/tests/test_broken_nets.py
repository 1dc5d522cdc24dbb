"""Broken and hostile nets: each ends in a sentence with the file and the remedy, in little time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.processes]


def source(*sizes: int, name: str = "data") -> str:
    dims = " ".join(f"dim: {size}" for size in sizes)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n'


def layer(kind: str, more: str = "", bottom: str = "data", top: str = "x", name: str = "") -> str:
    ends = [f'{end}: "{one}"' for end, text in (("bottom", bottom), ("top", top)) for one in text.split()]  # fmt: skip
    return f'layer {{ name: "{name or top}" type: "{kind}" {" ".join(ends)}\n{more} }}\n'


IMAGES = source(1, 3, 8, 8)
GOOD = IMAGES + layer("InnerProduct", "inner_product_param { num_output: 2 }")


def of(kind: str, more: str, **ends: str) -> str:
    return IMAGES + layer(kind, more, **ends)


def conv(more: str) -> str:
    return of("Convolution", f"convolution_param {{ {more} }}")


def ip(outputs: int, more: str = "", **ends: str) -> str:
    return layer("InnerProduct", f"{more} inner_product_param {{ num_output: {outputs} }}", **ends)


def python(param: str) -> str:
    more = f'python_param {{ module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "{param}" }}'
    return (
        IMAGES
        + source(1, 6, 8, 8, name="b")
        + source(1, 3, name="i")
        + layer("Python", more, "data b i")
    )


HELD = "Caffe's hold at most 2,147,483,647 values"
# The text, and what is said of it; the line is that of the layer's name.
NETS: dict[str, tuple[str, str]] = {
    "2e9 outputs": (
        conv("num_output: 2000000000 kernel_size: 3"),
        f", line 2: layer 'x' (Convolution) has a blob of 1 x 2000000000 x 6 x 6, but {HELD}",
    ),
    "a kernel of 2^32": (conv("num_output: 4 kernel_size: 4294967295 pad: 4294967295"), HELD),
    "a pad of 2^31": (conv("num_output: 4 kernel_size: 3 pad: 2147483647"), HELD),
    "a kernel beyond": (
        conv("num_output: 4 kernel_size: 2147483647"),
        "line 2: layer 'x' (Convolution) has a kernel",
    ),
    "stride 0": (
        conv("num_output: 4 kernel_size: 3 stride: 0"),
        "line 2: layer 'x' (Convolution) has stride 0: use 1",
    ),
    "dilation 0": (
        conv("num_output: 4 kernel_size: 3 dilation: 0"),
        "has dilation 0: use 1 or more",
    ),
    "a group of 2": (conv("num_output: 4 kernel_size: 3 group: 2"), "use a common divisor"),
    "a large deconvolution": (
        of(
            "Deconvolution",
            "convolution_param { num_output: 2000000000 kernel_size: 2000000000 stride: 4294967295 }",
        ),
        HELD,
    ),
    "a large pooling": (
        of("Pooling", "pooling_param { kernel_size: 4294967295 pad: 4294967294 }"),
        HELD,
    ),
    "pad as the kernel": (
        of("Pooling", "pooling_param { kernel_size: 2 pad: 2 }"),
        "pad by less than the kernel",
    ),
    "a blob of 2^38": (IMAGES + ip(2_000_000_000), "has a blob of 2000000000 x 192"),
    "an Embed": (
        source(1, 3)
        + layer("Embed", "embed_param { num_output: 4294967295 input_dim: 4294967295 }"),
        HELD,
    ),
    "an Embed of nothing": (
        source(1, 3) + layer("Embed", "embed_param { num_output: 3 input_dim: 0 }"),
        "layer 'x' (Embed)",
    ),
    "an LSTM": (
        source(4, 2, 8)
        + source(4, 2, name="c")
        + layer("LSTM", "recurrent_param { num_output: 4294967295 }", "data c"),
        HELD,
    ),
    "an LSTM without marks": (
        source(4, 2, 8) + layer("LSTM", "recurrent_param { num_output: 4 }"),
        "has 1 bottoms, and needs 2 to 5",
    ),
    "a Tile": (of("Tile", "tile_param { tiles: 1000000000 }"), HELD),
    "an Interp": (of("Interp", "interp_param { height: 2147483647 width: 2147483647 }"), HELD),
    "ROIs": (
        IMAGES
        + source(1, 5, name="r")
        + layer(
            "ROIPooling",
            "roi_pooling_param { pooled_h: 4294967295 pooled_w: 4294967295 }",
            "data r",
        ),
        HELD,
    ),
    "a Reshape": (
        of(
            "Reshape",
            "reshape_param { shape { dim: 9223372036854775807 dim: 9223372036854775807 dim: -1 } }",
        ),
        "layer 'x' (Reshape)",
    ),
    "a Slice beyond": (
        of("Slice", "slice_param { slice_point: 99 }", top="x y", name="x"),
        "each inside the axis",
    ),
    "a Concat": (
        of("Concat", "concat_param { axis: -9 }", bottom="data data"),
        "has axis -9, but its bottom has 4 axes",
    ),
    "an input of 10^9": (
        source(10**9) + layer("ReLU"),
        "input 'data' has the sizes 1000000000: give sizes of 1 or more",
    ),
    "an input of 2^124": (
        source(2**62, 2**62) + layer("ReLU"),
        "which hold at most 268,435,456 values",
    ),
    "an input below 0": (
        source(-1, 3) + layer("ReLU"),
        "input 'data' has the sizes -1 x 3: give sizes of 1",
    ),
    "an input of nothing": (
        source(1, 0, 8, 8)
        + layer("Deconvolution", "convolution_param { num_output: 2 kernel_size: 1 }"),
        "1 x 0 x 8 x 8",
    ),
    "an input without sizes": (
        'layer { name: "d" type: "Input" top: "data" }' + layer("ReLU"),
        "input 'data' has the sizes",
    ),
    "an input of 40 axes": (source(*[1] * 40) + layer("ReLU"), "input 'data' has the sizes 1 x 1"),
    "two shapes of one": (
        'layer { name: "d" type: "Input" top: "data" input_param { shape { dim: 1 } shape { dim: 2 } } }'
        + layer("ReLU"),
        "has 2 shapes and 1 tops",
    ),
    "old sizes": (
        'input: "data" ' + "input_dim: 2147483647 " * 4 + layer("ReLU"),
        "input 'data' has the sizes 2147483647",
    ),
    "half of DummyData": (
        layer("DummyData", "dummy_data_param { num: 3 }", "", "data") + layer("ReLU"),
        "give --shape data=",
    ),
    "large DummyData": (
        layer(
            "DummyData",
            "dummy_data_param { shape { dim: 1000000000 dim: 1000000000 } }",
            "",
            "data",
        )
        + layer("ReLU"),
        "input 'data' has the sizes",
    ),
    "large MemoryData": (
        layer(
            "MemoryData",
            "memory_data_param { batch_size: 4294967295 channels: 4294967295 height: 4294967295 width: 4294967295 }",
            "",
            "data label",
            "d",
        )
        + layer("ReLU"),
        "input 'data' has the sizes",
    ),
    "a loss of nothing": (layer("SoftmaxWithLoss", "", "", "x"), "has no input"),
    "a missing bottom": (
        of("ReLU", "", bottom="nope"),
        "line 2: layer 'x' reads 'nope', which no earlier layer makes: correct it",
    ),
    "a later bottom": (
        IMAGES
        + layer("Eltwise", "", "data y")
        + layer("ReLU", "", "x", "y")
        + layer("ReLU", "", "y", "z"),
        "layer 'x' reads 'y', which no earlier layer makes",
    ),
    "one top twice": (
        of("ReLU", "") + layer("ReLU"),
        "makes 'x', which another layer makes too: rename its top",
    ),
    "another type": (
        of("../../etc/passwd", ""),
        "line 2: layer 'x' has the type '../../etc/passwd', which is not known",
    ),
    "code in YAML": (
        python("!!python/object/apply:os.system [touch ran]"),
        "which is no YAML of options",
    ),
    "code of Python": (
        of("Python", 'python_param { module: "os" layer: "system" }'),
        "runs code that was written for pycaffe's blobs",
    ),
    "deep YAML": (python("[" * 2000), "has too many brackets within brackets"),
    "a number too large": (
        conv("num_output: 99999999999999999999 kernel_size: 3"),
        "num_output is 99999999999999999999, but num_output holds 0 to 4294967295",
    ),
    "a number of 5,000 digits": (
        conv(f"num_output: {'9' * 5000} kernel_size: 3"),
        "line 3: num_output is 99999",
    ),
    "a number below 0": (
        conv("num_output: -3 kernel_size: 3"),
        "num_output is -3, but num_output holds 0 to 4294967295",
    ),
    "an enum": (
        of("Pooling", "pooling_param { pool: 77 kernel_size: 2 }"),
        "has no value with number 77",
    ),
    "an enum of old nets": ("layers { type: 999 }", "has no value with number 999"),
    "a zero byte": (GOOD + "\0", "is not text: give the prototxt"),
    "no layer": ('name: "x"', "has 0 layers: give a net with 1 to 20,000"),
    "no text": ("", "has 0 layers"),
    "too many layers": ("layer{}" * 30_000, "has 30,000 layers: give a net with 1 to 20,000"),
    "100,000 layers": (
        GOOD
        + "".join(
            f'layer {{ name: "l{i}" type: "ReLU" bottom: "x" top: "x" }}\n' for i in range(100_000)
        ),
        "has more than 2,097,152 bytes): give the text of a net",
    ),
    "a line of 100 MB": ("", "has more than 2,097,152 bytes"),
    "a million digits": ("name: " + "9" * 1_000_000, ", line 1: "),
    "a million backslashes": (
        'name: "' + "\\" * 1_000_000 + '"',
        "line 1: has 200 backslashes beside each other: leave",
    ),
    "a long name of a field": ("x" * 1_000_000 + ": 1", "NetParameter has no field 'xxx"),
    "open strings": (
        'name: "' + "x" * 1_000_000,
        "does not end in this line: add the missing quote",
    ),
    "groups": ("layer { " * 10_000, "LayerParameter has no field 'layer'"),
    "unknown groups": ("foo { " * 10_000 + "} " * 10_000, "NetParameter has no field 'foo'"),
    "minus": ("-" * 100_000, ", line 1: "),
    "a web page": (
        "<!DOCTYPE html>\n<html><body>404</body></html>",
        "is a web page: download the file",
    ),
    "git-lfs": (
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
        "run `git lfs pull`",
    ),
}
# These are right, as far as `show` sees, and are refused where they would be computed.
NOT_COMPUTED: dict[str, tuple[str, str]] = {
    "one name twice": (
        IMAGES + ip(2) + ip(3, bottom="x", top="y", name="x"),
        "has the name of another layer with parameters (x/0): rename one",
    ),
    "one weight in two shapes": (
        IMAGES
        + ip(2, 'param { name: "w" }')
        + ip(3, 'param { name: "w" }', bottom="data", top="y"),
        "layer 'y' (InnerProduct) shares the param 'w' of layer 'x'",
    ),
    "8 GB": (source(1, 1) + ip(2_000_000_000), "memory"),
    "5 TB in 30 kB": (
        source(1, 1) + "".join(ip(1_000_000_000, top=f"x{i}") for i in range(300)),
        "GB are free: give a smaller batch",
    ),
}
ALL: Final = NETS | NOT_COMPUTED


def commands_of(folder: Path, name: str) -> list[list[str]]:
    file = str(folder / f"{list(ALL).index(name)}.prototxt")
    shown = [] if name in NOT_COMPUTED else [["show", file]]
    return [*shown, ["export", file, "--deploy", str(folder / "new.prototxt")], ["load", file]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nets")


@pytest.fixture(scope="module")
def answers(folder: Path, tried: Any, unchanged: Any) -> Any:
    """What the commands say of every net."""
    for at, (name, (text, _)) in enumerate(ALL.items()):
        with (folder / f"{at}.prototxt").open("w") as out:
            out.write(text)
            if name == "a line of 100 MB":
                out.truncate(100 << 20)
    with unchanged(folder):
        return tried({name: ({}, commands_of(folder, name)) for name in ALL}, folder)


@pytest.mark.parametrize("name", ALL)
def test_a_broken_net_is_refused_by_file_and_remedy(
    folder: Path, answers: Any, is_refused: Any, name: str
) -> None:
    is_refused(commands_of(folder, name), answers[name], ALL[name][1])


def test_lines_may_end_as_on_windows(tmp_path: Path, run: Any) -> None:
    net = tmp_path / "net.prototxt"
    net.write_bytes(GOOD.replace("\n", "\r\n").encode())
    assert run("show", net)[0] == 0
