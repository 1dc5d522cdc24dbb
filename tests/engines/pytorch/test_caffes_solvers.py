"""Each solver of Caffe's own examples and models, from the archive that `make setup` keeps, unchanged.

The data that it names are made: a few records of random numbers. It is read, checked for the PyTorch engine and makes
a step of two images there; those of `examples/` take the same step on pycaffe. One that cannot train says why.
"""

from __future__ import annotations

import re
import tarfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from google.protobuf import text_format

from caffenets.prototxt.upgrade import upgrade_net
from speedo.engines.caffe_import import load_caffe
from speedo.engines.make import EngineChoice, make_engine
from speedo.engines.solver.checks import check_solver
from speedo.engines.solver.reading import read_solver
from speedo.engines.solver.rewrite import Draws, solver_for_worker
from speedo.engines.solver.spec import SolverOverrides, SolverSpec
from speedo.errors import SolverError
from tests.data.leveldbs import write_leveldb
from tests.support.archived_nets import CACHE
from tests.support.nets import relative_difference

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

BATCH: Final = 2
TOLERANCE: Final = 1e-4
# Its first step is the sign of each gradient: of those near nothing the last bits decide.
BY_RULE: Final = {"AdaGrad": 5e-3}
# What those say that cannot be trained, first; all others train.
REFUSED: Final = {
    "examples/mnist/lenet_auto_solver.prototxt": [
        "names the net 'mnist/lenet_auto_train.prototxt', which was not found",
        "names the net 'mnist/lenet_auto_test.prototxt', which was not found",
    ],
    "examples/finetune_pascal_detection/pascal_finetune_solver.prototxt": [
        "line 3: layer 'data' (WindowData) cuts windows out of images, which only Caffe's own reader does",
    ],
}


@cache
def archive() -> Path | None:
    """The archive of Caffe's source; None where there is none."""
    return next(iter((CACHE / "source").glob("caffe_*.tar.gz")), None)


@cache
def prototxts() -> dict[str, bytes]:
    """The archive's prototxts, by the path of each: it is unpacked once."""
    path = archive()
    assert path is not None
    found = {}
    with tarfile.open(path) as files:
        for one in files:
            content = files.extractfile(one) if one.name.endswith(".prototxt") else None
            if content is not None:
                found[one.name.removeprefix("./")] = content.read()
    return found


@cache
def solvers() -> list[Any]:
    """The paths of all solvers below `examples/` and `models/`, or one that says that there is no archive."""
    if archive() is None:
        missing = pytest.mark.skip(reason=f"no archive of Caffe's source in {CACHE}")
        return [pytest.param("", marks=missing)]
    return sorted(
        name
        for name in prototxts()
        if re.fullmatch(r"(examples|models)/.*solver[^/]*\.prototxt", name) is not None
    )


@pytest.fixture
def caffe_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caffe's own prototxts where they lie in its source; commands are run from its root."""
    for name, content in prototxts().items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_data(nets: list[Any], root: Path) -> None:
    """Four random records for each source that the nets name, of the form and size that they read, and the means."""
    rng = np.random.default_rng(3)
    for layer in (layer for net in nets for layer in net.layer):
        crop = layer.transform_param.crop_size
        size = (3, 256, 256) if crop else (3, 32, 32) if "cifar" in layer.name else (1, 28, 28)
        if layer.type == "Data":
            size = (2, 28, 28) if "pair" in layer.name else size
            source = root / layer.data_param.source
            if not source.exists():
                source.parent.mkdir(parents=True, exist_ok=True)
                lmdb = layer.data_param.backend == layer.data_param.LMDB
                (write_lmdb_of if lmdb else write_leveldb)(source, datums(size, rng))
        elif layer.type == "ImageData":
            write_images(root / layer.image_data_param.source, rng)
        if mean := layer.transform_param.mean_file:
            write_mean(root / mean, size)


