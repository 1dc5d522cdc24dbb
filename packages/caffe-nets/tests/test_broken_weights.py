"""Broken and hostile weights, and what is no file: each ends in a sentence, in little time and memory."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caffenets
from caffenets.caffe_schema import caffe_pb2
from caffenets.errors import EngineError
from caffenets.weight_files.caffemodel import write_model

pytestmark = [pytest.mark.torch, pytest.mark.processes]


def model(*names: str) -> bytes:
    content = io.BytesIO()
    values = [np.ones((2, 192), np.float32), np.ones(2, np.float32)]
    layers = [(caffe_pb2.LayerParameter(name=one, type="InnerProduct"), values) for one in names]
    write_model(content, "net", layers)
    return content.getvalue()


class RunsCode:
    """Its pickle would make a file `ran` in the working folder."""

    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def varint(value: int) -> bytes:
    return (
        b""
        if value < 0
        else bytes([value])
        if value < 128
        else bytes([value & 127 | 128]) + varint(value >> 7)
    )


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def archive(
    change: Callable[[bytearray], None] = lambda _: None, name: str = "a.npy", **arrays: Any
) -> bytes:
    content = io.BytesIO()
    if arrays:
        np.savez(content, **arrays)
        return content.getvalue()
    values = io.BytesIO()
    np.save(values, np.zeros(3, np.float32))
    with zipfile.ZipFile(content, "w") as out:
        out.writestr(name, values.getvalue())
    changed = bytearray(content.getvalue())
    change(changed)
    return bytes(changed)


def in_table(offset: int, form: str, value: int) -> Callable[[bytearray], None]:
    return lambda content: struct.pack_into(form, content, content.find(b"PK\1\2") + offset, value)


def encrypted(content: bytearray) -> None:
    content[6] |= 1
    in_table(8, "<H", 1)(content)


def tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as out:
        info = tarfile.TarInfo("net.caffemodel")
        info.size = len(model("x"))
        out.addfile(info, io.BytesIO(model("x")))
    return content.getvalue()


def hdf5(fill: Callable[[Any], Any]) -> bytes:
    import h5py

    content = io.BytesIO()
    with h5py.File(content, "w") as out:
        fill(out)
    return content.getvalue()


def linked(**links: str) -> bytes:
    import h5py

    def fill(out: Any) -> None:
        for name, target in links.items():
            out[name.replace("__", "/")] = h5py.SoftLink(target)

    return hdf5(fill)


def dataset(**given: Any) -> bytes:
    return hdf5(lambda out: out.create_dataset("data/ip/0", **given))


def onnx(rest: bytes, kind: int = 1) -> bytes:
    return field(7, field(5, b"\x08\x03" + bytes([16, kind]) + field(8, b"w") + rest))


def elsewhere(place: str) -> bytes:
    return onnx(field(13, field(1, b"location") + field(2, place.encode())) + b"\x70\x01")


PAGE = b"<html><head><title>404 Not Found</title></head></html>\n"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 243862414\n"
SUFFIXES = ("caffemodel", "caffemodel.h5", "pt", "npz", "onnx")
MISTAKES = {
    "page": (PAGE, "is a web page: download the file"), "lfs": (LFS, "is a pointer of git-lfs, not the file: run"),
    "gz": (gzip.compress(model("x")), "is compressed by gzip: unpack it with gunzip"), "empty": (b"", "is empty: give"),
}  # fmt: skip


def weights() -> dict[str, tuple[bytes, str]]:
    """By the file's name its content, and what is said of it."""
    found = {f"{name}.{suffix}": one for name, one in MISTAKES.items() for suffix in SUFFIXES}
    state = b"\x08\x03" + field(2, b"m") + field(3, field(5, bytes(24)))
    return found | {
        "tar.caffemodel": (tar(), "is a tar archive: unpack it"),
        "tar.pt": (tar(), "is a tar archive: unpack it"),
        "array.npy": (
            archive()[35:],
            "is a single array of NumPy: save it with its name by numpy.savez",
        ),
        "zip.caffemodel": (archive(name="net.caffemodel"), "an archive of something else"),
        "state.caffemodel": (state, "is not a .caffemodel"),
        "state.solverstate": (state, "is not a .caffemodel"),
        "state.h5": (
            hdf5(lambda out: out.create_dataset("history/0", data=[1.0])),
            "it has no group 'data'",
        ),
        "length.caffemodel": (b"\xa2\x06" + varint(2**63 - 1) + b"x", "or a truncated one"),
        "nested.caffemodel": (
            b"\xa3\x06" * 10_000 + b"\xa4\x06" * 10_000,
            "a kind that protobuf does not have",
        ),
        "first.caffemodel": (
            field(2, field(1, field(1, b"ip") + field(50, b"\x08\x05" + field(5, bytes(4))))),
            "holds 1 values, but its shape is 5 x 0 x 0 x 0",
        ),
        "second.caffemodel": (
            field(2, field(4, b"ip") + field(6, b"\x08" + b"\xff" * 9 + b"\x01")),
            "has the shape -1 x 0 x 0 x 0",
        ),
        "nothing.caffemodel": (
            field(100, field(1, b"ip")),
            "has no arrays of floating point: give another file",
        ),
        "loop.h5": (linked(data__a="/data/b", data__b="/data/a"), "has a link, and no values"),
        "itself.h5": (linked(data="/data"), "has a link, and no values"),
        "huge.h5": (
            dataset(shape=(10**15,), dtype="f4", chunks=(1 << 20,)),
            "in chunks or in a header",
        ),
        "texts.h5": (dataset(data=["a", "b"]), "has values of the type object"),
        "cut.h5": (dataset(data=[1.0])[:-1], "is not a .caffemodel.h5, or a truncated one"),
        "integers.npz": (archive(a=np.zeros(3, np.int64)), "without floating point: a (int64)"),
        "texts.npz": (archive(a=np.array(["x"])), "without floating point: a (<U1)"),
        "objects.npz": (
            archive(a=np.array([RunsCode()], dtype=object)),
            "without floating point: a (object)",
        ),
        "encrypted.npz": (archive(encrypted), "is encrypted"),
        "offset.npz": (archive(in_table(42, "<I", 2**32 - 2)), "is not an .npz"),
        "length.npz": (
            archive(in_table(24, "<I", 2**31)),
            "declares other values for 'a' than it holds",
        ),
        "nothing.npz": (b"PK\5\6" + bytes(18), "has no arrays of floating point"),
        **{
            f"code{protocol}.pt": (
                pickle.dumps({"a": RunsCode()}, protocol),
                "is no" if protocol > 1 else "is not",
            )
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        },
        "short.onnx": (onnx(field(9, bytes(11))), "'w' holds no whole numbers"),
        "other.onnx": (onnx(field(9, bytes(12)), kind=99), "has no arrays of floating point"),
        **{
            f"elsewhere{at}.onnx": (
                elsewhere(place),
                "has the values of 'w' in another file: write it in one file",
            )
            for at, place in enumerate(("/etc/passwd", "../../etc/passwd", "link", "/dev/zero"))
        },
    }


