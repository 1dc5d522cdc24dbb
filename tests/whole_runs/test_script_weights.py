"""`--weights` of a script's run: an .npz of a run or PyTorch's state dict, and all that does not fit at once."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedo.engines.quadratic import QuadraticEngine
from speedo.errors import ConfigError
from speedo.exchange.npz import write_arrays
from speedo.exchange.vector import Blob, Layout
from speedo.run.config.run_config import make_config
from speedo.run.script_weights import check_script_weights, first_arrays, weights_of
from tests.whole_runs.test_script_runs import SIZE, ScriptRun, join_all

LAYOUT = Layout((Blob("file", (2, 3)), Blob("b", ()), Blob("mean", (2,), True, True)))
VALUES = np.arange(9, dtype=np.float32)


def weights_in(path: Path, layout: Layout = LAYOUT) -> list[float]:
    check_script_weights(path, print)
    arrays = first_arrays(path)
    assert arrays is not None
    return weights_of(arrays, layout, path).tolist()


def save(path: Path, value: Any) -> Path:
    import torch

    torch.save(value, path)
    return path


def test_an_npz_of_a_run_or_of_numpy_has_the_weights(tmp_path: Path) -> None:
    write_arrays(tmp_path / "model.npz", LAYOUT, VALUES)
    assert weights_in(tmp_path / "model.npz") == VALUES.tolist()
    np.savez_compressed(tmp_path / "w", mean=np.float64([1, 2]), b=np.float16(3))
    layout = Layout((Blob("b", ()), Blob("mean", (2,))))
    assert weights_in(tmp_path / "w.npz", layout) == [3.0, 1.0, 2.0]
    assert first_arrays(None) is None


@pytest.mark.torch
def test_a_state_dict_has_them_whatever_its_counters_and_second_names_are(tmp_path: Path) -> None:
    import torch
    from torch import nn

    from speedo.engines.pytorch.module_weights import ModuleWeights

    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).to(torch.bfloat16)
    net[2].weight = net[0].weight
    weights = ModuleWeights(net)
    expected = weights.layout.zeros()
    weights.read_weights(expected)
    path = save(tmp_path / "net.pt", net.state_dict())
    assert weights_in(path, weights.layout) == expected.tolist()
    torch.save(net.state_dict(), path, _use_new_zipfile_serialization=False)
    assert weights_in(path, weights.layout) == expected.tolist()


def test_a_run_begins_from_them_and_not_from_those_of_worker_0(tmp_path: Path) -> None:
    layout = QuadraticEngine(SIZE).layout
    ones = np.ones(layout.size, np.float32)
    write_arrays(tmp_path / "ones.npz", layout, ones)
    run = ScriptRun(tmp_path / "run", weights=tmp_path / "ones.npz")
    np.testing.assert_array_equal(join_all(run).center.vector, ones)
    np.savez(tmp_path / "other.npz", v=ones)
    run = ScriptRun(tmp_path / "second", weights=tmp_path / "other.npz")
    with pytest.raises(ConfigError, match=r"other.npz has v of shape \(8,\), which the model does"):
        run.join()


def test_everything_that_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    wrong = {"b": np.float64(1e300), "other": np.ones(1)}
    np.savez(tmp_path / "w.npz", **wrong)
    with zipfile.ZipFile(tmp_path / "w.npz", "a") as archive, archive.open("file.npy", "w") as out:
        np.lib.format.write_array(out, np.zeros((3, 2)))  # a name that `savez` does not take
    arrays = first_arrays(tmp_path / "w.npz")
    assert arrays is not None
    with pytest.raises(ConfigError) as told:
        weights_of(arrays, LAYOUT, "w.npz")
    assert told.value.problems == (
        "w.npz has file in shape (3, 2), the model in shape (2, 3)",
        "w.npz has numbers in b that are not finite in float32",
        "w.npz has no mean, which the model has in shape (2,)",
        "w.npz has other of shape (1,), which the model does not have",
        "give --weights a file of this model",
    )


def test_a_file_that_is_not_there_says_what_there_could_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not a file; give .*\.npz of a run or .*\(\.pt\)"):
        make_config({"weights": tmp_path / "none.npz", "script": ("train.py",)})


def test_a_file_that_is_none_of_both_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.npz"
    write_arrays(whole, LAYOUT, VALUES)
    data = whole.read_bytes()
    for number, text in enumerate((data[:-20], data[:100], data.replace(b"<f4", b"|O4"))):
        path = tmp_path / f"{number}.npz"
        path.write_bytes(text)
        with pytest.raises(ConfigError, match=f"weights: {path} (is|has)"):
            weights_in(path)
    np.savez(tmp_path / "counts.npz", n=np.arange(3))
    with pytest.raises(ConfigError, match=r"without floating point: n \(int64\)"):
        weights_in(tmp_path / "counts.npz")
    np.savez(tmp_path / "objects.npz", n=np.array([object()]))
    with pytest.raises(ConfigError, match=r"without floating point: n \(object\)"):
        weights_in(tmp_path / "objects.npz")
    with pytest.raises(ConfigError, match="weights names 2 files: give one"):
        first_arrays(Path(f"{whole},{tmp_path / '0.npz'}"))


@pytest.mark.torch
def test_of_pytorch_only_tensors_by_their_names_are_read(tmp_path: Path) -> None:
    import torch

    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (ran,)

    path = save(tmp_path / "evil.pt", {"w": Evil()})
    with pytest.raises(
        ConfigError,
        match=r"read without running code: it calls .* getattr: save model\.state_dict\(\)",
    ):
        weights_in(path)
    assert not ran.exists()
    for value, said in (
        ([1], "holds a list, no state dict"),
        ({"epoch": 3, "model": {}}, r"other things than tensors \('epoch', 'model'\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            weights_in(save(path, value))
    for text in (b"", b"hello", save(path, {"w": torch.ones(9)}).read_bytes()[:-30]):
        path.write_bytes(text)
        with pytest.raises(ConfigError, match=r"give the \.npz of a run|which cannot be read"):
            weights_in(path)
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(ConfigError, match="has no file, which the model has"):
        weights_in(path)
