"""Nets that find objects, faces and words in an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.support.published_nets.builder import MAX_2, MAX_3, Net, Pair
from tests.support.published_nets.classifiers import mobilenet_v1_body, resnet_body

_SAME_SIZE: Final = "pool: MAX kernel_size: 3 stride: 1 pad: 1"
_WIDE: Final = (2, 3)  # aspect ratios of SSD's priors beside 1


class _Heads:
    """What SSD's layers read of each feature map, and the boxes that are left of it."""

    def __init__(
        self, net: Net, classes: int, kernel: Pair, conf: float, top_k: int = 400, keep: int = 200
    ) -> None:
        self._net, self._classes, self._kernel = net, classes, kernel
        self._options = (
            f"num_classes: {classes} share_location: true background_label_id: 0 code_type: CENTER_SIZE "
            f"nms_param {{ nms_threshold: 0.45 top_k: {top_k} }} keep_top_k: {keep} confidence_threshold: {conf}"
        )
        self._ends: dict[str, list[str]] = {"loc": [], "conf": [], "priorbox": []}

    def add(
        self, source: str, least: float, most: float = 0, ratios: Sequence[int] = _WIDE, step: int = 0, more: str = "",
        count: int = 0,
    ) -> None:  # fmt: skip
        """The heads of this feature map; `count` boxes a place, where it is not what the ratios and sizes say."""
        net, count = self._net, count or 1 + bool(most) + 2 * len(ratios)
        for end, outputs in (("loc", 4 * count), ("conf", self._classes * count)):
            top = net.conv(f"{source}_mbox_{end}", source, outputs, self._kernel)
            options = "permute_param { order: 0 order: 2 order: 3 order: 1 }"
            top = net.add(f"{top}_perm", "Permute", top, options=options)
            self._ends[end].append(
                net.add(f"{top}_flat", "Flatten", top, options="flatten_param { axis: 1 }")
            )
        options = f"min_size: {least} {f'max_size: {most}' if most else ''} "
        options += " ".join(f"aspect_ratio: {ratio}" for ratio in ratios) + (
            f" step: {step}" if step else ""
        )
        options += f" clip: false {more or 'flip: true'} " + " ".join(
            f"variance: {v}" for v in (0.1, 0.1, 0.2, 0.2)
        )
        options = f"prior_box_param {{ {options} offset: 0.5 }}"
        self._ends["priorbox"].append(
            net.add(f"{source}_mbox_priorbox", "PriorBox", source, "data", options=options)
        )

    def end(self) -> Net:
        net = self._net
        for end, tops in self._ends.items():
            net.concat(f"mbox_{end}", *tops, axis=2 if end == "priorbox" else 1)
        options = f"reshape_param {{ shape {{ dim: 0 dim: -1 dim: {self._classes} }} }}"
        top = net.add("mbox_conf_reshape", "Reshape", "mbox_conf", options=options)
        top = net.add("mbox_conf_softmax", "Softmax", top, options="softmax_param { axis: 2 }")
        top = net.add("mbox_conf_flatten", "Flatten", top, options="flatten_param { axis: 1 }")
        options = f"detection_output_param {{ {self._options} }}"
        net.add(
            "detection_out", "DetectionOutput", "mbox_loc", top, "mbox_priorbox", options=options
        )
        return net


def _normalized(net: Net, bottom: str, name: str = "conv4_3_norm") -> str:
    options = 'norm_param { across_spatial: false channel_shared: false scale_filler { type: "constant" value: 20 } }'
    return net.add(name, "Normalize", bottom, options=options)


def _ssd_vgg(net: Net) -> tuple[str, str]:
    """VGG-16 with its inner products as convolutions, as in SSD: the last of its fourth stage, and fc7."""
    ends = net.vgg("data", pools=(MAX_2,) * 4 + (_SAME_SIZE,))
    top = net.conv("fc6", ends[-1], 1024, 3, pad=6, more="dilation: 6", relu=True)
    return _normalized(net, ends[6]), net.conv("fc7", top, 1024, 1, relu=True)