def datums(size: tuple[int, ...], rng: np.random.Generator) -> list[tuple[bytes, bytes]]:
    proto = load_caffe().proto.caffe_pb2
    made = []
    for index in range(4):
        datum = proto.Datum(channels=size[0], height=size[1], width=size[2], label=index % 2)
        datum.data = rng.integers(0, 256, size).astype(np.uint8).tobytes()
        made.append((b"%08d" % index, datum.SerializeToString()))
    return made


def write_lmdb_of(folder: Path, records: list[tuple[bytes, bytes]]) -> None:
    import lmdb

    opened = lmdb.open(str(folder), map_size=1 << 24)
    with opened, opened.begin(write=True) as transaction:
        for key, value in records:
            transaction.put(key, value)


def write_images(source: Path, rng: np.random.Generator) -> None:
    """A list of four JPEG files with its labels."""
    from PIL import Image

    source.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for index in range(4):
        file = source.parent / f"{source.stem}-{index}.jpg"
        Image.fromarray(rng.integers(0, 256, (256, 256, 3)).astype(np.uint8)).save(file)
        lines.append(f"{file} {index % 2}\n")
    source.write_text("".join(lines))


def write_mean(file: Path, size: tuple[int, ...]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    blob = load_caffe().proto.caffe_pb2.BlobProto()
    blob.num, (blob.channels, blob.height, blob.width) = 1, size
    blob.data.extend(np.full(int(np.prod(size)), 120.0).tolist())
    file.write_bytes(blob.SerializeToString())


def nets_of(path: Path, root: Path) -> list[Any]:
    """The nets that the solver names or holds, as far as they are there."""
    proto = load_caffe().proto.caffe_pb2
    solver = text_format.Parse(path.read_text(), proto.SolverParameter())
    files = [solver.net, solver.train_net, *solver.test_net]
    inline = [solver.net_param, solver.train_net_param, *solver.test_net_param]
    read = [
        text_format.Parse((root / file).read_text(), proto.NetParameter())
        for file in files
        if file and (root / file).exists()
    ]
    for net in (nets := [*read, *inline]):
        upgrade_net(net, str(path))
    return nets


def stepped(
    engine: str, spec: SolverSpec, scratch: Path, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, float]:
    """The weights before and after one step of this engine, and its loss; it draws them if none are given."""
    scratch.mkdir()
    text = solver_for_worker(
        spec,
        rank=0,
        count=1,
        batch_size=BATCH,
        seed=5,
        scratch=scratch,
        draws=Draws.ALL if weights is None else Draws.NONE,
    )
    choice = EngineChoice("torch" if engine == "torch" else "caffe", "cpu")
    built = make_engine(choice, text, lr_policy=spec.lr_policy, folder=spec.folder, scratch=scratch)
    try:
        if weights is None:
            weights = built.layout.zeros()
            built.read_weights(weights)
        built.load_weights(weights)
        built.set_iteration(0)
        loss = built.step(1)
        after = built.layout.zeros()
        built.read_weights(after)
        return weights, after, loss
    finally:
        built.close()


@pytest.mark.parametrize("name", solvers())
def test_a_solver_of_caffe_trains_or_says_why_not(
    name: str, caffe_root: Path, tmp_path: Path
) -> None:
    path = caffe_root / name
    write_data(nets_of(path, caffe_root), caffe_root)
    overrides = SolverOverrides(engine="torch")
    if name in REFUSED:
        with pytest.raises(SolverError) as raised:
            check_solver(read_solver(path, overrides=overrides), workers=1, split=False)
        problems = str(raised.value).splitlines()
        assert len(problems) >= len(REFUSED[name]), problems
        assert all(part in one for part, one in zip(REFUSED[name], problems, strict=False)), (
            problems
        )
        return
    spec = read_solver(path, overrides=overrides)
    check_solver(spec, workers=1, split=False)
    before, after, loss = stepped("torch", spec, tmp_path / "torch", None)
    assert np.isfinite(loss)
    assert np.all(np.isfinite(after))
    assert not np.array_equal(before, after)
    if name.startswith("examples/"):
        _, expected, expected_loss = stepped("caffe", spec, tmp_path / "caffe", before)
        assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
        assert relative_difference(after, expected, before) < BY_RULE.get(spec.type, TOLERANCE)
