"""IDX files into databases: content, order, mean, and every way in which the files can be wrong."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from speedo.data import download, mnist
from speedo.data.base import PreparedDataset
from speedo.data.download import file_sha256
from speedo.data.mnist import prepare_fashion_mnist, prepare_mnist
from speedo.data.roots import default_data_root, ensure_bundled
from speedo.errors import DataError
from tests.data.makers import IDX_NAMES, datum_image, idx_bytes, idx_folder, mean_in, read_database


@pytest.mark.parametrize("packed", [True, False])
def test_databases_hold_the_source_in_its_order(tmp_path: Path, packed: bool) -> None:
    arrays = idx_folder(tmp_path / "source", packed=packed)
    prepared = prepare_fashion_mnist(tmp_path / "out", source=tmp_path / "source")
    assert prepared == PreparedDataset(
        folder=tmp_path / "out",
        counts={"train_lmdb": 30, "test_lmdb": 7},
        shape=(1, 4, 5),
        mean=tmp_path / "out" / "mean.binaryproto",
        built=True,
    )
    for name, images, labels in (("train_lmdb", *arrays[:2]), ("test_lmdb", *arrays[2:])):
        records = list(read_database(tmp_path / "out" / name))
        assert [key for key, _ in records] == [b"%08d" % index for index in range(len(images))]
        assert [datum.label for _, datum in records] == labels.tolist()
        assert np.array_equal(np.stack([datum_image(datum)[0] for _, datum in records]), images)


def test_the_mean_is_that_of_the_training_images(tmp_path: Path) -> None:
    images = idx_folder(tmp_path / "source")[0]
    prepared = prepare_fashion_mnist(tmp_path / "out", source=tmp_path / "source")
    assert prepared.mean is not None
    mean = mean_in(prepared.mean)
    assert mean.dtype == np.float32
    assert np.allclose(mean[0], images.mean(axis=0, dtype=np.float64), rtol=1e-6)


def test_progress_ends_at_the_number_of_records(tmp_path: Path) -> None:
    idx_folder(tmp_path / "source")
    told: list[tuple[int, int, str]] = []
    prepare_fashion_mnist(
        tmp_path / "out", source=tmp_path / "source", progress=lambda *what: told.append(what)
    )
    assert told == [(30, 30, "train_lmdb"), (7, 7, "test_lmdb")]


def test_a_missing_source_names_the_package_and_the_option(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train-images.*dataset-fashion-mnist.*--source"):
        prepare_fashion_mnist(tmp_path / "out", source=tmp_path / "nothing")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("train-images-idx3-ubyte.gz", b"not gzip", "cannot be decompressed"),
        ("train-images-idx3-ubyte.gz", gzip.compress(b"\0\0", mtime=0), "has 2 bytes only"),
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(b"\0\0\x08\x03" + bytes(12) + b"x", mtime=0),
            "damaged",
        ),
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(b"\0\0\x08\x01" + bytes(12), mtime=0),
            "exchanged",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            gzip.compress(idx_bytes(np.zeros(3, np.uint8)), mtime=0),
            "30 images but .*train-labels.* has 3 labels",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    idx_folder(tmp_path / "source")
    (tmp_path / "source" / name).write_bytes(content)
    with pytest.raises(DataError, match=told) as caught:
        prepare_fashion_mnist(tmp_path / "out", source=tmp_path / "source")
    assert name in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_mnist_refuses_local_archives_that_are_not_the_published_ones(tmp_path: Path) -> None:
    idx_folder(tmp_path / "source")
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is not the published file"):
        prepare_mnist(tmp_path / "out", source=tmp_path / "source")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a made-up MNIST, served and published in place of the real one."""
    folder = tmp_path / "served"
    idx_folder(folder)
    handler = partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{running.server_port}/"
        monkeypatch.setenv("no_proxy", "*")
        # The first address answers 404: the second must be tried.
        monkeypatch.setattr(mnist, "MNIST_URLS", (address + "gone/", address))
        sums = {name: file_sha256(folder / f"{name}.gz") for name in IDX_NAMES}
        monkeypatch.setattr(mnist, "MNIST_SHA256", sums)
        yield folder
        running.shutdown()
        thread.join()


def test_mnist_is_downloaded_from_the_first_address_that_has_it(
    tmp_path: Path, server: Path
) -> None:
    assert prepare_mnist(tmp_path / "out").counts == {"train_lmdb": 30, "test_lmdb": 7}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "dataset.json",
        "mean.binaryproto",
        "test_lmdb",
        "train_lmdb",
    ]


def test_a_download_with_a_wrong_checksum_is_refused(tmp_path: Path, server: Path) -> None:
    (server / "t10k-labels-idx1-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"SHA-256 is .*published is .*"):
        prepare_mnist(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_server_that_sends_without_end_is_left(
    tmp_path: Path, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MOST_BYTES", 100)
    with pytest.raises(DataError, match=r"it sent more than 100 bytes"):
        prepare_mnist(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_network_the_error_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    # Nobody listens on the discard port of loopback.
    monkeypatch.setattr(mnist, "MNIST_URLS", ("http://127.0.0.1:9/",))
    with pytest.raises(DataError) as caught:
        prepare_mnist(tmp_path / "out")
    told = str(caught.value)
    assert "http://127.0.0.1:9/train-images-idx3-ubyte.gz" in told
    assert "refused" in told
    assert all(name in told for name in IDX_NAMES)
    assert "mnist --source FOLDER" in told


def test_the_data_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("SPEEDO_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert default_data_root() == Path("/home/someone/.local/share/speedo/data")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert default_data_root() == Path("/xdg/speedo/data")
    monkeypatch.setenv("SPEEDO_DATA", "/somewhere")
    assert default_data_root() == Path("/somewhere")


def test_ensure_bundled_makes_fashion_mnist_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idx_folder(tmp_path / "source")
    monkeypatch.setattr(mnist, "FASHION_MNIST_SOURCE", tmp_path / "source")
    folder = ensure_bundled(tmp_path / "root", "fashion-mnist")
    assert folder == tmp_path / "root" / "fashion-mnist"
    made = (folder / "train_lmdb" / "data.mdb").stat().st_ino
    assert ensure_bundled(tmp_path / "root", "fashion-mnist") == folder
    assert (folder / "train_lmdb" / "data.mdb").stat().st_ino == made


def test_ensure_bundled_does_not_download(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"speedo data cifar10"):
        ensure_bundled(tmp_path, "cifar10")


@pytest.mark.skipif(
    not mnist.FASHION_MNIST_SOURCE.is_dir(), reason="Debian's dataset-fashion-mnist is not here"
)
def test_the_packaged_fashion_mnist_has_its_known_content(tmp_path: Path) -> None:
    prepared = prepare_fashion_mnist(tmp_path / "fashion-mnist")
    assert prepared.counts == {"train_lmdb": 60000, "test_lmdb": 10000}
    assert prepared.shape == (1, 28, 28)
    first = next(read_database(tmp_path / "fashion-mnist" / "train_lmdb"))[1]
    # The first training image is an ankle boot, class 9.
    assert first.label == 9
    assert prepared.mean is not None
    # The known mean of the training pixels is 0.2860 of 255 (as in torchvision's normalisation).
    assert mean_in(prepared.mean).mean() / 255 == pytest.approx(0.2860, abs=1e-4)
