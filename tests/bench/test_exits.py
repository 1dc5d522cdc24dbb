from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.exits import problems_of, published, row_of
from caffenets import host_program
from caffenets.costs import costs_of
from caffenets.errors import NetError
from caffenets.nets import read_deploy
from tests.support.archived_nets import archived_nets
from tests.support.published_nets.table import NETS, Entry, agrees, trained

pytestmark = pytest.mark.torch

# Trained values and multiply-adds of the whole batch in the file.
COUNTS = {
    "lenet": (431_080, 146_752_000), "caffenet": (60_965_224, 7_244_068_160), "googlenet": (6_998_552, 15_826_718_720),
    "alexnet": (60_965_224, 7_244_068_160), "caffenet_full_conv": (60_965_224, 6_561_635_360),
    "rcnn": (57_687_624, 7_211_300_160), "autoencoder": (2_837_314, 2_833_000), "siamese": (431_102, 4_586_040),
    "cifar10_quick": (145_578, 12_354_176), "cifar10_full": (89_578, 12_298_240),
    "cifar10_full_bn": (89_450, 12_298_240), "resnet18": (11_689_512, 1_814_073_344),
    "squeezenet": (1_235_496, 387_747_520), "resnet50": (25_557_032, 3_857_973_248),
    "resnet101": (44_549_160, 7_570_194_432), "densenet121": (7_978_856, 2_834_161_664),
    "mobilenet": (4_231_976, 568_740_352), "mobilenet_v2": (3_504_872, 300_774_272),
    "shufflenet": (1_865_728, 137_460_672), "inception_v3": (23_834_568, 5_713_216_096),
    "inception_v4": (42_679_816, 12_253_974_624), "vgg16": (138_357_544, 15_470_264_320),
    "age": (11_415_048, 709_253_120), "gender": (11_411_970, 709_250_048), "ssd300": (26_285_486, 31_373_537_792),
    "ssd_mobilenet": (5_796_089, 1_148_479_168), "face_ssd": (2_660_154, 1_178_874_752),
    "faster_rcnn": (137_078_239, 187_513_344_000), "r_fcn": (50_801_667, 110_202_982_400),
    "pvanet": (96_573_813, 37_298_872_320), "fcn_8s": (134_489_759, 181_529_034_048),
    "deeplab": (20_505_429, 50_928_085_696), "segnet": (29_449_355, 106_712_432_640), "enet": (372_551, 4_009_623_552),
    "pspnet": (46_782_550, 161_528_775_872), "hed": (14_717_535, 98_975_347_664),
    "u_net": (31_030_658, 150_428_424_448), "openpose": (52_311_446, 135_934_006_784),
    "colorization": (32_231_334, 31_983_744_128), "goturn": (113_748_740, 1_440_638_016),
    "lrcn": (37_618_801, 576_020_000), "crnn": (8_326_693, 705_143_808),
}  # fmt: skip
LACKING = {
    "textboxes": "additional_y_offset"
}  # what caffe-nets lacks; when it has it, counts are compared


@pytest.mark.parametrize("name", NETS)
def test_a_published_net_has_the_published_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_program, "_schema", host_program.own_schema)
    entry, text = NETS[name], tmp_path / "net.prototxt"
    if entry.is_archived and not archived_nets():
        pytest.skip("no archive of Caffe's source")
    text.write_text(entry.deploy())
    try:
        costs = costs_of(read_deploy(text, entry.shapes).net)
    except NetError as error:
        if name not in LACKING or LACKING[name] not in str(error):
            raise
        return
    work = sum(one.multiply_adds for one in costs)
    assert (trained(costs), work) == COUNTS[name]
    assert not entry.parameters or agrees(trained(costs), entry.parameters)


@pytest.mark.parametrize(
    ("count", "figure", "is_so"),
    [
        (431_080, "431K", True), (4_231_976, "4.2M", True), (4_299_999, "4.2M", True), (4_300_000, "4.2M", False),
        (4_149_999, "4.2M", False), (1_235_496, "1,235,496", True), (1_235_497, "1,235,496", False),
        (3_857_973_248, "3.8G", True),
    ],
)  # fmt: skip
def test_a_figure_is_compared_as_precisely_as_it_is_written(
    count: int, figure: str, is_so: bool
) -> None:
    assert agrees(count, figure) is is_so


def verdict(**worst: float | str) -> dict[str, object]:
    return {
        "parameters": 431_080, "multiply_adds": 5, "batches": [1, 7], "reference": "Caffe", "worst": worst,
        "remarks": [], "changed": [],
    }  # fmt: skip


def test_a_difference_above_the_bound_fails_unless_a_reason_is_declared() -> None:
    plain = Entry(str, "431K")
    explained = Entry(str, "431K", reasons={"OpenCV": "its layer rounds otherwise"})
    assert problems_of("net", plain, verdict(OpenCV=1e-5, ONNX="has no equal")) == []
    assert problems_of("net", plain, verdict(OpenCV=2e-5)) == ["net: OpenCV differs by 2.0e-05"]
    assert problems_of("net", explained, verdict(OpenCV=2e-5)) == []
    assert problems_of("net", explained, verdict(ONNX=float("nan"))) == ["net: ONNX differs by nan"]
    assert problems_of("net", plain, {**verdict(), "changed": ["ONNX: ip/0"]}) == [
        "net: ONNX: ip/0"
    ]
    assert problems_of("net", plain, {"ended": "status -6: check failed"}) == [
        "net: status -6: check failed"
    ]


def test_a_row_says_what_was_published_and_what_cannot_go_out() -> None:
    wrong = Entry(str, "430K")
    row, notes = row_of("net", wrong, verdict(OpenCV=3e-7, ONNX="layer 'x' has no equal"))
    assert row == [
        "net", "431,080", "5", "no: 430K parameters", "1 and 7", "3.0e-07", "", "no", ""
    ]  # fmt: skip
    assert notes == ["ONNX: layer 'x' has no equal"]
    assert problems_of("net", wrong, verdict()) == ["net: published: no: 430K parameters"]
    assert published(Entry(str), verdict()) == ""


@pytest.mark.caffe
def test_lenet_is_the_same_for_all_judges(tmp_path: Path) -> None:
    if not archived_nets():
        pytest.skip("no archive of Caffe's source")
    from bench.support.judges import NO_OPENCV, judged

    found = judged("lenet", tmp_path)
    assert (found.reference, found.batches, found.changed) == ("Caffe", (1, 7), [])
    assert list(found.worst) == ["OpenCV", "caffenets", "ONNX", "PyTorch"]
    assert find_spec("cv2") is not None or found.worst.pop("OpenCV") == NO_OPENCV
    assert all(isinstance(away, float) and 0 < away < 1e-5 for away in found.worst.values())