# Files that are not read as they are no files, by name with what is said.
KINDS = ("caffemodel", "onnx", "prototxt")
PLACES = {
    "folder": "Is a directory", "pipe": "it is no regular file", "device": "it is no regular file",
    "loop": "Too many levels", "missing": "No such file or directory", "x" * 240: "",
}  # fmt: skip


def make_places(folder: Path, suffix: str) -> None:
    (folder / f"folder.{suffix}").mkdir()
    os.mkfifo(folder / f"pipe.{suffix}")
    (folder / f"device.{suffix}").symlink_to("/dev/zero")
    (folder / f"loop.{suffix}").symlink_to(f"loop.{suffix}")


def commands_of(folder: Path, name: str) -> list[list[str]]:
    file = str(folder / name)
    return [["show", file], ["diff", file, file]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def answers(folder: Path, tried: Any, unchanged: Any) -> Any:
    """What the commands say of every file."""
    pytest.importorskip("h5py")
    names = []
    for name, (content, _) in weights().items():
        (folder / name).write_bytes(content)
        names.append(name)
    for suffix in KINDS:
        make_places(folder, suffix)
        names += [f"{name}.{suffix}" for name in PLACES]
    with unchanged(folder):
        return tried({name: ({}, commands_of(folder, name)) for name in names}, folder)


@pytest.mark.parametrize("name", weights())
def test_broken_weights_are_refused_by_file_and_remedy(
    folder: Path, answers: Any, is_refused: Any, name: str
) -> None:
    is_refused(commands_of(folder, name), answers[name], weights()[name][1])


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_file_is_refused_at_once(
    folder: Path, answers: Any, is_refused: Any, suffix: str, name: str
) -> None:
    file = f"{name}.{suffix}"
    is_refused(commands_of(folder, file), answers[file], PLACES[name])


def test_a_caffemodel_that_ends_anywhere_is_truncated(tmp_path: Path) -> None:
    whole, file = model("ip")[:140], tmp_path / "net.caffemodel"
    for end in range(1, len(whole)):
        file.write_bytes(whole[:end])
        with pytest.raises(EngineError, match=r"net\.caffemodel (is|has)"):
            caffenets.read_weights(file)


def test_what_is_odd_but_right_is_read(tmp_path: Path, run: Any) -> None:
    outside = tmp_path / "net.npz"
    outside.write_bytes(archive(name="../../outside.npy"))
    assert run("show", outside)[:2] == (
        0,
        "../../outside  3  3\n1 arrays, 3 values, 0.0 MB as float32\n",
    )
    named = tmp_path / "net.caffemodel"
    named.write_bytes(model("\x1b[2J\nip"))
    status, out, _ = run("show", named)
    assert (status, out.split("  ")[0]) == (0, r"\x1b[2J\nip/0"), "nothing steers the terminal"
    torch = pytest.importorskip("torch")
    torch.save({"ip": torch.zeros(2)}, named)
    assert run("show", named)[0] == 0
