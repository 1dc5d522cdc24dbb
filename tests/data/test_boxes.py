"""Databases of images with boxes, from Pascal VOC and from COCO."""

from __future__ import annotations

import json
from pathlib import Path

import lmdb
import pytest

from caffenets.caffe_schema import caffe_pb2
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
    from caffenets.caffe_schema.caffe_pb2 import AnnotatedDatum

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
        (lambda text: text.replace("<name>", "<name/><call>").replace("</name>", "</call>"), "an object has no name"),
        (lambda text: text.replace("<xmin>", "<xmin>1e999", 1), "inf is no place in an image"),
        (lambda text: '<?xml version="1.0" encoding="zip"?>' + text, "'zip' is not a text encoding"),
    ],
)  # fmt: skip
def test_a_broken_annotation_is_named(tmp_path: Path, change: object, words: str) -> None:
    voc = write_voc(tmp_path / "voc", 0, 1)
    file = voc / "Annotations" / "000000.xml"
    file.write_text(change(file.read_text()))  # type: ignore[operator]
    with pytest.raises(DataError, match=words):
        prepare_boxes(voc, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("filename", "image", "said"),
    [
        ("000001", "000001.png", ""),
        ("", "000001.png", ""),
        ("000001.jpg", "000001.png", ""),
        ("000001.png", "000001.PNG", ""),
        ("000001.PNG", "000001.png", ""),
        ("C:\\photos\\000001.png", "000001.png", ""),
        ("000000.png", "000001.png", "which names '000000.png'"),
        ("../../x.png", "000001.png", "which names '../../x.png'"),
        ("photo.v2", "photo.v2.png", ""),
        ("day/one.png", "day/one.png", ""),
    ],
)
def test_an_annotation_belongs_to_the_image_of_its_own_name(
    tmp_path: Path, filename: str, image: str, said: str
) -> None:
    voc = write_voc(tmp_path / "voc", 0, 2)
    own = voc / "JPEGImages" / image
    own.parent.mkdir(exist_ok=True)
    (voc / "JPEGImages" / "000001.png").rename(own)
    file = voc / "Annotations" / "000001.xml"
    file.write_text(file.read_text().replace("000001.png", filename))
    made = prepare_boxes(voc, tmp_path / "out")
    second = caffe_pb2.AnnotatedDatum.FromString(records(tmp_path / "out" / "train_lmdb")[1])
    assert second.datum.data == own.read_bytes()
    assert len(made.notes) == bool(said)
    if said:
        start = "annotations that name another image than that of their own name, which is used: 1, the first"
        assert made.notes[0] == f"{start} {file}, {said}"


def test_the_image_of_another_annotation_gets_no_second_boxes(tmp_path: Path) -> None:
    voc = write_voc(tmp_path / "voc", 0, 2)
    file = voc / "Annotations" / "000001.xml"
    file.write_text(file.read_text().replace("000001.png", "000000.png"))
    (voc / "JPEGImages" / "000001.png").rename(tmp_path / "away.png")
    with pytest.raises(
        DataError, match=r"names the image '000000.png', which has an annotation of its own"
    ):
        prepare_boxes(voc, tmp_path / "out")
    file.write_text(file.read_text().replace("000000.png", "absent.png"))
    with pytest.raises(
        DataError, match=r"neither 000001.jpg \(or .png, ...\) nor 'absent.png' is in"
    ):
        prepare_boxes(voc, tmp_path / "out")
    for suffix in (".jpg", ".bmp"):
        (voc / "JPEGImages" / f"000001{suffix}").write_bytes((tmp_path / "away.png").read_bytes())
    with pytest.raises(
        DataError, match=r"has 000001\.bmp, 000001.jpg for one annotation: keep one"
    ):
        prepare_boxes(voc, tmp_path / "out")
    file.write_text(file.read_text().replace("absent.png", "000001.jpg"))
    assert prepare_boxes(voc, tmp_path / "out").counts == {"train_lmdb": 2}


def voc_of(folder: Path, objects: str, size: str = "", encoding: str = "utf-8") -> Path:
    """One image of 64 x 64, and its annotation."""
    voc = write_voc(folder / "voc", 0, 1)
    head = f'<?xml version="1.0" encoding="{encoding}"?>' if encoding != "utf-8" else ""
    text = f"{head}<annotation><filename>000000.png</filename>{size}{objects}</annotation>"
    (voc / "Annotations" / "000000.xml").write_bytes(
        text.encode("gbk" if encoding == "gb2312" else encoding)
    )
    return voc


