"""HDF5Data gives pycaffe's rows: several files, several tops, shards, batches larger than a file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speedo.engines.solver.hdf5_shares import write_shares
from speedo.engines.solver.lr_policies import LrPolicy
from speedo.errors import EngineError, SolverError
from tests.support.data_layers import assert_same, by_caffe, by_torch, source_of

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

TOPS = ("data", "label", "number")


def write_files(folder: Path, rows: list[int]) -> Path:
    """A list of files with so many rows each, in `number` numbered through."""
    random = np.random.default_rng(0)
    names, start = [], 0
    for at, count in enumerate(rows):
        names.append(folder / f"{at}.h5")
        with h5py.File(names[-1], "w") as file:
            file["data"] = random.normal(0, 1e3, (count, 2, 3, 2))  # float64
            file["label"] = random.integers(0, 9, (count, 1), np.int64)
            file["number"] = np.arange(start, start + count, dtype=np.uint16)
        start += count
    path = folder / "list.txt"
    path.write_text("\n".join(map(str, names)))
    return path


def hdf5_layer(source: Path, batch: int, more: str = "", tops: tuple[str, ...] = TOPS) -> str:
    named = " ".join(f'top: "{top}"' for top in tops)
    return (
        f'name: "rows" type: "HDF5Data" {named} '
        f'hdf5_data_param {{ source: "{source}" batch_size: {batch} {more} }}'
    )


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize(("rank", "count"), [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)])
@pytest.mark.parametrize("rows", [[7], [3], [5, 2, 4], [1, 1, 9]])
def test_a_shard_has_caffes_rows_over_the_ends_of_files(
    tmp_path: Path, phase: str, rank: int, count: int, rows: list[int]
) -> None:
    # A batch of four: more than some of the files have.
    layer = hdf5_layer(write_files(tmp_path, rows), 4)
    expected = by_caffe(layer, 8, tmp_path, phase=phase, rank=rank, count=count)
    assert_same(by_torch(layer, 8, phase=phase, rank=rank, count=count), expected)


def test_tops_may_be_any_of_the_datasets_in_any_order(tmp_path: Path) -> None:
    layer = hdf5_layer(write_files(tmp_path, [5, 3]), 3, tops=("number", "data"))
    assert_same(by_torch(layer, 4), by_caffe(layer, 4, tmp_path))


@pytest.mark.parametrize(
    "kind", [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.uint32, np.int64]
)
def test_every_type_of_number_becomes_float32_as_in_caffe(tmp_path: Path, kind: type) -> None:
    with h5py.File(tmp_path / "one.h5", "w") as file:
        large = np.array([0, 1, 16777217, 33554435, 2**31 + 129, 2**53 + 1, 3.3e38, 0.1])
        bounds = np.iinfo(kind) if np.issubdtype(kind, np.integer) else np.finfo(kind)
        file["data"] = np.clip(large, 0, float(bounds.max) / 2).astype(kind)
    (tmp_path / "list.txt").write_text(f"{tmp_path}/one.h5")
    layer = hdf5_layer(tmp_path / "list.txt", 8, tops=("data",))
    assert_same(by_torch(layer, 1), by_caffe(layer, 1, tmp_path))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    batch=st.integers(1, 9),
    count=st.integers(1, 4),
    rank=st.integers(0, 3),
    before=st.integers(0, 3),
    skipped=st.integers(0, 7),
    shuffle=st.booleans(),
    ahead=st.booleans(),
)
def test_skipped_rows_are_those_that_would_have_come(
    tmp_path: Path,
    rows: list[int],
    batch: int,
    count: int,
    rank: int,
    before: int,
    skipped: int,
    shuffle: bool,
    ahead: bool,
) -> None:
    place = {"rank": rank % count, "count": count, "seed": 5}
    more = "shuffle: true" if shuffle else ""
    layer = hdf5_layer(write_files(tmp_path, rows), batch, more)
    whole = by_torch(layer, before + skipped + 2, **place)
    source = source_of(layer, ahead=ahead, **place)
    source.setup([])
    for _ in range(before):
        source.forward([], [])
    source.skip(skipped)
    rest = [[top.numpy() for top in source.forward([], [])] for _ in range(2)]
    source.close()
    assert_same(rest, whole[before + skipped :])
    if not shuffle:
        numbers = np.concatenate([tops[2] for tops in whole])
        expected = [(rank % count + at * count) % sum(rows) for at in range(len(numbers))]
        assert numbers.tolist() == expected


@pytest.mark.parametrize("engine", ["caffe", "torch"])
@pytest.mark.parametrize(
    ("rows", "count"), [([18], 2), ([4, 1, 8, 5], 3), ([1, 1, 1], 3), ([200, 1, 131], 2)]
)
def test_shuffled_shards_have_no_row_in_common_in_an_epoch(
    tmp_path: Path, engine: str, rows: list[int], count: int
) -> None:
    files = write_files(tmp_path, rows).read_text().split()
    each = sum(rows) // count
    read: list[list[np.ndarray]] = []
    for rank in range(count):
        folder = tmp_path / str(rank)
        folder.mkdir()
        shares = write_shares(files, TOPS, rank, count, folder, "layer 'rows'")
        (folder / "list.txt").write_text("\n".join(shares))
        layer = hdf5_layer(folder / "list.txt", each, "shuffle: true")
        place = {"rank": rank, "count": count, "seed": rank}  # each worker has its own seed
        read.append(
            by_torch(layer, 6, **place)
            if engine == "torch"
            else by_engine(layer, 6, folder, **place)
        )
    orders = set()
    for epoch in zip(*read, strict=True):
        numbers = np.concatenate([tops[2] for tops in epoch])
        assert sorted(numbers) == list(range(sum(rows)))
        orders.add(tuple(numbers))
    assert len(orders) > 3 or each == 1


def by_engine(layer: str, batches: int, folder: Path, **place: int) -> list[list[np.ndarray]]:
    """The batches of a layer in the engine of pycaffe."""
    from speedo.engines.pycaffe import PycaffeEngine

    text = (
        f"train_net_param {{ layer {{ {layer} }} layer {{ name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'ip' "
        "inner_product_param { num_output: 1 } } } base_lr: 0 lr_policy: 'fixed' solver_mode: CPU "
        f"random_seed: {place['seed']}"
    )
    engine = PycaffeEngine(
        text, lr_policy=LrPolicy("fixed", 0.0), rank=place["rank"], count=place["count"]
    )
    read = []
    for _ in range(batches):
        engine.step(1)
        read.append([engine._net.blobs[top].data.copy() for top in TOPS])
    engine.close()
    return read


def test_rows_of_a_file_come_before_those_of_the_next_as_in_caffe(tmp_path: Path) -> None:
    layer = hdf5_layer(write_files(tmp_path, [4, 8, 6]), 18, "shuffle: true")
    for _, _, numbers in by_torch(layer, 5, seed=1):
        files = np.searchsorted([4, 12], numbers, side="right")
        assert (np.diff(files) != 0).sum() == 2


def test_a_share_has_the_rows_of_any_type_and_any_name_of_file(tmp_path: Path) -> None:
    folder = tmp_path / "100%b-\u00fc"
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("data", data=np.arange(21).reshape(7, 3), compression="gzip")
        file["label"] = np.arange(7, dtype=np.float16)
    (name,) = write_shares([f"{folder}/a.h5"], ("data", "label"), 1, 3, folder, "layer 'rows'")
    with h5py.File(name) as share:
        assert share["data"][:].tolist() == [[3, 4, 5], [12, 13, 14]]
        assert share["label"][:].tolist() == [1, 4]
    (folder / "list.txt").write_text(name)
    layer = hdf5_layer(folder / "list.txt", 2, tops=("data", "label"))
    (rows,) = by_caffe(layer, 1, tmp_path)
    assert rows[0].tolist() == [[3, 4, 5], [12, 13, 14]]


@pytest.mark.parametrize(
    ("tops", "words"),
    [
        (("data", "other"), r"which cannot be divided between workers .*other"),
        (TOPS, "reads 1 rows, fewer than there are workers: use fewer"),
    ],
)
def test_files_that_cannot_be_divided_are_told(
    tmp_path: Path, tops: tuple[str, ...], words: str
) -> None:
    files = write_files(tmp_path, [1]).read_text().split()
    with pytest.raises(SolverError, match=words):
        write_shares(files, tops, 1, 2, tmp_path, "layer 'rows'")


def test_one_shuffled_file_changes_its_order_every_epoch(tmp_path: Path) -> None:
    layer = hdf5_layer(write_files(tmp_path, [8]), 8, "shuffle: true")
    orders = {tuple(numbers) for _, _, numbers in by_torch(layer, 6, seed=1)}
    assert len(orders) == 6
    assert all(sorted(order) == list(range(8)) for order in orders)


def refusal(layer: str, batches: int = 0) -> str:
    source = source_of(layer)
    with pytest.raises(EngineError) as error:  # noqa: PT012
        source.setup([])
        for _ in range(batches):
            source.forward([], [])
    source.close()
    assert str(error.value).startswith("layer 'rows' (HDF5Data) ")
    return str(error.value)


def test_a_file_that_does_not_fit_is_refused_by_its_name(tmp_path: Path) -> None:
    source = write_files(tmp_path, [5, 3])
    second = tmp_path / "1.h5"
    assert "has no dataset 'other' (it has data, label, number)" in refusal(
        hdf5_layer(source, 2, tops=("data", "other"))
    )
    assert "does not take: remove it" in refusal(
        hdf5_layer(source, 2) + " transform_param { scale: 2 }"
    )
    with h5py.File(second, "a") as file:
        del file["data"]
        file["data"] = np.zeros((3, 2, 2, 2), np.float32)
    assert f"reads {second}, which has rows of shape (2, 2, 2) in data" in refusal(
        hdf5_layer(source, 2), 3
    )
    with h5py.File(second, "a") as file:
        del file["data"]
        file["data"] = np.zeros((4, 2, 3, 2), np.float32)
    assert "does not have the same number of rows" in refusal(hdf5_layer(source, 2), 3)
    with h5py.File(second, "a") as file:
        del file["data"]
        file["data"] = ["a", "b", "c"]
    assert "write rows of numbers" in refusal(hdf5_layer(source, 2), 3)
    second.write_bytes(b"no HDF5")
    assert f"reads {second}, which cannot be read" in refusal(hdf5_layer(source, 2), 3)
    second.unlink()
    assert f"needs the HDF5 file {second}, which does not exist" in refusal(hdf5_layer(source, 2))


def test_an_empty_list_or_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(hdf5_layer(tmp_path / "none", 2))
    (tmp_path / "empty").write_text(" \n")
    assert "is empty" in refusal(hdf5_layer(tmp_path / "empty", 2))
    assert "does not have the same number of rows, 1 or more" in refusal(
        hdf5_layer(write_files(tmp_path, [0]), 2)
    )
