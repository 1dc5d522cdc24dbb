"""The Data layer gives pycaffe's records: order, shards, wrap-around, transformations, and refusals by key."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caffenets.shared_lmdb import SharedLmdb
from speedo.engines.caffe_import import load_caffe
from speedo.engines.record_check import first_problem
from speedo.engines.record_rules import RecordRule
from speedo.errors import EngineError
from tests.support.data_layers import (
    assert_same,
    by_caffe,
    by_torch,
    data_layer,
    datum,
    pixels,
    source_of,
    write_records,
)

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

RECORDS = 11
SHAPE = (3, 9, 8)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven images in color, labelled by their numbers."""
    folder = tmp_path_factory.mktemp("data") / "colors"
    images = pixels((RECORDS, *SHAPE))
    return write_records(folder, (datum(image, at) for at, image in enumerate(images)))


@pytest.fixture(scope="module")
def mean_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = np.random.default_rng(1).random(SHAPE, np.float32) * 255
    blob = load_caffe().io.array_to_blobproto(values[None])
    path = tmp_path_factory.mktemp("mean") / "mean.binaryproto"
    path.write_bytes(blob.SerializeToString())
    return path


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize(("rank", "count"), [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)])
def test_a_shard_has_caffes_records_over_the_end_of_the_database(
    database: Path, tmp_path: Path, phase: str, rank: int, count: int
) -> None:
    layer = data_layer(database, 4)
    expected = by_caffe(layer, 9, tmp_path, phase=phase, rank=rank, count=count)
    assert_same(by_torch(layer, 9, phase=phase, rank=rank, count=count), expected)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.integers(1, 13),
    count=st.integers(1, 13),
    rank=st.integers(0, 12),
    skipped=st.lists(st.integers(0, 5), max_size=4),
    ahead=st.booleans(),
)
def test_skipped_batches_are_those_that_would_have_come(
    database: Path, batch: int, count: int, rank: int, skipped: list[int], ahead: bool
) -> None:
    place = {"rank": rank % count, "count": count, "seed": 3}
    layer = data_layer(database, batch, "transform_param { crop_size: 5 mirror: true }")
    whole = by_torch(layer, sum(skipped) + len(skipped) + 1, **place)
    source = source_of(layer, ahead=ahead, **place)
    source.setup([])
    at = 0
    for batches in skipped:
        source.skip(batches)
        at += batches
        found = [[top.numpy() for top in source.forward([], [])]]
        assert_same(found, whole[at : at + 1])
        at += 1
    source.close()
    # The shard itself, by the rule alone.
    labels = np.concatenate([labels for _, labels in whole])
    assert labels.tolist() == [(rank % count + at * count) % RECORDS for at in range(len(labels))]


MEAN_VALUES = "mean_value: 104 mean_value: 117.5 mean_value: 123.25"


@pytest.mark.parametrize(
    ("transform", "phase"),
    [
        ("", "TRAIN"),
        ("scale: 0.00390625", "TRAIN"),
        ("scale: 0.017", "TRAIN"),
        ("mean_value: 127.3", "TRAIN"),
        (f"{MEAN_VALUES} scale: 0.3", "TRAIN"),
        ('mean_file: "MEAN"', "TRAIN"),
        ('mean_file: "MEAN" scale: 0.3', "TRAIN"),
        ("crop_size: 5", "TEST"),
        ("crop_size: 8", "TEST"),
        (f"crop_size: 6 scale: 0.3 {MEAN_VALUES}", "TEST"),
        ('mean_file: "MEAN" crop_size: 5 scale: 0.01', "TEST"),
        ('mean_file: "MEAN" crop_size: 4 scale: 0.01', "TEST"),
        ("force_color: true", "TRAIN"),
        ("force_gray: true", "TRAIN"),
    ],
)
def test_transformations_without_chance_are_caffes_to_the_bit(
    database: Path, mean_file: Path, tmp_path: Path, transform: str, phase: str
) -> None:
    layer = data_layer(
        database, 4, f"transform_param {{ {transform.replace('MEAN', str(mean_file))} }}"
    )
    assert_same(by_torch(layer, 4, phase=phase), by_caffe(layer, 4, tmp_path, phase=phase))


