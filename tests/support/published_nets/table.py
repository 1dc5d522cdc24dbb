"""Which nets there are, and what was published about each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from caffenets.costs import LayerCost
from tests.support.archived_nets import archived_nets
from tests.support.published_nets import classifiers, dense, detectors, others
from tests.support.published_nets.builder import Net

_UNITS: Final = {"K": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True)
class Entry:
    """A net; its published figures as they are written, such as 25.6M, and where; none where none is known for certain.

    `shapes` are those of inputs that the text does not say. `reasons` are why a judge is further from
    Caffe than rounding. An archived net is one of the archive of Caffe's source.
    """

    deploy: Callable[[], str]
    parameters: str = ""
    multiply_adds: str = ""
    source: str = ""
    shapes: Mapping[str, tuple[int, ...]] | None = None
    is_archived: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)


def agrees(count: int, figure: str) -> bool:
    """Whether this is the number, as precisely as the figure is written: rounded, or cut off."""
    digits = figure.replace(",", "").rstrip("KMG")
    unit = _UNITS.get(figure[-1], 1.0) * 10.0 ** -len(digits.partition(".")[2])
    least = float(digits) * _UNITS.get(figure[-1], 1.0)
    return least - unit / 2 <= count < least + unit


def trained(costs: Iterable[LayerCost]) -> int:
    """Their parameters without the statistics of BatchNorm, and of BN where it has four blobs."""
    found = 0
    for one in costs:
        has_statistics = one.type == "BN" and one.parameters == 4 * one.tops[0][1]
        if one.type != "BatchNorm":
            found += one.parameters // 2 if has_statistics else one.parameters
    return found


def _paper(make: Callable[[], Net], *figures: str, **reasons: str) -> Entry:
    return Entry(lambda: make().deploy(), *figures, reasons=reasons)


def _bvlc(name: str, *figures: str, **shapes: tuple[int, ...]) -> Entry:
    return Entry(lambda: archived_nets()[name], *figures, shapes=shapes or None, is_archived=True)


_TORCH: Final = "torchvision's table of models"
_TIMM: Final = "results-imagenet.csv of pytorch-image-models"
_SZE: Final = "Sze et al. 2017, arXiv:1703.09039, table II"
_SPREAD: Final = (
    "rounding decides between equal maxima, and five unpoolings spread that: an input times 1 + 2e-7 changes the "
    "output of caffenets itself by 1.8e-02"
)
NETS: Final[Mapping[str, Entry]] = {
    "lenet": _bvlc("examples/mnist/lenet.prototxt", "431K", "", "Han et al. 2015, arXiv:1510.00149, table 1"),
    "caffenet": _bvlc("models/bvlc_reference_caffenet/deploy.prototxt", "61M", "724M", f"{_SZE}, AlexNet"),
    "googlenet": _bvlc("models/bvlc_googlenet/deploy.prototxt", "7M", "1.5G", f"{_SZE}; Szegedy et al. 2014"),
    "alexnet": _bvlc("models/bvlc_alexnet/deploy.prototxt", "61M", "724M", _SZE),
    "caffenet_full_conv": _bvlc("examples/net_surgery/bvlc_caffenet_full_conv.prototxt"),
    "rcnn": _bvlc("models/bvlc_reference_rcnn_ilsvrc13/deploy.prototxt"),
    "autoencoder": _bvlc("examples/mnist/mnist_autoencoder.prototxt", data=(1, 1, 28, 28)),
    "siamese": _bvlc("examples/siamese/mnist_siamese_train_test.prototxt", pair_data=(1, 2, 28, 28)),
    "cifar10_quick": _bvlc("examples/cifar10/cifar10_quick.prototxt"),
    "cifar10_full": _bvlc("examples/cifar10/cifar10_full.prototxt"),
    "cifar10_full_bn": _bvlc("examples/cifar10/cifar10_full_sigmoid_train_test_bn.prototxt", data=(1, 3, 32, 32)),
    "squeezenet": _paper(classifiers.squeezenet, "1,235,496", "", _TORCH),
    "resnet18": _paper(lambda: classifiers.resnet(18), "11,689,512", "1.8G", f"{_TORCH}; He et al. 2015, table 1"),
    "resnet50": _paper(lambda: classifiers.resnet(50), "25,557,032", "3.8G", f"{_TORCH}; He et al. 2015, table 1"),
    "resnet101": _paper(lambda: classifiers.resnet(101), "44,549,160", "7.6G", f"{_TORCH}; He et al. 2015, table 1"),
    "densenet121": _paper(classifiers.densenet, "7,978,856", "2.83G", _TORCH),
    "mobilenet": _paper(classifiers.mobilenet, "4.2M", "569M", "Howard et al. 2017, table 4"),
    "mobilenet_v2": _paper(classifiers.mobilenet_v2, "3,504,872", "300M", f"{_TORCH}; Sandler et al. 2018, table 4"),
    "shufflenet": _paper(classifiers.shufflenet, "", "137M", "Zhang et al. 2017, table 1"),
    "inception_v3": _paper(classifiers.inception_v3, "23.83M", "5.71G", f"{_TIMM}; {_TORCH}"),
    "inception_v4": _paper(classifiers.inception_v4, "42.68M", "", _TIMM),
    "vgg16": _paper(classifiers.vgg_16, "138,357,544", "15.5G", f"{_TORCH}; {_SZE}"),
    "age": _paper(lambda: classifiers.age_or_gender(8)),
    "gender": _paper(lambda: classifiers.age_or_gender(2)),
    "ssd300": _paper(detectors.ssd_300),
    "ssd_mobilenet": _paper(detectors.ssd_mobilenet),
    "face_ssd": _paper(detectors.face_ssd),
    "textboxes": _paper(detectors.textboxes),
    "faster_rcnn": _paper(detectors.faster_rcnn),
    "r_fcn": _paper(detectors.r_fcn),
    "pvanet": _paper(detectors.pvanet),
    "fcn_8s": _paper(dense.fcn_8s, "134M", "", "Long et al. 2014, table 1"),
    "deeplab": _paper(dense.deeplab, "20.5M", "", "Chen et al. 2014, table 1"),
    "segnet": _paper(dense.segnet, ONNX=_SPREAD),
    "enet": _paper(dense.enet, "0.37M", "", "Paszke et al. 2016, table 3"),
    "pspnet": _paper(dense.pspnet),
    "hed": _paper(dense.hed),
    "u_net": _paper(dense.u_net),
    "openpose": _paper(dense.openpose),
    "colorization": _paper(dense.colorization),
    "goturn": _paper(others.goturn),
    "lrcn": _paper(others.lrcn),
    "crnn": _paper(others.crnn, "8.3M", "", "Shi et al. 2015, section 3.3"),
}  # fmt: skip
