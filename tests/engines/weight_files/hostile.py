"""Files of weights that a stranger made to read other files, to fill the memory, or to run code. No tests itself.

Each function writes its file and is named by it; `WORDS` has the words that the error must have.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

GIB = 1 << 30
NUL = b""


@cache
def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(at: int, value: int) -> bytes:
    return varint(at << 3) + varint(value)


def blob(shape: tuple[int, ...], values: bytes) -> bytes:
    return field(7, field(1, b"".join(map(varint, shape)))) + field(5, values)


def net(*layers: bytes) -> bytes:
    return b"".join(field(100, one) for one in layers)


def layer(*blobs: bytes, name: bytes = b"ip") -> bytes:
    return field(1, name) + b"".join(field(7, one) for one in blobs)


def good_layer() -> bytes:
    return layer(blob((2, 3), bytes(24)), blob((2,), bytes(8)))


# ------------------------------------------------------------ .caffemodel: bytes and the words of the error

BINARY: dict[str, tuple[bytes, str]] = {
    "truncated": (net(good_layer())[:-5], "is not a .caffemodel, or a truncated one"),
    "longer-than-the-file": (b"\xa2\x06" + varint(2**40) + b"x", "is not a .caffemodel, or a truncated one"),
    "empty": (NUL, "is empty: give another file"),
    "text": (b"name: 'a net in text'\n", "is not a .caffemodel"),
    "a-pickle": (pickle.dumps({"ip": [1.0]}), "is not a .caffemodel"),
    "product-of-2-64": (net(layer(blob((2**32, 2**32), NUL))), "holds 0 values, but its shape is"),
    "product-of-2-128": (net(layer(blob((2**62,) * 3, bytes(4)))), "holds 1 values, but its shape is"),
    "negative": (net(layer(blob((-2, -3), bytes(24)))), "has the shape -2 x -3"),
    "million-axes": (net(layer(blob((1,) * 1_000_000, bytes(4)))), "more than 32 axes"),
    "axes-one-by-one": (net(layer(field(7, number(1, 1) * 100) + field(5, bytes(4)))), "has the shape 1 x 1"),
    "million-layers": (b"\xa2\x06\x00" * 1_000_000, "more than 400,000 entries"),
    "million-blobs": (net(layer() + b"\x3a\x00" * 1_000_000), "more than 400,000 entries"),
    "long-name": (net(layer(name=b"x" * 10_000_000)), "a name of more than"),
    "groups": (b"\xa3\x06" * 100_000, "a kind that protobuf does not have"),
    "endless-number": (b"\xff" * 100, "is not a .caffemodel"),
    "odd-bytes": (net(layer(blob((2,), bytes(7)))), "no whole numbers"),
    "other-layers": (net(layer(blob((2, 3), bytes(24)), name=b"fc")), "has no layer of this net, only fc"),
    "other-shape": (net(layer(blob((3, 2), bytes(24)), blob((2,), bytes(8)))), "is 2 x 3 in this net, but 3 x 2"),
    "three-blobs": (net(good_layer() + field(7, blob((2,), bytes(8)))), "has 2 blobs in this net, but 3"),
    "two-formats": (net(good_layer()) + field(2, field(4, b"ip")), "layers in two formats"),
    "old-shape": (net(layer(number(1, 2**31 - 1) + number(2, 2**31 - 1) + field(5, bytes(4)))), "holds 1 values"),
}  # fmt: skip

# ------------------------------------------------------------ .solverstate

HISTORY = blob((2, 3), bytes(24)), blob((2,), bytes(8))
STATE: dict[str, tuple[bytes, str]] = {
    "no-weights": (number(1, 3) + b"".join(field(3, one) for one in HISTORY), "names no weights"),
    "huge-history": (
        field(2, b"m") + field(3, blob((2**31, 4), NUL)),
        "holds 0 values, but its shape is",
    ),
    "long-net": (field(2, b"m" * 100_000), "a name of more than"),
    "truncated": (field(2, b"m") + b"\x1a\x20", "is not a .solverstate"),
    "negative": (number(1, -7) + field(2, b"{outside}/model.caffemodel"), "is at iteration -7"),
}

# ------------------------------------------------------------ HDF5


def hdf5(path: Path, fill: Callable[[Any], None]) -> None:
    with h5py.File(path, "w") as file:
        fill(file)


def external_storage(file: Any, outside: Path, name: str = "data/ip/0", rows: int = 2) -> None:
    places = [(str(outside / "secret"), 0, 4 * 3 * rows)]
    file.create_dataset(name, (rows, 3), np.float32, external=places)


def virtual(file: Any, outside: Path, source: str, limit: int | None) -> None:
    layout = h5py.VirtualLayout((2, 3), np.float32, maxshape=(limit, 3))
    layout[...] = h5py.VirtualSource(str(outside / source), "data/ip/0", (2, 3))
    file.create_virtual_dataset("data/ip/0", layout)


def printf_virtual(file: Any, outside: Path) -> None:
    """A virtual dataset without a fixed size: its shape alone makes the library look for %b.h5."""
    space = h5py.h5s.create_simple((1, 3), (h5py.h5s.UNLIMITED, 3))
    space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (1, 1), (1, 3))
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    source = h5py.h5s.create_simple((1, 3))
    created.set_virtual(space, f"{outside}/%b.h5".encode(), b"data/ip/0", source)
    group = file.create_group("data/ip")
    h5py.h5d.create(group.id, b"0", h5py.h5t.IEEE_F32LE, space, created)


def cycle(file: Any, outside: Path) -> None:
    group = file.create_group("data/ip")
    for name in ("a", "b", "c"):
        group[name] = group


def bomb(file: Any, outside: Path) -> None:
    made = file.create_dataset(
        "data/ip/0", (GIB * 2,), np.float32, chunks=(1 << 20,), compression=9
    )
    made[: 1 << 20] = 0


def hard_links(file: Any, outside: Path) -> None:
    file["data/ip/0"] = np.zeros((2, 3), np.float32)
    for index in range(1, 900):
        file[f"data/ip/{index}"] = file["data/ip/0"]


def deep(file: Any, outside: Path) -> None:
    file.create_group("/".join(["data", *["x"] * 300]))


def never_written(file: Any, outside: Path) -> None:
    file.create_dataset("data/ip/0", (2 * GIB,), np.float32)


def in_chunks(file: Any, outside: Path) -> None:
    file.create_dataset("data/ip/0", (2 * GIB,), np.float32, chunks=(1 << 20,))


def linked(kind: str, target: str, name: str = "data/ip/0") -> Callable[[Any, Path], None]:
    def fill(file: Any, outside: Path) -> None:
        other = str(outside / "secret.h5")
        file[name] = (
            h5py.ExternalLink(other, target) if kind == "external" else h5py.SoftLink(target)
        )

    return fill


def linked_twice(file: Any, outside: Path) -> None:
    file["away"] = h5py.ExternalLink(str(outside / "secret.h5"), "/")
    file["data"] = h5py.SoftLink("/away/data")


def of_type(kind: Any, name: str = "data/ip/0") -> Callable[[Any, Path], None]:
    return lambda file, outside: file.create_dataset(name, data=np.zeros(6, kind))


def holding(**values: Any) -> Callable[[Any, Path], None]:
    def fill(file: Any, outside: Path) -> None:
        for name, value in values.items():
            file[name.replace("__", "/")] = value

    return fill


def state_elsewhere(file: Any, outside: Path) -> None:
    file["iter"], file["current_step"], file["learned_net"] = [3], [0], np.bytes_(b"m\0")
    external_storage(file, outside, "history/0")


MODEL_H5: dict[str, tuple[Callable[[Any, Path], None], str]] = {
    "external-storage": (external_storage, "has the values of '0' in another file"),
    "external-8-GiB": (lambda file, outside: external_storage(file, outside, rows=GIB * 2 // 3), "in another file"),
    "virtual": (lambda file, outside: virtual(file, outside, "secret.h5", 2), "virtual dataset"),
    "virtual-not-there": (lambda file, outside: virtual(file, outside, "nowhere.h5", None), "virtual dataset"),
    "virtual-without-end": (printf_virtual, "virtual dataset"),
    "external-link": (linked("external", "/data/ip/0"), "has a link, and no values, under '0'"),
    "external-group": (linked("external", "/data", "data"), "has a link, and no values, under 'data'"),
    "soft-link": (linked("soft", "/elsewhere"), "has a link"),
    "soft-to-external": (linked_twice, "has a link, and no values, under 'data'"),
    "compressed": (bomb, "compressed or filtered, which Caffe does not write: copy it with `h5repack"),
    "never-written": (never_written, "declares 2,147,483,648 values for blob 0 of layer 'ip', and holds none"),
    "in-chunks": (in_chunks, "in chunks"),
    "cycle": (cycle, "groups within groups"),
    "deep": (deep, "groups within groups"),
    "texts": (of_type("S5"), "values of the type |S5 in /data/ip/0"),
    "compound": (of_type([("a", "f4"), ("b", "f4")]), "values of the type"),
    "complex": (of_type(np.complex64), "values of the type complex64"),
    "blob-10-8": (of_type(np.float32, "data/ip/100000000"), "has a blob 100000000"),
    "many-names": (hard_links, "has 2 blobs in this net, but 900"),
    "no-data": (holding(other=[1.0]), "it has no group 'data'"),
    "data-is-an-array": (holding(data=[1.0]), "it has no group 'data'"),
}  # fmt: skip
STATE_H5: dict[str, tuple[Callable[[Any, Path], None], str]] = {
    "external-storage": (state_elsewhere, "has the values of '0' in another file"),
    "external-history": (linked("external", "/data", "history"), "has a link"),
    "no-numbers": (holding(history__0=[1.0]), "is not the state of a solver in HDF5"),
    "text-of-any-length": (
        holding(
            history__0=np.zeros(6, np.float32), iter=[3], current_step=[0], learned_net="x" * 9
        ),
        "has no plain text under 'learned_net'",
    ),
}


# ------------------------------------------------------------ .onnx


def tensor(shape: tuple[int, ...], rest: bytes, kind: int = 1, name: bytes = b"ip.weight") -> bytes:
    return b"".join(number(1, one) for one in shape) + number(2, kind) + field(8, name) + rest


def onnx(*tensors: bytes) -> bytes:
    return field(7, b"".join(field(5, one) for one in tensors))


AWAY = field(13, field(1, b"location") + field(2, b"secret"))
ONNX: dict[str, tuple[bytes, str]] = {
    "external": (onnx(tensor((2, 3), AWAY + number(14, 1))), "has the values of 'ip.weight' in another file"),
    "external-unsaid": (onnx(tensor((2, 3), AWAY + field(9, bytes(24)))), "in another file"),
    "fewer-values": (onnx(tensor((2**31, 4), field(9, bytes(24)))), "holds 6 values, but its shape is"),
    "negative": (onnx(tensor((-2, -3), field(9, bytes(24)))), "has the shape -2 x -3"),
    "many-axes": (onnx(tensor((1,) * 100_000, field(9, bytes(4)))), "more than 32 axes"),
    "million-initializers": (field(7, b"\x2a\x00" * 1_000_000), "more than 400,000 entries"),
    "no-graph": (field(2, b"maker"), "has no graph"),
    "truncated": (onnx(tensor((2, 3), field(9, bytes(24))))[:-3], "is not an ONNX file, or a truncated one"),
    "float16-as-integers": (onnx(tensor((2,), field(5, b"\x01\x02"), kind=10)), "float16 values as integers"),
}  # fmt: skip


# ------------------------------------------------------------ .pt: what `data.pkl` does, and the words

UTILS = b"ctorch._utils\n_rebuild_tensor_v2\n"


def integer(value: int) -> bytes:
    return b"\x8a" + bytes([9]) + value.to_bytes(9, "little", signed=True)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def stored_tensor(
    shape: tuple[int, ...], strides: tuple[int, ...], first: int = 0, key: str = "0"
) -> bytes:
    """The instructions that make a tensor of 6 numbers."""
    storage = (
        b"("
        + text("storage")
        + b"ctorch\nFloatStorage\n"
        + text(key)
        + text("cpu")
        + integer(6)
        + b"tQ"
    )
    sizes = b"".join(b"(" + b"".join(map(integer, one)) + b"t" for one in (shape, strides))
    return UTILS + b"(" + storage + integer(first) + sizes + b"\x89ccollections\nOrderedDict\n)RtR"


def named(value: bytes, name: bytes = b"") -> bytes:
    return b"\x80\x02}(" + (name or text("ip/0")) + value + b"u."


CALL = b"cposix\nsystem\n(" + text("touch ran") + b"tR"
TOO_MANY = named(b"(" + b"}" * 1_000_000 + b"t")
PICKLES: dict[str, tuple[bytes, str]] = {
    "stride-0": (named(stored_tensor((2**16, 2**16), (0, 0))), "as 1 values that are repeated to 65536 x 65536"),
    "stride-0-in-part": (named(stored_tensor((2**31, 3), (0, 1))), "repeated to 2147483648 x 3"),
    "beyond-its-storage": (named(stored_tensor((2, 3), (3, 1), first=1)), "declares more values for 'ip/0' than it"),
    "8-GiB": (named(stored_tensor((2**31,), (1,))), "declares more values"),
    "negative-stride": (named(stored_tensor((2, 3), (-3, 1))), "has the strides (-3, 1)"),
    "negative-shape": (named(stored_tensor((-2, -3), (3, 1))), "has the shape -2 x -3"),
    "first-below-0": (named(stored_tensor((2, 3), (3, 1), first=-9)), "is damaged"),
    "no-such-storage": (named(stored_tensor((2, 3), (3, 1), key="7")), "a state dict"),
    "code": (named(CALL), "read without running code: it calls posix system"),
    "code-as-a-key": (named(b"N", CALL), "it calls posix system"),
    "eval": (named(b"cbuiltins\neval\n(" + text("1/0") + b"tR"), "it calls builtins eval"),
    "bytearray": (named(b"cbuiltins\nbytearray\n(" + integer(2**40) + b"tR"), "it calls builtins bytearray"),
    "meta-tensor": (named(b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n)R"), "it calls torch._utils"),
    "an-object": (named(b"cos\nenviron\n)\x81"), "pickle's NEWOBJ"),
    "million-tables": (TOO_MANY, "more than 400,000 entries"),
    "memo-2-31": (named(b"Nr\xff\xff\xff\x7f"), "holds other things than tensors ('ip/0')"),
    "bytes-2-40": (named(b"\x8e" + struct.pack("<Q", 2**40)), "is damaged"),
    "nested-key": (named(b"N", b")" + b"2\x86" * 60), "pickle's DUP"),
    "key-of-a-tuple": (named(b"N", b")q\x00h\x00\x86" * 40 + b"0" * 0), "a table by tuple"),
    "a-list": (b"\x80\x02]q\x00.", "holds a list, no state dict"),
    "a-checkpoint": (named(b"}", text("model")), "holds other things than tensors ('model')"),
    "no-end": (b"\x80\x02}", "is damaged"),
    "other-shape": (named(stored_tensor((6,), (1,))), "has ip/0 in shape (6,), the model in shape (2, 3)"),
}  # fmt: skip


def archive(path: Path, content: bytes, how: int = zipfile.ZIP_STORED, storage: int = 24) -> None:
    with zipfile.ZipFile(path, "w", how) as out:
        out.writestr("net/data.pkl", content)
        out.writestr("net/data/0", bytes(storage))


def before_1_6(path: Path, content: bytes, count: int) -> None:
    """PyTorch's older form: pickles, then the number of values of each storage, and the values."""
    parts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    first = b"".join(pickle.dumps(part, 2) for part in parts)
    keys = ["0"] if b"FloatStorage" in content else []
    path.write_bytes(first + content + pickle.dumps(keys, 2) + struct.pack("<q", count) + bytes(24))


