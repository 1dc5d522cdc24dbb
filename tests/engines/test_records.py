"""All records are looked at before or beside a run; the first bad one is told with database, key and remedy."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter

from speedo.engines.caffe_import import load_caffe
from speedo.engines.label_rules import Classes, LabelUse
from speedo.engines.net_trial import check_in_subprocess
from speedo.engines.record_check import first_problem, is_known, remember
from speedo.engines.record_rules import RecordRule
from speedo.engines.record_watch import RecordWatch
from speedo.engines.solver import read_solver, solver_for_records, solver_for_worker
from speedo.errors import SolverError
from tests.support.commands import wait_until
from tests.support.nets import net_text, records, write_lmdb, write_solver

pytestmark = pytest.mark.caffe
RULE = RecordRule("data", "", False, "", 8, 0, None, 0, None)
FOUR = Classes("loss", "ip", 4, ignored=255)
OF_LABELS, OF_IMAGES = (replace(RULE, uses=(LabelUse(top, FOUR),)) for top in (1, 0))


def datum(**fields: Any) -> bytes:
    values = {"channels": 1, "height": 8, "width": 8, "data": bytes(64), "label": 1, **fields}
    return bytes(load_caffe().proto.caffe_pb2.Datum(**values).SerializeToString())


def encoded(
    size: tuple[int, int] = (8, 8), kind: str = "PNG", cut: int | None = None, **options: Any
) -> bytes:
    content = io.BytesIO()
    Image.new("L", size).save(content, kind, **options)
    return datum(encoded=True, data=content.getvalue()[:cut], channels=0, height=0, width=0)


def database(folder: Path, *values: bytes) -> Path:
    with lmdb.open(str(folder), map_size=1 << 24) as opened, opened.begin(write=True) as writing:
        for number, value in enumerate(values):
            writing.put(b"%08d" % number, value)
    return folder


def told(rule: RecordRule, source: Path) -> str | None:
    problem, whole = first_problem(replace(rule, source=str(source)), lambda: False)
    assert whole
    return problem


Made = Callable[[], bytes]


def good() -> list[bytes]:
    return [datum()] * 500


@pytest.mark.parametrize(
    ("bad", "rule", "words"),
    [
        (lambda: datum(data=bytes(25)), RULE,
         "holds 25 values, but its shape 1 x 8 x 8 needs 64: Caffe would train on memory beyond it; create"),
        (lambda: datum(data=b"", float_data=[0.5] * 63), RULE, "holds 63 values, but its shape 1 x 8 x 8 needs 64"),
        (lambda: datum(data=b""), RULE, "holds 0 values"),
        (lambda: datum(height=0), RULE, "has the shape 1 x 0 x 8: create the database again"),
        (lambda: datum(height=-8, width=-8), RULE, "has the shape 1 x -8 x -8"),
        (lambda: b"", RULE, "has the shape 0 x 0 x 0"),
        (lambda: b"\xff\xff\xff", RULE, "is not a Datum of Caffe: create the database again"),
        (lambda: datum(height=5, width=5), RULE,
         ("is 1 x 5 x 5, but the first record is 1 x 8 x 8, and a batch holds images of one size: prepare them in "
         "one size, or give crop_size")),
        (lambda: datum(channels=3, data=bytes(192)), replace(RULE, crop=4),
         "is 3 x 8 x 8, but the first record is 1 x 8 x 8"),
        (lambda: datum(height=5, width=5), replace(RULE, crop=6), "is 1 x 5 x 5, smaller than crop_size 6"),
        (lambda: datum(height=5, width=5), replace(RULE, crop=4, mean=(1, 8, 8)), "but the mean file is 1 x 8 x 8"),
        (lambda: encoded((6, 8)), RULE, "is 1 x 8 x 6, but the first record"),
        (lambda: encoded(cut=-14), RULE, "is a PNG that is cut short: leave it out, or create it again"),
        (lambda: encoded(kind="TIFF", cut=-14), RULE, "is not an image that can be decoded ("),
        (lambda: encoded(kind="JPEG", cut=-2, progressive=True), RULE, "is a progressive JPEG that is cut short"),
        (lambda: encoded(cut=12), RULE, "is not an image that can be decoded: leave it out, or create it again"),
    ],
)  # fmt: skip
def test_a_bad_record_is_found_wherever_it_is(
    tmp_path: Path, bad: Made, rule: RecordRule, words: str
) -> None:
    source = database(tmp_path / "data", *good(), bad())
    said = told(rule, source)
    assert said is not None
    assert said.startswith(f"layer 'data' reads the record '00000500' of {source}, which ")
    assert words in said


@pytest.mark.parametrize(
    ("other", "rule"),
    [
        (lambda: datum(data=bytes(70)), RULE),
        (lambda: datum(data=b"", float_data=[0.5] * 64), RULE),
        (lambda: encoded(), RULE),
        (lambda: encoded(kind="JPEG"), RULE),
        (lambda: encoded(), replace(RULE, channels=1)),
        (lambda: datum(height=5, width=5), replace(RULE, crop=4)),
        (lambda: datum(height=5, width=5), replace(RULE, batch=1)),
    ],
)
def test_what_caffe_trains_from_is_let_through(
    tmp_path: Path, other: Made, rule: RecordRule
) -> None:
    assert told(rule, database(tmp_path / "data", *good(), other())) is None


def test_a_label_is_found_wherever_it_is(tmp_path: Path) -> None:
    source = database(tmp_path / "data", *good(), datum(label=255), datum(label=4))
    assert told(OF_LABELS, source) == (
        f"layer 'data' reads the label 4 (record '00000501' of {source}), but 'ip' has 4 classes, 0 to 3: "
        "correct the labels, which count from 0, or make num_output 5 or more"
    )


def with_a_four(at: int = 20) -> bytes:
    return bytes(at) + b"\xff\x04" + bytes(62 - at)


@pytest.mark.parametrize(
    ("bad", "label"),
    [
        (lambda: datum(data=with_a_four()), "4"),
        (lambda: datum(data=b"", float_data=[3.9] * 63 + [-1]), "-1"),
        (lambda: datum(data=b"", float_data=[3.9] * 63 + [float("nan")]), "nan"),
        (lambda: datum(encoded=True, data=gray_png(with_a_four()), channels=0), "4"),
    ],
)  # fmt: skip
def test_an_image_of_labels_is_looked_at(tmp_path: Path, bad: Made, label: str) -> None:
    source = database(tmp_path / "data", datum(data=b"\xff\x03" * 32), bad())
    said = str(told(OF_IMAGES, source))
    assert said.startswith(
        f"layer 'data' reads the label {label} (record '00000001' of {source}), but 'ip'"
    )


def gray_png(pixels: bytes) -> bytes:
    content = io.BytesIO()
    Image.frombytes("L", (8, 8), pixels).save(content, "PNG")
    return content.getvalue()


def test_images_of_labels_in_a_list_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(gray_png(bytes(64)))
    (tmp_path / "b.png").write_bytes(gray_png(with_a_four()))
    file = tmp_path / "list.txt"
    file.write_text("a.png 0\nb.png 0\n")
    rule = replace(OF_IMAGES, images=True, root=f"{tmp_path}/", channels=1)
    assert "reads the label 4 (record 'line 2: b.png' of" in str(told(rule, file))


def test_float_values_that_are_not_finite_are_told(tmp_path: Path) -> None:
    rule = replace(RULE, finite=(0,))
    bad = datum(data=b"", float_data=[0.5] * 63 + [float("inf")])
    source = database(tmp_path / "data", *good(), bad)
    assert told(RULE, source) is None
    assert told(rule, source) == (
        f"layer 'data' reads the record '00000500' of {source}, which holds NaN or infinity: correct it, or leave it "
        "out"
    )


def hdf5_list(folder: Path, bad: int | None, value: float) -> Path:
    """Two files of 300 rows each; in the second the label of row `bad` is `value`."""
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            labels = np.arange(300, dtype=np.float64) % 4
            if number == 1 and bad is not None:
                labels[bad] = value
            file["data"] = np.zeros((300, 2), np.float32)
            file.create_dataset("label", data=labels, chunks=(7,), compression="gzip")
    source = folder / "files.txt"
    source.write_text(f"{folder}/0.h5 {folder}/1.h5\n")
    return source


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (4, "reads the label 4 (record 'row 290, counted from 0' of {file}), but 'ip' has 4 classes, 0 to 3: correct"),
        (-1, "reads the label -1 (record"),
        (100000, "0 to 3: correct the labels, which count from 0"),
        (1e300, "reads the label inf"),
        (float("nan"), "reads the label nan"),
        (255, None),
        (255.5, None),
        (3.9, None),
        (-0.9, None),
    ],
)  # fmt: skip
def test_labels_in_hdf5_are_looked_at(tmp_path: Path, value: float, words: str | None) -> None:
    rule = replace(OF_LABELS, datasets=("data", "label"))
    said = told(rule, hdf5_list(tmp_path, 290, value))
    if words is None:
        assert said is None
    else:
        assert words.format(file=tmp_path / "1.h5") in str(said)


def test_a_row_of_hdf5_with_nan_is_told_unless_the_net_may_leave_it_out(tmp_path: Path) -> None:
    rule = replace(RULE, datasets=("data", "label"))
    source = hdf5_list(tmp_path, 7, float("nan"))
    assert told(rule, source) is None
    assert told(replace(rule, finite=(1,)), source) == (
        f"layer 'data' reads the record 'row 7, counted from 0' of {tmp_path}/1.h5, whose 'label' holds NaN or "
        "infinity: correct it, or leave it out"
    )


def test_hdf5_files_are_known_until_one_of_them_changes(tmp_path: Path) -> None:
    source, cache = hdf5_list(tmp_path, None, 0), tmp_path / "cache"
    rule = replace(RULE, source=str(source), datasets=("data", "label"))
    remember(rule, cache)
    assert is_known(rule, cache)
    hdf5_list(tmp_path, 3, 2)
    assert not is_known(rule, cache)


def test_a_converted_database_is_told_by_its_own_name(tmp_path: Path) -> None:
    source = database(tmp_path / "data", *good(), b"")
    (source / "converted-from.json").write_text(json.dumps({"source": "/some/leveldb"}))
    assert "record '00000500' of /some/leveldb, which" in str(told(RULE, source))


def image_list(folder: Path, *lines: str) -> Path:
    for name, size in (("a.png", (8, 8)), ("b.png", (8, 8)), ("small.png", (5, 5))):
        Image.new("L", size).save(folder / name)
    (folder / "text.png").write_text("no image")
    (folder / "cut.png").write_bytes((folder / "a.png").read_bytes()[:-3])
    file = folder / "list.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("small.png 1", "line 3: small.png' of {file}, which is 1 x 5 x 5, but the first record is 1 x 8 x 8"),
        ("gone.png 1", "line 3: gone.png' of {file}, which is not a file ("),
        ("text.png 1", "line 3: text.png' of {file}, which is not an image that can be decoded"),
        ("cut.png 1", "line 3: cut.png' of {file}, which is a PNG that is cut short: leave it out"),
        ("a.png", "line 3: a.png' of {file}, which is not `image label`: correct the line"),
        ("a.png 4", "reads the label 4 (record 'line 3: a.png' of {file})"),
    ],
)  # fmt: skip
def test_a_bad_line_of_a_list_is_told(tmp_path: Path, line: str, words: str) -> None:
    file = image_list(tmp_path, "a.png 0", "b.png 3", line)
    rule = replace(RULE, images=True, root=f"{tmp_path}/", channels=1, uses=OF_LABELS.uses)
    assert words.format(file=file) in str(told(rule, file))


def test_a_jpeg_without_its_end_is_read_as_caffe_does_and_told_once(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(content, "JPEG")
    for name, length in (("whole", None), ("cut", -200), ("short", -1)):
        (tmp_path / f"{name}.jpg").write_bytes(content.getvalue()[:length])
    file, notes = tmp_path / "list.txt", list[str]()
    file.write_text("whole.jpg 0\ncut.jpg 1\nshort.jpg 2\n")
    rule = replace(RULE, source=str(file), images=True, root=f"{tmp_path}/", channels=3)
    assert first_problem(rule, lambda: False, notes.append) == (None, True)
    word = (
        f"layer 'data' reads the record 'line 2: cut.jpg' of {file}, a JPEG without its end, perhaps not the only "
        "one: what is missing is gray"
    )
    assert notes == [word]
    notes.clear()
    for known in ((), (word,)):
        watch = RecordWatch([rule], None, notes.append, known)
        wait_until(lambda watch=watch: watch.problem() is None and watch.over)
        assert notes == [word]
        notes.clear()


def test_images_of_several_sizes_are_no_problem_where_they_are_resized(tmp_path: Path) -> None:
    file = image_list(tmp_path, "a.png 0", "small.png 1")
    rule = replace(RULE, images=True, root=f"{tmp_path}/", channels=3, size=(6, 6), mean=(3, 6, 6))
    assert told(rule, file) is None


def test_a_source_that_was_found_good_is_known_until_it_changes(tmp_path: Path) -> None:
    source = database(tmp_path / "data", *good())
    rule, cache = replace(RULE, source=str(source)), tmp_path / "cache" / "checked"
    assert not is_known(rule, cache)
    remember(rule, cache)
    assert is_known(rule, cache)
    assert not is_known(replace(rule, crop=4), cache)
    database(source, datum(label=2))
    assert not is_known(rule, cache)


def test_the_check_beside_a_run_tells_or_remembers(tmp_path: Path) -> None:
    whole = replace(RULE, source=str(database(tmp_path / "good", *good())))
    bad = replace(RULE, source=str(database(tmp_path / "bad", *good(), b"")))
    watch = RecordWatch([whole, bad], tmp_path / "cache")
    wait_until(lambda: watch.problem() is not None)
    assert "record '00000500'" in str(watch.problem())
    assert watch.over
    assert is_known(whole, tmp_path / "cache")
    assert not is_known(bad, tmp_path / "cache")


def test_a_bad_record_in_the_first_batch_is_told_before_caffe_aborts_over_it(home: Path) -> None:
    """Caffe reads ahead as soon as the net is built."""
    images, labels = records(64, 1)
    write_lmdb(home / "mixed", images, labels)
    with lmdb.open(str(home / "mixed"), map_size=1 << 24) as opened, opened.begin(write=True) as w:
        w.put(b"00000003", datum(height=5, width=5))
    spec = read_solver(write_solver(home, net_text(train="mixed")))
    worker = solver_for_worker(spec, rank=0, count=1, batch_size=8)
    with pytest.raises(
        SolverError, match=r"'00000003' of .*mixed, which is 1 x 5 x 5, but .* crop"
    ):
        check_in_subprocess(worker, origin="net.prototxt")


def test_a_record_over_whose_image_caffe_aborts_is_named_however_late_it_stands(home: Path) -> None:
    """Too late for the time before the nets are built; Caffe's own words name no key."""
    bad = encoded(cut=-20)
    database(home / "late", *[encoded()] * 3900, bad, *[encoded()] * 99)
    spec = read_solver(write_solver(home, net_text(train="late")))
    worker = solver_for_worker(spec, rank=0, count=1, batch_size=4000)
    with pytest.raises(
        SolverError, match=r"'00003900' of .*late, which is a PNG that is cut short"
    ):
        check_in_subprocess(worker, origin="net.prototxt")


