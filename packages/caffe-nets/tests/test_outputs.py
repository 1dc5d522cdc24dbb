"""What is written is whole or not there, and nothing else is touched."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffenets.caffe_schema import caffe_pb2
from caffenets.weight_files.caffemodel import write_model

pytestmark = [pytest.mark.torch, pytest.mark.processes]


NET = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
"""


def model(name: str = "ip") -> bytes:
    content = io.BytesIO()
    layer = caffe_pb2.LayerParameter(name=name, type="InnerProduct")
    write_model(content, "net", [(layer, [np.ones((2, 3), np.float32), np.ones(2, np.float32)])])
    return content.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "net.caffemodel").write_bytes(model())
    (tmp_path / "file").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("net.prototxt", "is the file that is read: give the new one another name"),
        ("../{folder}/net.prototxt", "is the file that is read"),
        (".", "cannot be written: Is a directory"),
        ("/", "cannot be written: Is a directory"),
        ("/dev/full", "cannot be written: No space left on device"),
        ("/proc/net.prototxt", "cannot be written"),
        ("file/net.prototxt", "cannot be written: Not a directory"),
        ("pipe", "cannot be written: No such device or address"),
        ("x" * 300, "cannot be written: File name too long"),
    ],
)
def test_an_output_that_cannot_be_written_is_named(
    folder: Path, run: Any, unchanged: Any, out: str, words: str
) -> None:
    os.mkfifo(folder / "pipe")
    net, path = folder / "net.prototxt", folder / out.format(folder=folder.name)
    with unchanged(folder):
        for command in (
            ("upgrade", net, path),
            ("deploy", net, path),
            ("show", net, "--svg", path),
        ):
            status, printed, err = run(*command)
            assert (status, printed) == (2, "")
            assert words in err
            assert str(path) in err


def test_an_export_never_overwrites_what_it_reads(folder: Path, run: Any, unchanged: Any) -> None:
    pytest.importorskip("onnxruntime")
    net, caffemodel = folder / "net.prototxt", folder / "net.caffemodel"
    with unchanged(folder):
        for option, path in (("--onnx", caffemodel), ("--deploy", net)):
            status, _, err = run("export", net, caffemodel, option, path)
            assert (status, f"{path} is the file that is read" in err) == (2, True)


def test_a_full_disk_leaves_the_former_files(folder: Path, tried: Any, unchanged: Any) -> None:
    pytest.importorskip("onnxruntime")
    net, caffemodel = str(folder / "net.prototxt"), str(folder / "net.caffemodel")
    for name in ("net.onnx", "net.py", "net.pt", "new.prototxt"):
        (folder / name).write_text("former")
    out = str(folder / "new.prototxt")
    export = ["export", net, caffemodel]
    cases = {
        "upgrade": [["upgrade", net, out]],
        "svg": [["show", net, "--svg", out]],
        "deploy": [["export", net, "--deploy", out]],
        "onnx": [[*export, "--onnx", str(folder / "net.onnx")]],
        "torch": [[*export, "--torch", str(folder / "net.py")]],
    }
    limit = {"onnx": 99, "torch": 1500}  # the module has less, its state dict more
    with unchanged(folder):
        found = tried(
            {name: ({"RLIMIT_FSIZE": limit.get(name, 9)}, one) for name, one in cases.items()},
            folder,
        )
    for name, (answers, _, _) in found.items():
        ((status, _, err),) = answers
        assert status == 2, (name, err)
        assert "cannot be written" in err, name


def test_a_pipe_and_a_link_as_an_output_stay_what_they_are(folder: Path, run: Any) -> None:
    net, pipe, link = folder / "net.prototxt", folder / "pipe", folder / "link"
    os.mkfifo(pipe)
    link.symlink_to("target")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    while run("upgrade", net, pipe)[0]:  # until the reader is there
        pass
    reader.join(10)
    assert run("upgrade", net, link)[0] == 0
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()
    assert read == [(folder / "target").read_text()] == [run("upgrade", net)[1]]


@pytest.mark.parametrize("command", ["show", "upgrade"])
def test_an_output_that_is_full_is_told(folder: Path, command: str) -> None:
    script = "from caffenets.command import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script, command, folder / "net.prototxt"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2,
        "caffenets: cannot be written: No space left on device; make room\n",
    )