# ------------------------------------------------------------ .npz


def npy(descr: str, shape: str, values: bytes, version: bytes = b"\x01\x00") -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(head)) + head + values


NPZ: dict[str, tuple[bytes, str]] = {
    "8-GiB": (npy("'<f4'", "(2147483648,)", NUL), "declares other values for 'ip/0' than it holds"),
    "product-of-2-64": (npy("'<f4'", "(4294967296, 4294967296)", NUL), "declares other values"),
    "negative": (npy("'<f4'", "(-2, -3)", bytes(24)), "has the shape -2 x -3"),
    "objects": (npy("'|O'", "(6,)", pickle.dumps([1])), "without floating point: ip/0 (object)"),
    "code-in-its-head": (npy("__import__('os').getcwd()", "(6,)", bytes(24)), "is not an .npz"),
    "nested-head": (npy("'<f4'", "(" * 3000, bytes(24)), "is not an .npz"),
    "long-head": (npy("'<f4'", "(6,)" + " " * 50_000, bytes(24)), "is not an .npz"),
    "version-3": (npy("'<f4'", "(6,)", bytes(24), b"\x03\x00"), "in a form of NumPy that weights do not need"),
    "an-archive": (b"PK\3\4" + bytes(60), "is not an .npz"),
    "other-shape": (npy("'<f4'", "(3, 2)", bytes(24)), "has ip/0 in shape (3, 2), the model in shape (2, 3)"),
}  # fmt: skip