def test_records_of_every_share_of_a_list_are_looked_at(home: Path) -> None:
    image_list(home, "a.png 0", "gone.png 1", "b.png 2", "a.png 3")
    net = net_text(batch=2).replace(
        'name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }\n'
        "  transform_param { scale: 0.00390625 }\n"
        '  data_param { source: "train" backend: LMDB batch_size: 2 }',
        'name: "data" type: "ImageData" top: "data" top: "label" include { phase: TRAIN }\n'
        '  image_data_param { source: "list.txt" batch_size: 2 is_color: false }',
    )
    spec = read_solver(write_solver(home, net))
    share = solver_for_worker(spec, rank=0, count=2, batch_size=1, scratch=home / "logs")
    whole = solver_for_records(spec, batch_size=1, scratch=home / "logs")
    with pytest.raises(SolverError, match=r"line 2: gone.png'"):
        check_in_subprocess(share, count=2, records=whole)


def test_the_share_of_time_is_kept(tmp_path: Path) -> None:
    source = database(tmp_path / "data", *good(), b"")
    assert first_problem(replace(RULE, source=str(source)), lambda: True) == (None, False)


def test_values_of_a_mean_are_kept_through_json() -> None:
    rule = replace(RULE, mean=(3, 8, 8), size=(4, 5), datasets=("a",), uses=OF_LABELS.uses)
    assert TypeAdapter(RecordRule).validate_json(json.dumps(asdict(rule))) == rule
