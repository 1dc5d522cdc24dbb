"""Files that are damaged or made to do harm: one sentence with a remedy, and nothing is left behind."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from speedo.data.cifar10 import prepare_cifar10
from speedo.data.idx import read_idx
from speedo.data.images import prepare_images
from speedo.data.mnist import prepare_fashion_mnist
from speedo.errors import DataError
from tests.data.makers import idx_folder

# A process with one gigabyte of address space; the bomb unpacks to four.
CHILD = """
import resource, sys
from pathlib import Path
from speedo.data.mnist import prepare_fashion_mnist
from speedo.errors import DataError
source, out = map(Path, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    prepare_fashion_mnist(out, source=source)
except DataError as error:
    print(error)
"""
ZEROS = gzip.compress(bytes(16 << 20), mtime=0)


def told_in_a_small_process(source: Path, out: Path) -> str:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(source), str(out)],
        capture_output=True, text=True, check=False, timeout=120, env=environment,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert "Traceback" not in child.stderr
    assert list(out.parent.iterdir()) == []
    return child.stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.mark.processes
def test_a_gzip_bomb_among_idx_files_is_unpacked_no_further_than_its_header(
    tmp_path: Path, root: Path
) -> None:
    idx_folder(tmp_path / "source")
    header = gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 30, 4, 5), mtime=0)
    bomb = tmp_path / "source" / "train-images-idx3-ubyte.gz"
    bomb.write_bytes(header + 256 * ZEROS)
    told = told_in_a_small_process(tmp_path / "source", root / "out")
    assert told == f"{bomb} has more bytes, its header says 616: it is damaged, fetch it again"


def test_an_idx_header_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "images.gz"
    file.write_bytes(gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 2**31)))
    with pytest.raises(DataError, match=r"more than the [0-9,]+ that are read.*fetch it"):
        read_idx(file, 3)


def test_the_checksum_is_looked_at_before_anything_is_unpacked(tmp_path: Path, root: Path) -> None:
    damaged = tmp_path / "cifar-10-binary.tar.gz"
    damaged.write_bytes(b"\x1f\x8b no gzip at all")
    with pytest.raises(DataError, match="is not the published file"):
        prepare_cifar10(root / "out", source=damaged)
    assert list(root.iterdir()) == []


def test_a_damaged_gzip_among_idx_files_is_one_sentence(tmp_path: Path, root: Path) -> None:
    idx_folder(tmp_path / "source")
    file = tmp_path / "source" / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for cut in (1, 5, 11, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"fetch it again$") as caught:
            prepare_fashion_mnist(root / "out", source=tmp_path / "source")
        assert str(file) in str(caught.value)
    assert list(root.iterdir()) == []


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path, root: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "list.txt").write_text("pipe 0\n")
    for listed in (tmp_path / "list.txt", tmp_path / "pipe"):
        with pytest.raises(
            DataError, match=r"pipe cannot be read: it is no regular file; .*name another file"
        ):
            prepare_images(listed, root / "out")
    assert list(root.iterdir()) == []


def test_a_device_without_end_is_not_read(tmp_path: Path, root: Path) -> None:
    (tmp_path / "list.txt").write_text("/dev/zero 0\n")
    with pytest.raises(DataError, match=r"/dev/zero cannot be read: it is no regular file"):
        prepare_images(tmp_path / "list.txt", root / "out")


def test_a_name_with_a_nul_is_a_line_to_mend(tmp_path: Path, root: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"a\0b.png 0\n")
    with pytest.raises(DataError, match=r"list.txt line 1: .*cannot be read.*correct it"):
        prepare_images(tmp_path / "list.txt", root / "out")


def test_postscript_is_no_image(tmp_path: Path, root: Path) -> None:
    """Pillow would run another program on it."""
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    )
    (tmp_path / "list.txt").write_text("a.png 0\n")
    with pytest.raises(DataError, match="is not an image that can be decoded"):
        prepare_images(tmp_path / "list.txt", root / "out")


def image_bomb(path: Path) -> None:
    """A PNG of 60,000 x 60,000 black pixels, in a few kilobytes of file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # fmt: skip

    header = struct.pack(">2I5B", 60_000, 60_000, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")
    )  # fmt: skip


def test_an_image_bomb_is_not_decoded(tmp_path: Path, root: Path) -> None:
    image_bomb(tmp_path / "bomb.png")
    (tmp_path / "list.txt").write_text("bomb.png 0\n")
    with pytest.raises(DataError, match=r"list.txt line 1: .*not an image that can be decoded"):
        prepare_images(tmp_path / "list.txt", root / "out")