def ssd_300() -> Net:
    """SSD-300 over VGG-16, Pascal VOC: Liu et al. 2015, arXiv:1512.02325, and its examples/ssd/ssd_pascal.py."""
    net = Net("SSD 300", data=(1, 3, 300, 300))
    heads = _Heads(net, 21, 3, 0.01)
    norm, top = _ssd_vgg(net)
    heads.add(norm, 30, 60, (2,), 8)
    heads.add(top, 60, 111, step=16)
    for stage, (narrow, stride, sizes, ratios, step) in enumerate((
        (256, 2, (111, 162), _WIDE, 32), (128, 2, (162, 213), _WIDE, 64), (128, 1, (213, 264), (2,), 100),
        (128, 1, (264, 315), (2,), 300),
    ), 6):  # fmt: skip
        top = net.conv(f"conv{stage}_1", top, narrow, 1, relu=True)
        pad = 1 if stride == 2 else 0
        top = net.conv(f"conv{stage}_2", top, 2 * narrow, 3, stride, pad=pad, relu=True)
        heads.add(top, *sizes, ratios, step)
    return heads.end()


def ssd_mobilenet() -> Net:
    """MobileNet v1 with SSD's heads, 300 x 300, Pascal VOC, as chuanqi305/MobileNet-SSD published it for Caffe."""
    net = Net("MobileNet-SSD", data=(1, 3, 300, 300))
    heads = _Heads(net, 21, 1, 0.25, 100, 100)
    tops = mobilenet_v1_body(net)
    heads.add(tops[10], 60, 0, (2,))
    heads.add(top := tops[12], 105, 150)
    for stage, (narrow, outputs, sizes) in enumerate((
        (256, 512, (150, 195)), (128, 256, (195, 240)), (128, 256, (240, 285)), (64, 128, (285, 300)),
    ), 14):  # fmt: skip
        top = net.conv_bn(f"conv{stage}_1", top, narrow, 1)
        top = net.conv_bn(f"conv{stage}_2", top, outputs, 3, 2)
        heads.add(top, *sizes)
    return heads.end()


def face_ssd() -> Net:
    """The face detector of OpenCV's samples/dnn/face_detector: SSD over a ResNet of ten layers, 300 x 300."""
    net = Net("res10 SSD", data=(1, 3, 300, 300))
    heads = _Heads(net, 2, 3, 0.01)
    top = net.bn(net.conv("conv1_h", net.bn("data", "data_bn", relu=False), 32, 7, 2))
    first = net.pool("conv1_pool", top, MAX_3)
    top = net.conv_bn("layer_64_1_conv1_h", first, 32, 3)
    top = net.conv("layer_64_1_conv2_h", top, 32, 3, more="bias_term: false")
    top, activated = net.sum("layer_64_1_sum", top, first, relu=False), []
    for outputs, first_width, stride, dilation in (
        (128, 128, 2, 1),
        (256, 256, 2, 1),
        (256, 128, 1, 2),
    ):
        name = f"layer_{128 << len(activated)}_1"
        activated.append(net.bn(top, f"{name}_bn1"))
        top = net.conv_bn(f"{name}_conv1", activated[-1], first_width, 3, stride)
        more = f"bias_term: false dilation: {dilation}"
        top = net.conv(f"{name}_conv2", top, outputs, 3, pad=dilation, more=more)
        short = net.conv(
            f"{name}_conv_expand", activated[-1], outputs, 1, stride, more="bias_term: false"
        )
        top = net.sum(f"{name}_sum", top, short, relu=False)
    net.bn(top, relu=False)
    top = net.add("last_relu", "ReLU", top, top="fc7")
    heads.add(_normalized(net, activated[1]), 30, 60, (2,), 8)
    heads.add(top, 60, 111, step=16)
    for stage, (narrow, stride, sizes, ratios, step) in enumerate((
        (128, 2, (111, 162), _WIDE, 32), (64, 2, (162, 213), _WIDE, 64), (64, 1, (213, 264), (2,), 100),
        (64, 1, (264, 315), (2,), 300),
    ), 6):  # fmt: skip
        top = net.conv(f"conv{stage}_1_h", top, narrow, 1, relu=True)
        top = net.conv(f"conv{stage}_2_h", top, 2 * narrow, 3, stride, relu=True)
        heads.add(top, *sizes, ratios, step)
    return heads.end()


def textboxes() -> Net:
    """TextBoxes, 300 x 300: Liao et al. 2016, arXiv:1611.06779; kernels of 1 x 5, twelve boxes at each place.

    Half of the boxes lie lower by half a place: its own PriorBox does that always, OpenCV's by `additional_y_offset`.
    """
    net = Net("TextBoxes", data=(1, 3, 300, 300))
    heads = _Heads(net, 2, (1, 5), 0.01)
    norm, top = _ssd_vgg(net)
    sources = [norm, top]
    for stage, narrow in ((6, 256), (7, 128), (8, 128)):
        top = net.conv(f"conv{stage}_1", top, narrow, 1, relu=True)
        top = net.conv(f"conv{stage}_2", top, 2 * narrow, 3, 2, relu=True)
        sources.append(top)
    sources.append(net.pool("pool6", top, "pool: AVE global_pooling: true"))
    sizes = (30, 60, 114, 168, 222, 276, 330)
    for at, source in enumerate(sources):
        most = sizes[at + 1] if at else 0
        heads.add(
            source,
            sizes[at],
            most,
            (2, 3, 5, 7, 10),
            more="flip: false additional_y_offset: true",
            count=12,
        )
    return heads.end()