@pytest.mark.parametrize("blob", ["shape", "double", "two images"])
def test_every_form_of_a_mean_file_is_read_as_caffe_reads_it(
    database: Path, tmp_path: Path, blob: str
) -> None:
    values = np.random.default_rng(2).random(SHAPE) * 255
    made = load_caffe().proto.caffe_pb2.BlobProto()
    if blob == "two images":
        made.num, made.channels, made.height, made.width = 2, *SHAPE
        made.data.extend([*values.ravel(), *np.zeros(values.size)])
    else:
        made.shape.dim.extend((1, *SHAPE))
        (made.double_data if blob == "double" else made.data).extend(values.ravel())
    file = tmp_path / "mean.binaryproto"
    file.write_bytes(made.SerializeToString())
    layer = data_layer(database, 4, f'transform_param {{ mean_file: "{file}" }}')
    assert_same(by_torch(layer, 2), by_caffe(layer, 2, tmp_path))


def test_one_top_has_no_labels(database: Path, tmp_path: Path) -> None:
    layer = data_layer(database, 4, tops='top: "data"')
    assert_same(by_torch(layer, 2), by_caffe(layer, 2, tmp_path))


def test_float_data_is_transformed_as_bytes_are(tmp_path: Path) -> None:
    images = np.random.default_rng(3).normal(0, 1e3, (5, *SHAPE)).astype(np.float32)
    # Caffe takes the bytes of a record that has both, and decides for each record.
    mixed = [datum(image, at) for at, image in enumerate(images)] + [datum(pixels(SHAPE), 5)]
    database = write_records(tmp_path / "floats", mixed)
    transform = f"transform_param {{ crop_size: 5 {MEAN_VALUES} scale: 0.3 }}"
    layer = data_layer(database, 4, transform)
    assert_same(by_torch(layer, 3, phase="TEST"), by_caffe(layer, 3, tmp_path, phase="TEST"))


def test_records_of_several_sizes_are_cropped_to_one(tmp_path: Path) -> None:
    sizes = [(3, 9, 8), (3, 6, 12), (3, 7, 7), (3, 10, 10)]
    database = write_records(tmp_path / "sizes", (datum(pixels(size), 1) for size in sizes))
    layer = data_layer(database, 3, "transform_param { crop_size: 6 }")
    assert_same(by_torch(layer, 3, phase="TEST"), by_caffe(layer, 3, tmp_path, phase="TEST"))


def test_a_batch_of_one_takes_the_shape_of_its_record(tmp_path: Path) -> None:
    sizes = [(1, 9, 8), (1, 6, 12), (1, 7, 7)]
    database = write_records(tmp_path / "sizes", (datum(pixels(size), 1) for size in sizes))
    layer = data_layer(database, 1)
    assert_same(by_torch(layer, 4), by_caffe(layer, 4, tmp_path))


def test_bytes_beyond_the_shape_are_left_out(tmp_path: Path) -> None:
    made = load_caffe().proto.caffe_pb2.Datum(channels=1, height=2, width=2, label=3)
    made.data = bytes(range(6))
    database = write_records(tmp_path / "long", [made.SerializeToString()] * 2)
    layer = data_layer(database, 2)
    assert_same(by_torch(layer, 2), by_caffe(layer, 2, tmp_path))


def test_a_record_without_a_label_has_label_0(tmp_path: Path) -> None:
    without = datum(pixels((1, 4, 4)), None)
    database = write_records(tmp_path / "without", [datum(pixels((1, 4, 4)), 3), without])
    layer = data_layer(database, 2)
    assert_same(by_torch(layer, 2), by_caffe(layer, 2, tmp_path))


def test_random_windows_and_mirrors_are_spread_evenly_and_follow_the_seed(tmp_path: Path) -> None:
    image = np.arange(20, dtype=np.uint8).reshape(1, 4, 5)
    database = write_records(tmp_path / "one", [datum(image)])
    layer = data_layer(database, 600, "transform_param { crop_size: 3 mirror: true }")
    drawn = by_torch(layer, 4, seed=1)
    windows = np.concatenate([data for data, _ in drawn])[:, 0]
    counts: dict[tuple[int, int, bool], int] = {}
    for window in windows.astype(int):
        mirrored = bool(window[0, 0] > window[0, 2])
        straight = window[:, ::-1] if mirrored else window
        top, left = divmod(int(straight[0, 0]), 5)
        np.testing.assert_array_equal(straight, image[0, top : top + 3, left : left + 3])
        counts[top, left, mirrored] = counts.get((top, left, mirrored), 0) + 1
    # 2,400 draws of 2 x 3 windows, mirrored or not: 200 each, with a deviation of 13.5.
    assert len(counts) == 12
    assert all(140 < count < 260 for count in counts.values())
    assert_same(by_torch(layer, 4, seed=1), drawn)
    for other in ({"seed": 2}, {"seed": 1, "rank": 1, "count": 2}, {}):
        assert not np.array_equal(by_torch(layer, 4, **other)[0][0], drawn[0][0])
    assert not np.array_equal(drawn[1][0], drawn[0][0])


