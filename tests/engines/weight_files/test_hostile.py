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

from tests.engines.weight_files import hostile

MOST_MIB = 400  # of memory more than before the first file: some have 64 MB of values themselves
SCRIPT = """
import json, os, resource, sys
from pathlib import Path
import h5py, numpy
from speedo.engines.export.weights_back import read_initializers
from speedo.engines.weight_files.caffemodel import matched, read_model
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
    else:
        weights_of(first_arrays(path), Layout((Blob("ip/0", (2, 3)),)), path)

def mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), size + (1 << 30)))
before = mib()
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        take(path)
        said = "taken"
    except SpeedoError as error:
        said = str(error)
    except BaseException as error:
        said = f"NOT OURS: {type(error).__name__}: {error}"
    print(json.dumps([path.name, said, mib() - before]), flush=True)
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
    print("MAXMIB", max(more for _, _, more in answers), len(answers))
    assert max(more for _, _, more in answers) < MOST_MIB, answers
    assert touched == []