def box(name: str, *corners: int) -> str:
    sides = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    inside = "".join(f"<{side}>{at}</{side}>" for side, at in sides)
    return f"<object><name>{name}</name><bndbox>{inside}</bndbox></object>"


def test_boxes_that_are_left_out_are_counted_and_background_stays_0(tmp_path: Path) -> None:
    objects = (
        box("car", 1, 1, 32, 32) + box("car", 9, 1, 3, 8) + box("car", 5, 5, 4, 8)
        + box("car", 70, 1, 90, 8) + box("car", 1, 90, 8, 99) + box("background", 1, 1, 64, 64)
    )  # fmt: skip
    made = prepare_boxes(voc_of(tmp_path, objects), tmp_path / "out")
    assert boxes_in(records(tmp_path / "out" / "train_lmdb")[0]) == [(1, (0, 0, 32, 32))]
    counts = (
        "1 with exchanged corners, 1 empty, 2 outside of their image, 1 of the class background"
    )
    file = tmp_path / "voc" / "JPEGImages" / "000000.png"
    assert made.notes == (f"boxes left out: {counts}; the first in the annotation of {file}",)
    text = (tmp_path / "out" / LABEL_MAP).read_text()
    assert text.count("label: 0") == text.count('name: "background"\n  label: 0') == 1
    assert 'name: "car"\n  label: 1' in text


def test_another_size_in_the_annotation_is_what_the_boxes_are_parts_of(tmp_path: Path) -> None:
    size = "<size><width>{}</width><height>{}</height><depth>3</depth></size>"
    voc = voc_of(tmp_path, box("car", 1, 1, 64, 32), size.format(128, 128))
    made = prepare_boxes(voc, tmp_path / "out")
    assert boxes_in(records(tmp_path / "out" / "train_lmdb")[0]) == [(1, (0, 0, 32, 16))]
    (word,) = made.notes
    assert word.startswith(
        "annotations that count pixels of another size than their image's, so that"
    )
    assert word.endswith(
        f"are taken as parts of that size: 1, the first {voc}/Annotations/000000.xml"
    )
    voc = voc_of(tmp_path, box("car", 1, 1, 64, 32), size.format(128, 100))
    with pytest.raises(
        DataError,
        match=r"000000.png is 64 x 64, and .*000000.xml says 100 x 128, which is no other",
    ):
        prepare_boxes(voc, tmp_path / "other")
    voc = voc_of(tmp_path, box("car", 1, 1, 64, 32), size.format(0, 0))
    assert not prepare_boxes(voc, tmp_path / "other").notes


@pytest.mark.parametrize(
    "encoding", ["gb2312", "gb18030", "big5", "shift_jis", "latin-1", "utf-16"]
)
def test_names_in_other_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    name = "caf\xe9" if encoding == "latin-1" else "\u8eca"  # a car in several languages
    prepare_boxes(voc_of(tmp_path, box(name, 1, 1, 9, 9), encoding=encoding), tmp_path / "out")
    assert f'name: "{name}"' in (tmp_path / "out" / LABEL_MAP).read_text("utf-8")


def test_a_class_may_have_quotes_and_braces_in_its_name(tmp_path: Path) -> None:
    name = """19" wheel } \\ 'x'"""
    voc = voc_of(tmp_path, box(name, 1, 1, 9, 9) + box("car", 1, 1, 64, 64))
    prepare_boxes(voc, tmp_path / "out")
    made = prepare_boxes(voc, tmp_path / "out", database="test_lmdb")
    assert made.counts == {"train_lmdb": 1, "test_lmdb": 1}
    first, second = (records(tmp_path / "out" / name)[0] for name in ("train_lmdb", "test_lmdb"))
    assert first == second
    # As the engines read it.
    from google.protobuf import text_format

    from caffenets.caffe_schema.caffe_pb2 import LabelMap

    read = text_format.Parse((tmp_path / "out" / LABEL_MAP).read_text(), LabelMap())
    assert [(one.name, one.label) for one in read.item] == [
        ("background", 0),
        (name, 1),
        ("car", 2),
    ]
    (tmp_path / "out" / LABEL_MAP).write_text("item {")
    with pytest.raises(DataError, match=r"labelmap.prototxt is no LabelMap of SSD's Caffe"):
        prepare_boxes(voc, tmp_path / "out", database="other_lmdb")


def test_what_is_neither_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no folder Annotations"):
        prepare_boxes(tmp_path / "empty", tmp_path / "out")
    (tmp_path / "some.json").write_text(json.dumps({"images": []}))
    with pytest.raises(DataError, match="is no file of COCO's instances"):
        prepare_boxes(tmp_path / "some.json", tmp_path / "out")