def test_a_random_window_is_taken_from_the_mean_too(
    database: Path, mean_file: Path, tmp_path: Path
) -> None:
    less_mean = f'mean_file: "{mean_file}" scale: 0.5'
    whole = by_caffe(data_layer(database, 11, f"transform_param {{ {less_mean} }}"), 1, tmp_path)[0]
    layer = data_layer(database, 11, f"transform_param {{ {less_mean} crop_size: 4 mirror: true }}")
    places = set()
    for window, image in zip(by_torch(layer, 1, seed=5)[0][0], whole[0], strict=True):
        found = [
            (top, left, flip)
            for top in range(6)
            for left in range(5)
            for flip in (1, -1)
            if np.array_equal(image[:, top : top + 4, left : left + 4][..., ::flip], window)
        ]
        assert len(found) == 1
        places.update(found)
    assert len(places) > 5


def refusal(layer: str, batches: int = 3, **place: object) -> str:
    source = source_of(layer, **place)
    with pytest.raises(EngineError) as error:  # noqa: PT012
        source.setup([])
        for _ in range(batches):
            source.forward([], [])
    source.close()
    return str(error.value)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (datum(pixels((1, 4, 4)))[:-9], "is not a Datum of Caffe"),
        (datum(pixels((1, 4, 3))), "is 1 x 4 x 3, but the first record is 1 x 4 x 4"),
        (datum(pixels((2, 4, 4))), "prepare all with the same channels"),
        (b"", "create the database again"),
    ],
)
def test_a_bad_record_is_refused_by_its_key(
    tmp_path: Path, bad: bytes, said: str, ahead: bool
) -> None:
    good = datum(pixels((1, 4, 4)), 1)
    database = write_records(tmp_path / "bad", [good, good, good, bad, good])
    source = source_of(data_layer(database, 2), ahead=ahead)
    source.setup([])
    source.forward([], [])
    with pytest.raises(EngineError, match=r"layer 'records'.*'00000003'") as error:
        source.forward([], [])
    source.close()
    assert said in str(error.value)
    assert str(database) in str(error.value)


def test_a_record_that_is_shorter_than_its_shape_is_refused(tmp_path: Path) -> None:
    made = load_caffe().proto.caffe_pb2.Datum(channels=1, height=4, width=4, label=1)
    made.data = bytes(15)
    database = write_records(tmp_path / "short", [made.SerializeToString()])
    assert "'00000000'" in (said := refusal(data_layer(database, 2)))
    assert "holds 15 values, but its shape 1 x 4 x 4 needs 16" in said


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        ("crop_size: 9", "smaller than crop_size 9"),
        ("mean_value: 1 mean_value: 2", "has 2 mean_value, and its records have 3 channels"),
        ('mean_value: 1 mean_file: "MEAN"', "has both mean_file and mean_value"),
        ("force_gray: true force_color: true", "has both force_color and force_gray"),
        ('mean_file: "missing"', "missing, which does not exist"),
    ],
)
def test_a_transformation_that_cannot_be_is_refused_before_training(
    database: Path, mean_file: Path, transform: str, said: str
) -> None:
    layer = data_layer(
        database, 2, f"transform_param {{ {transform.replace('MEAN', str(mean_file))} }}"
    )
    assert said in refusal(layer, 0)


def test_a_mean_of_another_shape_is_refused(tmp_path: Path, mean_file: Path) -> None:
    database = write_records(tmp_path / "other", [datum(pixels((3, 9, 9)))])
    layer = data_layer(database, 2, f'transform_param {{ mean_file: "{mean_file}" }}')
    assert "is 3 x 9 x 9, but the mean file is 3 x 9 x 8" in refusal(layer, 0)


