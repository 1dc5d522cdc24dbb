"""`caffenets check` names what is wrong with a net: the line, the layer and the remedy; the files are never changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffenets.host_program import own_schema

DATA = (
    'layer { name: "data" type: "Data" top: "data" top: "label"\n'
    'data_param { source: "records" batch_size: 4 backend: LMDB } transform_param { mean_file: "mean" } }\n'
)
WINDOWS = "convolution_param { num_output: 2 kernel_size: 3 }"
CONV = 'layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" ' + WINDOWS + " }\n"
INPUT = 'layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }\n'


def records(folder: Path) -> None:
    """An LMDB with a record, and a mean."""
    lmdb = pytest.importorskip("lmdb")
    schema: Any = own_schema()
    with lmdb.open(str(folder / "records")) as database, database.begin(write=True) as writing:
        writing.put(
            b"0", schema.Datum(channels=3, height=8, width=8, data=bytes(192)).SerializeToString()
        )
    mean = schema.BlobProto(shape=schema.BlobShape(dim=[3, 8, 8]), data=np.zeros(192))
    (folder / "mean").write_bytes(mean.SerializeToString())


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (INPUT + CONV, []),
        (INPUT + CONV.replace('"Convolution"', '"Convolutoin"'),
         ["line 2: layer 'conv' has the unknown type 'Convolutoin'; did you mean 'Convolution'?"]),
        (INPUT + CONV.replace("kernel_size: 3", "kernel_size: 30"),
         ["line 2: layer 'conv' (Convolution) has a kernel of (30, 30), larger than its padded bottom (8, 8)"]),
        (INPUT + CONV.replace('bottom: "data"', 'bottom: "dara"'),
         ["line 2: layer 'conv' reads 'dara', which no earlier layer makes: correct it"]),
        (INPUT + CONV.replace('"Convolution"', '"HDF5Output"').replace(WINDOWS, ""),
         ["line 2: layer 'conv' (HDF5Output) writes its bottoms to a file at every step"]),
        (INPUT + CONV.replace('"Convolution"', '"WarpCTC"').replace(WINDOWS, ""),
         ["layer 'conv' (WarpCTC) compares sequences in training: take the deploy net, without it"]),
        (DATA + CONV, []),
        (DATA.replace("batch_size: 4", "batch_size: 0") + CONV, ["line 1: layer 'data' has batch_size 0"]),
        (DATA.replace('"records"', '"others"') + CONV, ["line 1: layer 'data' reads its records from 'others'"]),
        (DATA.replace('"mean"', '"records/data.mdb"') + CONV, ["which is not one, or is truncated: create it again"]),
    ],
)  # fmt: skip
def test_each_problem_has_its_line_and_the_remedy(
    tmp_path: Path, run: Any, text: str, problems: list[str]
) -> None:
    records(tmp_path)
    net = tmp_path / "net.prototxt"
    net.write_text(text)
    status, said, _ = run("check", net, "--shape", "data=1x3x8x8")
    *lines, last = said.splitlines()
    assert last.endswith("no problems" if not problems else f"{len(problems)} problem")
    assert status == (1 if problems else 0)
    assert len(lines) == len(problems)
    for line, words in zip(lines, problems, strict=True):
        assert line.startswith(f"{net}, line ")
        assert words in line


def test_shapes_that_are_not_known_are_not_looked_at_and_it_says_so(
    tmp_path: Path, run: Any
) -> None:
    records(tmp_path)
    net = tmp_path / "net.prototxt"
    net.write_text(DATA + CONV)
    status, said, noted = run("check", net)
    assert (status, said) == (0, f"{net}: 2 layers, no problems\n")
    assert "shapes are not looked at" in noted
    assert "--shape data=1x3x227x227" in noted


def test_files_are_searched_in_the_data_root(tmp_path: Path, run: Any) -> None:
    (tmp_path / "data").mkdir()
    records(tmp_path / "data")
    net = tmp_path / "net.prototxt"
    net.write_text(DATA + CONV)
    assert run("check", net)[0] == 1
    assert run("check", net, "--data-root", tmp_path / "data")[0] == 0