def _proposals(net: Net, bottom: str, anchors: int, options: str, outputs: int = 512) -> str:
    """Faster R-CNN's region proposals of a feature map."""
    top = net.conv("rpn_conv/3x3", bottom, outputs, 3, relu=True)
    net.conv("rpn_bbox_pred", top, 4 * anchors, 1)
    top = net.conv("rpn_cls_score", top, 2 * anchors, 1)
    for name, kind, middle in (
        ("rpn_cls_prob", "Softmax", 2),
        ("rpn_cls_prob_reshape", "", 2 * anchors),
    ):
        shape = f"reshape_param {{ shape {{ dim: 0 dim: {middle} dim: -1 dim: 0 }} }}"
        top = net.add("rpn_cls_score_reshape" if kind else name, "Reshape", top, options=shape)
        top = net.add(name, kind, top) if kind else top
    options = f'python_param {{ module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "{options}" }}'
    return net.add(
        "proposal", "Python", top, "rpn_bbox_pred", "im_info", top="rois", options=options
    )


def _read(net: Net, features: str, rois: str, side: int) -> str:
    options = f"roi_pooling_param {{ pooled_w: {side} pooled_h: {side} spatial_scale: 0.0625 }}"
    return net.add("roi_pool5", "ROIPooling", features, rois, options=options)


def faster_rcnn(height: int = 600, width: int = 800, channels: int = 64) -> Net:
    """Faster R-CNN over VGG-16, Pascal VOC: Ren et al. 2015, arXiv:1506.01497; images of 600 x 800."""
    net = Net("Faster R-CNN", data=(1, 3, height, width), im_info=(1, 3))
    features = net.vgg("data", stages=4, width=channels)[-1]
    top = _read(net, features, _proposals(net, features, 9, "'feat_stride': 16"), 7)
    for name in ("fc6", "fc7"):
        top = net.dropout(net.fc(name, top, 4096, relu=True))
    net.fc("bbox_pred", top, 84)
    net.add("cls_prob", "Softmax", net.fc("cls_score", top, 21))
    return net


def r_fcn() -> Net:
    """R-FCN over ResNet-101, Pascal VOC: Dai et al. 2016, arXiv:1605.06409; images of 600 x 800."""
    net = Net("R-FCN", data=(1, 3, 600, 800), im_info=(1, 3))
    stages = resnet_body(net, (3, 4, 23, 3), dilated=(5,))
    rois = _proposals(net, stages[2], 9, "'feat_stride': 16")
    top = net.conv("conv_new_1", stages[3], 1024, 1, relu=True)
    for end, outputs in (("cls", 21), ("bbox", 8)):
        maps = net.conv(f"rfcn_{end}", top, 49 * outputs, 1)
        options = (
            f"psroi_pooling_param {{ spatial_scale: 0.0625 output_dim: {outputs} group_size: 7 }}"
        )
        pooled = net.add(f"psroipooled_{end}_rois", "PSROIPooling", maps, rois, options=options)
        net.pool(f"ave_{end}_rois", pooled, "pool: AVE kernel_size: 7 stride: 7")
    net.add("cls_prob_pre", "Softmax", "ave_cls_rois")
    for name, bottom, outputs in (
        ("cls_prob", "cls_prob_pre", 21),
        ("bbox_pred", "ave_bbox_rois", 8),
    ):
        net.add(
            name,
            "Reshape",
            bottom,
            options=f"reshape_param {{ shape {{ dim: -1 dim: {outputs} }} }}",
        )
    return net