@pytest.mark.parametrize("content", [b"", b"\x08", b"not one"])
def test_a_damaged_mean_file_is_refused(database: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mean.binaryproto"
    file.write_bytes(content)
    layer = data_layer(database, 2, f'transform_param {{ mean_file: "{file}" }}')
    assert f"needs the mean file {file}" in refusal(layer, 0)


def test_a_missing_empty_or_truncated_database_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(data_layer(tmp_path / "none", 2), 0)
    empty = write_records(tmp_path / "empty", [])
    assert "holds no record" in refusal(data_layer(empty, 2), 0)
    (tmp_path / "folder").mkdir()
    assert "is no LMDB" in refusal(data_layer(tmp_path / "folder", 2), 0)
    cut = write_records(tmp_path / "cut", [datum(pixels((3, 32, 32)))] * 40)
    file = cut / "data.mdb"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert "is cut short" in refusal(data_layer(cut, 2), 0)
    file.write_bytes(b"x" * 10000)
    assert "cannot be opened" in refusal(data_layer(cut, 2), 0)


def test_a_batch_size_of_0_is_refused(database: Path) -> None:
    assert "use a batch_size of 1 or more" in refusal(data_layer(database, 0), 0)


def test_relative_names_are_found_in_the_places_folder(database: Path, mean_file: Path) -> None:
    mean = f"../{mean_file.parent.name}/{mean_file.name}"
    layer = data_layer(Path(database.name), 2, f'transform_param {{ mean_file: "{mean}" }}')
    found = by_torch(layer, 1, folder=database.parent)
    assert found[0][1].tolist() == [0, 1]


def test_several_layers_share_one_database_and_its_last_user_closes_it(database: Path) -> None:
    layers = [source_of(data_layer(database, 3)) for _ in range(3)]
    for layer in layers:
        layer.setup([])
    layers[0].forward([], [])
    with SharedLmdb(database) as environment:
        assert environment.stat()["entries"] == RECORDS
    rule = RecordRule("records", str(database), False, "", 3, 0, None, 0, None)
    assert first_problem(rule, lambda: False) == (None, True)
    layers[0].close()
    layers[0].close()
    assert [layer.forward([], [])[1].tolist() for layer in layers[1:]] == [[0, 1, 2]] * 2
    for layer in layers[1:]:
        layer.close()
    import lmdb

    with lmdb.open(str(database), readonly=True, lock=False) as alone:
        assert alone.stat()["entries"] == RECORDS


def test_reading_ahead_is_bounded_and_its_thread_ends(database: Path) -> None:
    before = threading.active_count()
    source = source_of(data_layer(database, 4), ahead=True)
    source.setup([])
    assert threading.active_count() == before
    first = source.forward([], [])
    assert threading.active_count() == before + 1
    assert first[1].tolist() == [0, 1, 2, 3]
    source.skip(2)
    assert source.forward([], [])[1].tolist() == [1, 2, 3, 4]
    source.close()
    source.close()
    assert threading.active_count() == before


def test_a_leveldb_is_read_from_its_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from speedo.data.roots import CACHE_VARIABLE
    from tests.data.leveldbs import write_leveldb

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    images = pixels((5, 1, 4, 4))
    keyed = ((b"%08d" % at, datum(image, at)) for at, image in enumerate(images))
    database = write_leveldb(tmp_path / "leveldb", keyed)
    layer = data_layer(database, 3).replace("backend: LMDB", "backend: LEVELDB")
    assert_same(by_torch(layer, 3), by_caffe(layer, 3, tmp_path))


def test_a_layer_of_speedos_own_schema_is_read_alike(database: Path, tmp_path: Path) -> None:
    from caffenets.caffe_schema.caffe_pb2 import LayerParameter
    from caffenets.layer import LayerContext
    from speedo.engines.pytorch.data import SOURCES

    layer = data_layer(database, 4, "transform_param { scale: 0.3 crop_size: 5 }")
    source = SOURCES["Data"](text_format.Parse(layer, LayerParameter()), LayerContext("TEST"))
    source.setup([])
    found = [[top.numpy() for top in source.forward([], [])] for _ in range(3)]
    source.close()
    assert_same(found, by_caffe(layer, 3, tmp_path, phase="TEST"))