def long_table(path: Path) -> None:
    """An archive that declares a table of 3 GiB."""
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("ip/0.npy", NUL)
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, len(content) - 10, 3 * GIB)
    path.write_bytes(content)


def write_all(folder: Path, outside: Path) -> dict[str, str]:
    """Every file, in `folder`; by its name, the words that the error must have. `outside` has what they would read."""
    words: dict[str, str] = {}

    def add(name: str, said: str) -> Path:
        words[name] = said
        return folder / name

    for end, table in (("caffemodel", BINARY), ("solverstate", STATE), ("onnx", ONNX)):
        for name, (content, said) in table.items():
            content = content.replace(b"{outside}", str(outside).encode())
            if end == "solverstate" and name == "negative":
                content = number(1, -7) + field(2, str(outside / "model.caffemodel").encode())
            add(f"{name}.{end}", said).write_bytes(content)
    for end, fills in (("caffemodel.h5", MODEL_H5), ("solverstate.h5", STATE_H5)):
        for name, (fill, said) in fills.items():
            with h5py.File(add(f"{name}.{end}", said), "w") as file:
                fill(file, outside)
    add("only-its-head.caffemodel.h5", "is not a .caffemodel.h5").write_bytes(
        b"\x89HDF\r\n\x1a\n" + b"x" * 99
    )
    for name, (content, said) in PICKLES.items():
        archive(add(f"{name}.pt", said), content)
        if name not in ("no-such-storage", "other-shape"):
            before_1_6(add(f"{name}.old.pt", said), content, 6)
    good = named(stored_tensor((2, 3), (3, 1)))
    archive(add("compressed.pt", "compressed or encrypted"), good, zipfile.ZIP_DEFLATED, 64 << 20)
    before_1_6(add("2-62-values.pt", "is truncated"), good, 2**62)
    before_1_6(add("values-below-0.pt", "is truncated"), good, -1)
    with zipfile.ZipFile(add("torchscript.pt", "an archive of something else"), "w") as out:
        out.writestr("net/code/net.py", "import os")
    for name, (content, said) in NPZ.items():
        with zipfile.ZipFile(add(f"{name}.npz", said), "w") as out:
            out.writestr("ip/0.npy", content)
    with zipfile.ZipFile(
        add("bomb.npz", "the model in shape (2, 3)"), "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as out:
        values = io.BytesIO()
        np.save(values, np.zeros(16 << 20, np.float32))
        out.writestr("ip/0.npy", values.getvalue())
    with zipfile.ZipFile(
        add("lzma.npz", "a form that NumPy does not write"), "w", zipfile.ZIP_LZMA
    ) as out:
        out.writestr("ip/0.npy", npy("'<f4'", "(6,)", bytes(24)))
    long_table(add("long-table.npz", "a table of 3,221,225,472 bytes"))
    for name, size in (("sparse.caffemodel", 2**31), ("sparse.solverstate", 2**40)):
        with add(name, "is not a" if "state" in name else "ends at 2,147,483,647").open(
            "wb"
        ) as sparse:
            sparse.truncate(size)
    return words