def pvanet() -> Net:
    """PVANET 9.1, Pascal VOC, 640 x 1056: Kim et al. 2016, arXiv:1608.08021, table 1, as its authors published it."""
    net = Net("PVANET", data=(1, 3, 640, 1056), im_info=(1, 3))
    stats = "use_global_stats: true"

    def both_signs(name: str, bottom: str, top: str) -> str:
        """C.ReLU: BatchNorm without Scale, its negative beside it, and then Scale and ReLU."""
        net.add(
            f"{name}/bn", "BatchNorm", bottom, top=top, options=f"batch_norm_param {{ {stats} }}"
        )
        negative = net.add(
            f"{name}/neg", "Power", top, options="power_param { power: 1 scale: -1 shift: 0 }"
        )
        joined = net.concat(f"{name}/concat", top, negative)
        net.add(
            f"{name}/scale", "Scale", joined, top=joined, options="scale_param { bias_term: true }"
        )
        return net.relu(joined)

    def residual(name: str, top: str, bottom: str, outputs: int, stride: int) -> str:
        short = net.add(f"{name}/input", "Power", bottom, options="power_param { power: 1 scale: 1 shift: 0 }") if (
            stride == 0
        ) else net.conv(f"{name}/proj", bottom, outputs, 1, stride)  # fmt: skip
        return net.sum(name, top, short, relu=False)

    def crelu(
        name: str, bottom: str, narrow: int, outputs: int, stride: int, is_first: bool
    ) -> str:
        top = bottom if is_first else net.bn(bottom, f"{name}/1/pre", norm=stats)
        read = top
        top = net.conv(f"{name}/1", top, narrow, 1, max(stride, 1))
        top = net.conv(f"{name}/2", net.bn(top, f"{name}/2/pre", norm=stats), narrow, 3)
        top = net.conv(f"{name}/3", both_signs(f"{name}/3", top, f"{name}/3/pre"), outputs, 1)
        return residual(name, top, read if stride == 2 else bottom, outputs, stride)

    def inception(
        name: str,
        bottom: str,
        widths: Sequence[Sequence[int]],
        outputs: int,
        stride: int,
        pool: int,
    ) -> str:
        read, ends = net.bn(bottom, f"{name}/incep/pre", norm=stats), []
        for at, branch in enumerate(widths):
            top = read
            for step, wide in enumerate(branch):
                kernel, of_step = (3, 1) if step else (1, 1)
                if stride == 2 and step == min(len(branch) - 1, 1):
                    of_step = 2
                top = net.conv_bn(
                    f"{name}/incep/{at}_{step}", top, wide, kernel, of_step, norm=stats
                )
            ends.append(top)
        if pool:
            pooled = net.pool(f"{name}/incep/pool", read, MAX_3)
            ends.append(net.conv_bn(f"{name}/incep/poolproj", pooled, pool, 1, norm=stats))
        top = net.conv(f"{name}/out", net.concat(f"{name}/incep", *ends), outputs, 1)
        return residual(name, top, bottom, outputs, stride)

    top = net.conv("conv1_1/conv", "data", 16, 7, 2, more="bias_term: false")
    top = net.pool("pool1", both_signs("conv1_1", top, "conv1_1/pre"), MAX_3)
    for stage, count, narrow, outputs in ((2, 3, 24, 64), (3, 4, 48, 128)):
        for number in range(1, count + 1):
            stride = 0 if number > 1 else stage - 1
            top = crelu(
                f"conv{stage}_{number}", top, narrow, outputs, stride, stage == 2 and number == 1
            )
    ends = [top]
    for stage, widths, outputs in (
        (4, ((64,), (64, 128), (24, 48, 48)), 256), (5, ((64,), (96, 192), (32, 64, 64)), 384),
    ):  # fmt: skip
        for number in range(1, 5):
            own = ((64,), (48, 128), widths[2]) if (stage, number) == (4, 1) else widths
            top = inception(
                f"conv{stage}_{number}", top, own, outputs, *((2, 128) if number == 1 else (0, 0))
            )
        ends.append(top)
    last = net.bn(ends.pop(), "conv5_4/last", norm=stats)
    more = "bias_term: false group: 384"
    last = net.conv("upsample", last, 384, 4, 2, pad=1, more=more, kind="Deconvolution")
    top = net.concat("concat", net.pool("downsample", ends[0], MAX_3), ends[1], last)
    proposals = net.conv("convf_rpn", top, 128, 1, relu=True)
    features = net.concat("convf", proposals, net.conv("convf_2", top, 384, 1, relu=True))
    options = "{'feat_stride': 16, 'ratios': [0.333, 0.5, 0.667, 1, 1.5, 2, 3], 'scales': [2, 3, 5, 9, 16, 32]}"
    top = _read(net, features, _proposals(net, proposals, 42, options, 384), 6)
    for name in ("fc6", "fc7"):
        top = net.relu(net.dropout(net.bn(net.fc(name, top, 4096), relu=False, norm=stats)))
    net.fc("bbox_pred", top, 84)
    net.add("cls_prob", "Softmax", net.fc("cls_score", top, 21))
    return net
