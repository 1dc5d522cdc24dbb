"""Strangers' files of weights: each is refused in words, in little memory, and no other file is opened."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from speedo.data.hdf5 import read_hdf5
from speedo.engines.solver import check_solver, read_solver
from speedo.errors import DataError, SolverError
from tests.engines.weight_files import hostile
from tests.support.commands import Commands
from tests.support.nets import net_text, write_solver

MOST_MIB = 200  # of memory for a file; 400,000 empty layers take some 110
SCRIPT = """
import json, os, resource, sys
from pathlib import Path
import h5py, numpy
from caffenets.from_onnx.graph_file import read_graph
from caffenets.weight_files.caffemodel import matched, read_model
from caffenets.weight_files.onnx import read_initializers
from speedo.engines.weights_check import check_weights
from speedo.errors import SpeedoError
from speedo.exchange.vector import Blob, Layout
from speedo.run.caffe_snapshot import read_snapshot
from speedo.run.script_weights import first_arrays, weights_of

NET = [("ip", 0, (2, 3)), ("ip", 1, (2,))]

def take(path):
    name = path.name.removesuffix(".h5")
    if name.endswith(".caffemodel"):
        check_weights(path, ["ip"])
        for one in matched(read_model(path), NET).values():
            one.read()
    elif name.endswith(".solverstate"):
        read_snapshot(path)
    elif name.endswith(".onnx"):
        read_initializers(path)
        read_graph(path)
    else:
        weights_of(first_arrays(path), Layout((Blob("ip/0", (2, 3)),)), path)

def mib(which):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[which].split()[0]) >> 10

size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), size + (1 << 30)))
for path in sorted(Path(sys.argv[1]).iterdir()):
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = mib("VmRSS")
    try:
        take(path)
        said = "taken"
    except SpeedoError as error:
        said = str(error)
    except BaseException as error:
        said = f"NOT OURS: {type(error).__name__}: {error}"
    print(json.dumps([path.name, said, mib("VmHWM") - before]), flush=True)
"""
_ALL_BUT_WATCHES = 0xFFF  # sys/inotify.h: IN_ALL_EVENTS


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Collects the names of what is opened, changed or made in the folder meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    assert descriptor >= 0
    touched: list[str] = []
    try:
        assert libc.inotify_add_watch(descriptor, os.fsencode(folder), _ALL_BUT_WATCHES) >= 0
        yield touched
        try:
            content = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            content = b""
        at = 0
        while at < len(content):
            _, mask, _, length = struct.unpack_from("iIII", content, at)
            name = content[at + 16 : at + 16 + length].rstrip(b"\0").decode()
            touched.append(f"{name}: {mask:#x}")
            at += 16 + length
    finally:
        os.close(descriptor)


def outside_of(folder: Path) -> Path:
    """What hostile files would like to read."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(np.arange(6, dtype=np.float32).tobytes() * 100)
    with h5py.File(outside / "secret.h5", "w") as file:
        file["data/ip/0"] = np.ones((2, 3), np.float32)
    (outside / "0.h5").write_bytes((outside / "secret.h5").read_bytes())
    (outside / "model.caffemodel").write_bytes(hostile.net(hostile.good_layer()))
    return outside


def test_the_watch_sees_what_is_opened(tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    with watched(outside) as touched:
        (outside / "secret").read_bytes()
    assert touched
    assert {one.partition(":")[0] for one in touched} == {"secret"}


@pytest.mark.processes
def test_every_hostile_file_is_refused_in_words_and_in_little_memory(tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    files = tmp_path / "files"
    files.mkdir()
    words = hostile.write_all(files, outside)
    assert len(words) >= 100
    with watched(outside) as touched:
        # Its folder is the one with the secrets, as relative names would be searched there.
        child = subprocess.run(
            [sys.executable, "-P", "-c", SCRIPT, str(files)],
            cwd=outside, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
    answers = [json.loads(line) for line in child.stdout.splitlines()]
    assert {name for name, _, _ in answers} == {*words}, child.stderr
    wrong = [
        f"{name}: {said}"
        for name, said, _ in answers
        if words[name] not in said or str(files / name) not in said or said.startswith("NOT OURS")
    ]
    assert not wrong, "\n".join(wrong)
    assert max(more for _, _, more in answers) < MOST_MIB, answers
    assert touched == []


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.caffe
@pytest.mark.redis
@pytest.mark.ray
def test_no_command_opens_what_a_hostile_file_names(
    speedo: Commands, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way by which a file of weights comes in: Caffe's own readers are behind none of them."""
    monkeypatch.chdir(home)
    outside = outside_of(home)
    net = net_text(train=f"{home}/train", test=f"{home}/test")
    solver = str(write_solver(home, net))
    evil, state = home / "evil.caffemodel.h5", home / "evil.solverstate.h5"
    with h5py.File(evil, "w") as file:
        hostile.external_storage(file, outside)
    with h5py.File(state, "w") as file:
        hostile.state_elsewhere(file, outside)
    with_weights = home / "with_weights.prototxt"
    with_weights.write_text(Path(solver).read_text() + f'weights: "{evil}"\n')
    onnx = written(home / "evil.onnx", hostile.ONNX["external"][0])
    hostile.archive(home / "evil.pt", hostile.PICKLES["stride-0"][0])
    written(home / "script.py", b"import speedo\n")
    of_net = ("--net", str(home / "net.prototxt"))
    commands = [
        ("train", solver, "--weights", str(evil)),
        ("train", solver, "--resume", str(state)),
        ("train", str(with_weights), "--workers", "1"),
        ("test", solver, "--weights", str(evil)),
        ("export", str(evil), *of_net, "--deploy", "deploy.prototxt"),
        ("import", str(onnx), *of_net, "out.caffemodel"),
        ("import", str(home / "evil.pt"), *of_net, "out.caffemodel"),
        ("run", "--weights", str(home / "evil.pt"), "script.py"),
    ]
    with watched(outside) as touched:
        for words in commands:
            process = speedo.start(*words)
            _, errors = process.communicate(timeout=120)
            assert process.returncode in (1, 2), (words, errors)
            assert f"{home}/evil." in errors, (words, errors)
            assert "in another file" in errors or "that are repeated" in errors
            assert "Traceback" not in errors
    assert touched == []


@pytest.mark.parametrize(
    "kind", ["external-storage", "virtual", "external-link", "soft-to-external"]
)
def test_a_file_of_records_holds_them_itself(home: Path, kind: str) -> None:
    outside = outside_of(home)
    with h5py.File(home / "rows.h5", "w") as file:
        hostile.MODEL_H5[kind][0](file, outside)
    (home / "list.txt").write_text(f"{home}/rows.h5\n")
    data = f'hdf5_data_param {{ source: "{home}/list.txt" batch_size: 2 }}'
    net = (
        f'layer {{ name: "rows" type: "HDF5Data" top: "data/ip/0" {data} }} '
        'layer { name: "loss" type: "EuclideanLoss" bottom: "data/ip/0" bottom: "data/ip/0" top: "loss" }'
    )
    with watched(outside) as touched:
        with pytest.raises(
            SolverError, match=r"rows.h5 has .*: give a file that holds its own values"
        ):
            check_solver(read_solver(write_solver(home, net)), workers=1, split=False)
        with pytest.raises(
            DataError, match=r"rows.h5 has .*: give a file that holds its own values"
        ):
            list(read_hdf5([home / "rows.h5"], "data/ip/0", "data/ip/0", print))
    assert touched == []
