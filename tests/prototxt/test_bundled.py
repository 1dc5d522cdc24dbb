"""The bundled solvers: found where they are installed, of the stated size, and trained by real
Caffe."""

from __future__ import annotations

import json
import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.data.base import Shape
from speedo.data.database import raw_record, record_key, write_database
from speedo.data.mean import MeanImage, write_mean
from speedo.engines.solver import bundled
from speedo.engines.solver.bundled import bundled_names, bundled_solver
from speedo.errors import SolverError

NAMES = ("alexnet", "cifar10_full", "cifar10_quick", "googlenet", "lenet")
IMAGES: Mapping[str, Shape] = {
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "imagenet": (3, 256, 256),
}


def test_the_bundled_solvers_are_these() -> None:
    assert bundled_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_solver_names_a_net_beside_it_and_has_a_readme(name: str) -> None:
    solver = bundled_solver(name)
    assert solver.is_absolute()
    assert 'net: "train_test.prototxt"' in solver.read_text()
    assert (solver.parent / "train_test.prototxt").is_file()
    assert (solver.parent / "README.md").is_file()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SolverError, match=r"'vgg' is no bundled solver: use one of .*lenet"):
        bundled_solver("vgg")


def test_an_installed_wheel_finds_its_own_folder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("prototxt/other", "speedo/prototxt/lenet"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "solver.prototxt").touch()
    monkeypatch.setattr(bundled, "_PACKAGE", tmp_path / "speedo")
    assert bundled_names() == ("lenet",)
    assert bundled_solver() == tmp_path / "speedo/prototxt/lenet/solver.prototxt"


def test_an_installation_without_solvers_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled, "_PACKAGE", tmp_path / "speedo")
    with pytest.raises(SolverError, match="install speedo again"):
        bundled_names()


def test_googlenet_is_what_its_generator_writes() -> None:
    folder = bundled_solver("googlenet").parent
    generator = runpy.run_path(str(folder / "generate.py"))
    assert (folder / "train_test.prototxt").read_text() == generator["googlenet"]()


def load(name: str, folder: Path, *, batch: int) -> dict[str, Any]:
    """What `loading.py` says of a bundled solver on tiny made-up data, in a process of its own."""
    solver = bundled_solver(name)
    net = (solver.parent / "train_test.prototxt").read_text()
    sources = set(re.findall(r'source: "([^"]+)"', net))
    (dataset,) = {str(Path(source).parent) for source in sources}
    assert sources == {f"{dataset}/train_lmdb", f"{dataset}/test_lmdb"}
    make_data(folder / dataset, IMAGES[dataset])
    net = re.sub(r'(source|mean_file): "', rf'\1: "{folder}/', net)
    net = re.sub(r"batch_size: \d+", f"batch_size: {batch}", net)
    (folder / "net.prototxt").write_text(net)
    text = solver.read_text().replace('"train_test.prototxt"', f'"{folder}/net.prototxt"')
    text = re.sub(r"test_iter: \d+|test_initialization: false", "", text)
    text += "\ntest_iter: 1\ntest_initialization: false\nrandom_seed: 1\n"
    (folder / "solver.prototxt").write_text(text)
    ended = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("loading.py")),
            str(folder / "solver.prototxt"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"GLOG_minloglevel": "2", "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def make_data(folder: Path, shape: Shape) -> None:
    """Four random images in each database, and their mean."""
    chance = np.random.default_rng(6)
    mean = MeanImage()
    for database in ("train_lmdb", "test_lmdb"):
        images = chance.integers(0, 256, (4, *shape), dtype=np.uint8)
        for image in images:
            mean.add(image)
        write_database(
            folder / database,
            [raw_record(record_key(i), image, i) for i, image in enumerate(images)],
        )
    write_mean(folder, "train_lmdb", mean)


@pytest.mark.caffe
@pytest.mark.parametrize(
    ("name", "batch", "train", "test"),
    [
        ("lenet", 4, 431_080, 431_080),
        ("cifar10_quick", 4, 145_578, 145_578),
        ("cifar10_full", 4, 89_578, 89_578),
        ("googlenet", 1, 13_378_280, 6_998_552),
        pytest.param("alexnet", 1, 60_965_224, 60_965_224, marks=pytest.mark.slow),
    ],
)
def test_caffe_trains_the_net_with_the_stated_parameters(
    tmp_path: Path, name: str, batch: int, train: int, test: int
) -> None:
    pytest.importorskip("caffe")
    answer = load(name, tmp_path, batch=batch)
    assert answer["parameters"] == [train, test]
    # An untrained net guesses: the loss is about the logarithm of the number of classes.
    imagenet = name in ("alexnet", "googlenet")
    classes = 1000 if imagenet else 10
    assert answer["train"]["loss"] == pytest.approx(math.log(classes), rel=0.3)
    heads = {"auxiliary1/loss", "auxiliary2/loss"} if name == "googlenet" else set()
    assert set(answer["train"]) == {"loss"} | heads
    tops = {"accuracy_top5"} if imagenet else set()
    assert set(answer["test"]) == {"loss", "accuracy"} | tops


@pytest.mark.caffe
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "lenet",
            {
                "base_lr": 0.01,
                "lr_policy": "inv",
                "gamma": 0.0001,
                "power": 0.75,
                "momentum": 0.9,
                "weight_decay": 0.0005,
                "max_iter": 1876,
                "test_interval": 938,
                "test_iter": [100],
            },
        ),
        ("cifar10_quick", {"base_lr": 0.001, "lr_policy": "fixed", "weight_decay": 0.004}),
        ("cifar10_full", {"base_lr": 0.001, "lr_policy": "fixed", "weight_decay": 0.004}),
        ("googlenet", {"base_lr": 0.01, "lr_policy": "poly", "power": 0.5, "momentum": 0.9}),
        ("alexnet", {"base_lr": 0.01, "lr_policy": "step", "gamma": 0.1, "weight_decay": 0.0005}),
    ],
)
def test_solvers_have_the_published_settings(name: str, fields: dict[str, Any]) -> None:
    caffe_pb2 = pytest.importorskip("caffe.proto.caffe_pb2")
    text_format = pytest.importorskip("google.protobuf.text_format")
    solver = text_format.Parse(bundled_solver(name).read_text(), caffe_pb2.SolverParameter())
    assert solver.solver_mode == caffe_pb2.SolverParameter.CPU
    for field, expected in fields.items():
        value = getattr(solver, field)
        if isinstance(expected, list):
            assert list(value) == expected
        else:
            assert value == (pytest.approx(expected) if isinstance(expected, float) else expected)
