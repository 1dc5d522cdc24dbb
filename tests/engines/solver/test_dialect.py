"""Text that Caffe reads is read, and text that Caffe refuses is refused, with the line and the remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import read_text
from speedo.engines.make import prepare_to_read
from speedo.errors import SolverError

pytestmark = pytest.mark.caffe
SOLVER: Final = b"""net: "net.prototxt"
base_lr: 0.05
lr_policy: "fixed"
max_iter: 30
solver_mode: CPU
"""
NET: Final = b"""layer { name: "data" type: "DummyData" top: "data"
  dummy_data_param { shape { dim: 4 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
"""
# Plain Caffe aborts at a text that it refuses.
PLAIN: Final = """
import json, os, sys
os.environ["GLOG_minloglevel"] = "3"
import caffe
caffe.set_mode_cpu()
read = []
for folder in json.load(sys.stdin):
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        caffe.get_solver("solver.prototxt")
        os._exit(0)
    read.append(os.waitpid(child, 0)[1] == 0)
print(json.dumps(read))
"""


@pytest.fixture(autouse=True)
def _schema_of_pycaffe() -> None:
    """An earlier test of this process may have read files for PyTorch, which has more fields."""
    prepare_to_read("caffe")


def replaced(old: bytes, new: bytes) -> bytes:
    assert old in SOLVER
    return SOLVER.replace(old, new)


READ: Final = {
    "comment in GBK": "# \u5b66\u4e60\u7387\n".encode("gbk") + SOLVER,
    "comment in Latin-1": replaced(b"0.05", b"0.05 # caf\xe9"),
    "comment with a quote": replaced(b"0.05", b"0.05 # \xe9's \"rate"),
    "comment sign in quotes": replaced(b'"fixed"', b"'fixed' # '"),
    "sign apart": SOLVER + b"momentum: - # so\n 0.5\n",
    "minus infinity": SOLVER + b"momentum: - inf\n",
    "hexadecimal": replaced(b"30", b"0x1E"),
    "octal": replaced(b"30", b"036"),
    "floats": replaced(b"0.05", b"5.E-2f"),
    "carriage returns": SOLVER.replace(b"\n", b"\r\n"),
    "other spaces": SOLVER + b"\v\f\t\n",
    "two pieces": replaced(b'"fixed"', b"\"fix\" 'ed'"),
    "UTF-8 in quotes": SOLVER + 'snapshot_prefix: "caf\u00e9"'.encode(),
    "escapes": replaced(b'"fixed"', b'"\\x66i\\170ed"'),
    "backslashes": SOLVER + b'snapshot_prefix: ".\\\\data\\\\" ',
    "separators": SOLVER.replace(b"\n", b";\n"),
}
REFUSED: Final = {
    "byte-order mark": (b"\xef\xbb\xbf" + SOLVER, ": begins with a byte-order mark"),
    "UTF-16": (SOLVER.decode().encode("utf-16"), ": is in UTF-16"),
    "UTF-16 without mark": (SOLVER.decode().encode("utf-16-be"), ": is in UTF-16"),
    "point in a whole number": (replaced(b"30", b"30.0"), ", line 4: max_iter is 30.0: Caffe reads a whole number"),
    "exponent in a whole number": (replaced(b"30", b"3e1"), "exponent: write 30"),
    "part of a whole number": (replaced(b"30", b"30.5"), "exponent: use one"),
    "too large": (replaced(b"30", b"3000000000"), "max_iter holds -2147483648 to 2147483647"),
    "plus": (replaced(b"30", b"+30"), ", line 4: '+' before a number"),
    "underscore": (replaced(b"30", b"3_0"), ", line 4: '3_0' is no number"),
    "octal 9": (replaced(b"30", b"09"), ", line 4: '09' is no number"),
    "number and word": (replaced(b"30", b"30px"), ", line 4: '30px' is no number"),
    "not a number": (replaced(b"0.05", b"nanf"), ", line 2: 'nanf' is no number"),
    "two signs": (replaced(b"0.05", b"--1"), ", line 2: 'base_lr: --1'"),
    "no-break space": (replaced(b"base_lr: ", b"base_lr:\xc2\xa0"), ", line 2: the character '\\xa0' is outside"),
    "wide colon": (replaced(b"base_lr:", "base_lr\uff1a".encode()), ", line 2: '\uff1a' is outside quotes"),
    "Latin-1 outside": (SOLVER + b"\xe9: 1\n", ", line 6: a byte that is not in UTF-8 is outside"),
    "Arabic digit": (replaced(b"30", "\u0663".encode()), ", line 4: '\u0663' is outside"),
    "backslash in a path": (SOLVER + b'snapshot_prefix: "C:\\data"', "has \\d: write two backslashes"),
    "open quote": (replaced(b'"fixed"', b'"fixed'), ", line 3: the text in quotes does not end"),
    "quoted value of a list": (replaced(b"CPU", b'"CPU"'), ", line 5: 'CPU' is not one of CPU, GPU; leave the quotes"),
    "zero byte": (SOLVER + b"# a\0b", ": is not text"),
    "comment of C": (SOLVER + b"// so\n", ", line 6: '// so'"),
}  # fmt: skip


def written(folder: Path, solver: bytes) -> Path:
    folder.mkdir()
    (folder / "net.prototxt").write_bytes(NET)
    (folder / "solver.prototxt").write_bytes(solver)
    return folder / "solver.prototxt"


def test_every_text_is_read_or_refused_as_by_plain_caffe(tmp_path: Path) -> None:
    texts = [*READ.values(), *(text for text, _ in REFUSED.values())]
    folders = [str(written(tmp_path / str(at), text).parent) for at, text in enumerate(texts)]
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], input=json.dumps(folders), capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True] * len(READ) + [False] * len(REFUSED)


@pytest.mark.parametrize("name", READ)
def test_what_caffe_reads_is_read(tmp_path: Path, name: str) -> None:
    solver = caffe_schema().SolverParameter()
    read_text(written(tmp_path / "so", READ[name]), solver)
    assert (solver.max_iter, solver.lr_policy) == (30, "fixed")
    assert solver.base_lr == pytest.approx(0.05)
    if name.startswith(("sign", "minus")):
        assert solver.momentum < 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_caffe_refuses_is_refused_with_line_and_remedy(tmp_path: Path, name: str) -> None:
    text, words = REFUSED[name]
    path = written(tmp_path / "so", text)
    with pytest.raises(SolverError) as caught:
        read_text(path, caffe_schema().SolverParameter())
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


def test_a_name_that_is_not_in_utf8_is_refused_as_pycaffe_cannot_say_it(tmp_path: Path) -> None:
    path = written(tmp_path / "so", SOLVER + b'snapshot_prefix: "caf\xe9"')
    with pytest.raises(SolverError, match=r"line 6: the text in quotes is not in UTF-8"):
        read_text(path, caffe_schema().SolverParameter())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layer { type: 'ROIPooling' roi_pooling_param { } }", "but of Fast R-CNN's Caffe: use --engine torch"),
        ("layer { type: 'Normalize' norm_param { } }", "SSD's Caffe: use --engine torch, which has it, or"),
        ("layer { type: 'Data' transform_param { resize_param { } } }", "but of SSD's Caffe"),
        ("layer { type: 'MultiBoxLoss' multibox_loss_param { } }", "but of SSD's Caffe"),
        ("default_forward_type: FLOAT16", "but of NVIDIA's Caffe: take it out, or train with"),
        ("op { type: 'Conv' }", "a net of Caffe2, which Caffe does not read"),
        ("layer { pooling_parm { } }", "LayerParameter has no field 'pooling_parm'; did you mean 'pooling_param'?"),
    ],
)  # fmt: skip
def test_a_field_of_another_caffe_is_told_from_a_typing_error(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(text)
    with pytest.raises(SolverError) as caught:
        read_text(path, caffe_schema().NetParameter())
    assert f"{path}, line 1: " in str(caught.value)
    assert words in str(caught.value)
