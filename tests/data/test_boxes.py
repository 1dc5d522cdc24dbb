"""Databases of images with boxes, from Pascal VOC and from COCO."""

from __future__ import annotations

import json
from pathlib import Path

import lmdb
import pytest

from speedo.data.boxes import LABEL_MAP, prepare_boxes
from speedo.data.check import check
from speedo.errors import DataError
from tests.support.detection import SIDE, draw, write_coco, write_voc


def records(database: Path) -> list[bytes]:
    with (
        lmdb.open(str(database), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return [bytes(value) for _, value in transaction.cursor()]


def boxes_in(record: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """Class and corners in pixels, by the schema that the engine reads with."""
    from speedo.engines.caffe_schema.caffe_pb2 import AnnotatedDatum

    datum = AnnotatedDatum.FromString(record)
    assert datum.datum.encoded
    assert datum.type == AnnotatedDatum.BBOX
    return [
        (group.group_label, tuple(round(SIDE * one) for one in (b.xmin, b.ymin, b.xmax, b.ymax)))
        for group in datum.annotation_group
        for b in (annotation.bbox for annotation in group.annotation)
    ]


def drawn(seed: int) -> list[tuple[int, tuple[int, ...]]]:
    labels = {"disc": 1, "square": 2}
    found = [
        (labels[name], (left, top, right + 1, bottom + 1))
        for name, left, top, right, bottom in draw(seed)[1]
    ]
    order = list(dict.fromkeys(label for label, _ in found))
    return sorted(found, key=lambda one: order.index(one[0]))


def test_voc_and_coco_give_the_same_records(tmp_path: Path) -> None:
    voc = prepare_boxes(write_voc(tmp_path / "voc", 0, 6), tmp_path / "a", subset="all")
    prepare_boxes(write_coco(tmp_path / "coco", 0, 6), tmp_path / "b")
    assert voc.counts == {"train_lmdb": 6}
    first, second = (records(tmp_path / name / "train_lmdb") for name in ("a", "b"))
    assert first == second
    assert [boxes_in(record) for record in first] == [drawn(seed) for seed in range(6)]
    names = (tmp_path / "a" / LABEL_MAP).read_text()
    assert names == (tmp_path / "b" / LABEL_MAP).read_text()
    assert names.index('name: "background"\n  label: 0') < names.index('name: "disc"\n  label: 1')


def test_a_second_database_takes_the_numbers_of_the_first(tmp_path: Path) -> None:
    prepare_boxes(write_voc(tmp_path / "voc", 0, 8), tmp_path / "out")
    only_squares = write_voc(tmp_path / "some", 0, 0)
    seed = next(seed for seed in range(100, 200) if {one[0] for one in draw(seed)[1]} == {"square"})
    write_voc(only_squares, seed, 1)
    made = prepare_boxes(only_squares, tmp_path / "out", database="test_lmdb")
    assert made.counts == {"train_lmdb": 8, "test_lmdb": 1}
    assert {label for label, _ in boxes_in(records(tmp_path / "out" / "test_lmdb")[0])} == {2}
    assert not prepare_boxes(only_squares, tmp_path / "out", database="test_lmdb").built
    xml = next((only_squares / "Annotations").glob("*.xml"))
    xml.write_text(xml.read_text().replace("square", "cat"))
    with pytest.raises(DataError, match=r"labelmap.prototxt has no class 'cat'"):
        prepare_boxes(only_squares, tmp_path / "out", database="other_lmdb")


def test_the_check_counts_the_boxes_of_each_class(tmp_path: Path) -> None:
    prepare_boxes(write_voc(tmp_path / "voc", 0, 6), tmp_path / "out", size=(32, 48))
    (found,) = check(tmp_path / "out")
    expected = [label for seed in range(6) for label, _ in drawn(seed)]
    assert found.good
    assert found.survey.encoded == 6
    assert found.survey.labels == {label: expected.count(label) for label in set(expected)}
    assert found.survey.shape == (3, 32, 48)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:40], "is no annotation of Pascal VOC"),
        (lambda text: text.replace("<xmin>", "<left>").replace("</xmin>", "</left>"), "is no annotation of Pascal VOC"),
        (lambda text: '<!DOCTYPE a [<!ENTITY b "c">]>' + text, "defines entities"),
        (lambda text: text.replace("000000.png", "../000000.png"), "which is not below"),
        (lambda text: text.replace("000000.png", "absent.png"), "absent.png"),
    ],
)  # fmt: skip
def test_a_broken_annotation_is_named(tmp_path: Path, change: object, words: str) -> None:
    voc = write_voc(tmp_path / "voc", 0, 1)
    file = voc / "Annotations" / "000000.xml"
    file.write_text(change(file.read_text()))  # type: ignore[operator]
    with pytest.raises(DataError, match=words):
        prepare_boxes(voc, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_neither_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no folder Annotations"):
        prepare_boxes(tmp_path / "empty", tmp_path / "out")
    (tmp_path / "some.json").write_text(json.dumps({"images": []}))
    with pytest.raises(DataError, match="is no file of COCO's instances"):
        prepare_boxes(tmp_path / "some.json", tmp_path / "out")
