"""Layers and fields of other Caffes than BVLC's, whose prototxts are published beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, Final

from google.protobuf import text_encoding

from caffenets.caffe_schema import caffe_pb2
from caffenets.host_program import remedy

_SSD: Final = "SSD's Caffe"
_FAST: Final = "Fast R-CNN's Caffe"
_SEGNET: Final = "SegNet's Caffe"
_DEEPLAB: Final = "DeepLab's Caffe"
_FLOWNET: Final = "FlowNet's Caffe"
_DARKNET: Final = "a Caffe with YOLO's layers"
_RFCN: Final = "R-FCN's Caffe"
_PSPNET: Final = "PSPNet's Caffe"
_NVIDIA: Final = "NVIDIA's Caffe"
_INTEL: Final = "Intel's Caffe"
_CTC: Final = "a Caffe with CTC's loss"
_CRNN: Final = "a Caffe for text"
_FACES: Final = "a Caffe for faces"
_MASKS: Final = "MNC's Caffe"
_TEXT_BOXES: Final = "TextBoxes' Caffe"
_C3D: Final = "C3D's Caffe"
_OPENPOSE: Final = "OpenPose's Caffe"
LAYERS: Final = {
    "ROIPooling": _FAST, "SmoothL1Loss": _FAST, "PSROIPooling": _RFCN, "BoxAnnotatorOHEM": _RFCN,
    "SmoothL1LossOHEM": _RFCN, "SoftmaxWithLossOHEM": _RFCN,
    "AnnotatedData": _SSD, "DetectionEvaluate": _SSD, "DetectionOutput": _SSD, "MultiBoxLoss": _SSD,
    "Normalize": _SSD, "Permute": _SSD, "PriorBox": _SSD, "VideoData": _SSD,
    "Interp": "the Caffe of PSPNet and DeepLab", "DenseCRF": _DEEPLAB, "ImageSegData": _DEEPLAB,
    "SegAccuracy": _DEEPLAB, "MatRead": _DEEPLAB, "MatWrite": _DEEPLAB, "DomainTransform": _DEEPLAB,
    "AdaptiveBiasChannel": _DEEPLAB, "BiasChannel": _DEEPLAB, "UniqueLabel": _DEEPLAB, "BatchReduction": _PSPNET,
    "WarpCTC": _CTC, "WarpCtcLoss": _CTC, "CTCLoss": _CTC,
    "BN": "the Caffe of SegNet, PSPNet and ENet", "Upsample": _SEGNET, "DenseImageData": _SEGNET,
    "SpatialDropout": "ENet's Caffe", "ShuffleChannel": "ShuffleNet's Caffe", "Axpy": "SENet's Caffe",
    "DepthwiseConvolution": "a Caffe for MobileNet", "ConvolutionDepthwise": "a Caffe for MobileNet",
    "ReLU6": "a Caffe for MobileNet", "Proposal": "PVANet's Caffe",
    "CenterLoss": "the Caffe of center loss", "TripletLoss": _FACES,
    "MarginInnerProduct": "SphereFace's Caffe", "LargeMarginInnerProduct": "L-Softmax's Caffe",
    "L2Normalization": _FACES, "Reverse": _CRNN, "Transpose": _CRNN, "Lstm": _CRNN, "ContinuationIndicator": _CTC,
    "LabelsequenceAccuracy": _CTC, "CTCGreedyDecoder": _CTC, "WarpCTCLoss": _CTC, "ImageLabelmapData": "HED's Caffe",
    "ROIAlign": "Mask R-CNN's Caffe", "ROIWarping": _MASKS, "MaskPooling": _MASKS, "MaskResize": _MASKS,
    "DeformableConvolution": "R-FCN's deformable Caffe", "SpatialTransformer": "a Caffe with spatial transformers",
    "Convolution3D": _C3D, "Pooling3D": _C3D, "NdConvolution": _C3D, "ImResize": _OPENPOSE, "Nms": _OPENPOSE,
    "MultiStageMeanfield": "CRF-RNN's Caffe", "CPMData": _OPENPOSE, "CPMDataTransform": _OPENPOSE,
    "Correlation": _FLOWNET, "Correlation1D": _FLOWNET, "FlowWarp": _FLOWNET, "Resample": _FLOWNET,
    "CustomData": _FLOWNET, "DataAugmentation": _FLOWNET, "Downsample": _FLOWNET, "ChannelNorm": _FLOWNET,
    "LpqLoss": _FLOWNET, "Reorg": _DARKNET, "RegionLoss": _DARKNET, "Yolov3": _DARKNET,
    "Region": _DARKNET, "RegionOutput": _DARKNET, "DetectionLoss": _DARKNET, "EvalDetection": _DARKNET,
    "BoxData": _DARKNET, "YoloDetectionOutput": _DARKNET, "Yolov3DetectionOutput": _DARKNET, "YoloSeg": _DARKNET,
    "DetectNetTransformation": _NVIDIA, "L1Loss": _FLOWNET, "Accum": _FLOWNET, "FlowAugmentation": _FLOWNET,
    "Mean": _FLOWNET,
}  # fmt: skip
# Fields of other messages and names than a layer's `_param`, as MESSAGE.FIELD. All change what a net computes.
_FIELDS: Final = {
    "LayerParameter.norm_param": _SSD, "TransformationParameter.resize_param": _SSD,
    "TransformationParameter.noise_param": _SSD, "TransformationParameter.distort_param": _SSD,
    "TransformationParameter.expand_param": _SSD, "TransformationParameter.emit_constraint": _SSD,
    "TransformationParameter.crop_h": _SSD, "TransformationParameter.crop_w": _SSD,
    "SolverParameter.eval_type": _SSD, "SolverParameter.ap_version": _SSD,
    "SolverParameter.show_per_class_result": _SSD, "SolverParameter.plateau_winsize": _SSD,
    "DropoutParameter.scale_train": "the Caffe of Fast R-CNN and R-FCN",
    "LossParameter.pre_fixed_normalizer": _RFCN, "DropoutParameter.sample_weights_test": _SEGNET,
    "LossParameter.weight_by_label_freqs": _SEGNET, "LossParameter.class_weighting": _SEGNET,
    "TransformationParameter.scale_factors": _DEEPLAB, "TransformationParameter.crop_width": _DEEPLAB,
    "TransformationParameter.crop_height": _DEEPLAB, "BatchNormParameter.update_global_stats": _DEEPLAB,
    "ImageDataParameter.label_type": _DEEPLAB, "ImageDataParameter.ignore_label": _DEEPLAB,
    "ConvolutionParameter.hole_h": _DEEPLAB, "ConvolutionParameter.hole_w": _DEEPLAB,
    "InterpParameter.interp_type": _PSPNET, "DataParameter.shuffle": _PSPNET,
    **dict.fromkeys((f"TransformationParameter.{name}" for name in (
        "rand_resize", "rand_rotate", "gaussian_blur", "rand_aspect_ratio", "label_scalefactor", "label_offset",
        "rotate90n")), _PSPNET),
    **dict.fromkeys((f"ImageDataParameter.{name}" for name in (
        "is_rsdata", "rs_channels", "is_modis_bin", "modis_channles", "modis_channel_list", "modis_class_num",
    )), _PSPNET),
    "LayerParameter.softmaxloss_param": _DEEPLAB, "LayerParameter.quantization_param": _INTEL,
    "BatchNormParameter.filler": _INTEL, "BatchNormParameter.use_weight_bias": _INTEL,
    **dict.fromkeys((f"AnnotatedDataParameter.{name}" for name in (
        "yolo_data_type", "yolo_data_jitter", "train_diffcult", "single_class", "seg_scales", "iters")), _DARKNET),
    "LayerParameter.shuffle_param": "ShuffleNet's Caffe", "ReLUParameter.slope_type": _DARKNET,
    **dict.fromkeys((f"BatchNormParameter.{name}" for name in ("scale_bias", "scale_filler", "bias_filler")), _NVIDIA),
    **dict.fromkeys((f"BNParameter.{name}" for name in (
        "var_eps", "decay", "moving_average", "axis")), "a Caffe before PSPNet's"),
    "BatchNormParameter.slope_filler": "an older Caffe of NVIDIA", "BNParameter.icnet": _PSPNET,
    "BatchNormParameter.icnet": _PSPNET,
    **dict.fromkeys((f"TransformationParameter.{name}" for name in (
        "random_aspect_ratio_param", "random_resize_param")), _INTEL),
    **dict.fromkeys((f"PriorBoxParameter.{name}" for name in ("fixed_size", "fixed_ratio", "density")), _FACES),
    "PriorBoxParameter.additional_y_offset": _TEXT_BOXES, "MultiBoxLossParameter.use_polygon": _TEXT_BOXES,
    "DetectionOutputParameter.use_polygon": _TEXT_BOXES, "SoftmaxParameter.normalize_type": _FACES,
    "InnerProductParameter.normalize": _FACES, "LayerParameter.detectnet_groundtruth_param": _NVIDIA,
    "LayerParameter.detectnet_augmentation_param": _NVIDIA, "NetParameter.bn_stats_batch_size": _INTEL,
}  # fmt: skip
# Those that choose only how fast and how precisely that Caffe computes.
_WITHOUT_EFFECT: Final = {
    **dict.fromkeys(("engine", "forward_type", "backward_type", "forward_math", "backward_math", "cudnn_math_override",
                     "conv_algos_override", "cudnn_convolution_algo_seeker"), "several Caffes"),
    "LayerParameter.reshape_every_iter": _FLOWNET, "LayerParameter.strict_dim": _DEEPLAB,
    **dict.fromkeys((f"NetParameter.default_{way}" for way in (
        "forward_type", "backward_type", "forward_math", "backward_math")), _NVIDIA),
    "SolverParameter.disabled_update": _INTEL, "SolverParameter.optimize_learning_rate": _INTEL,
}  # fmt: skip
# Values of enums that BVLC's Caffe lacks, as MESSAGE.FIELD: VALUE.
_VALUES: Final = {"LossParameter.normalization: PRE_FIXED": _RFCN}
# Fields that BVLC's or SSD's Caffe has once, and another several times.
REPEATED: Final = {"TransformationParameter.resize_param": _DARKNET}
_BOOLEANS: Final = {"true": "CEIL", "True": "CEIL", "t": "CEIL", "1": "CEIL",
                    "false": "FLOOR", "False": "FLOOR", "f": "FLOOR", "0": "FLOOR"}  # fmt: skip
# Fields that say in another Caffe what BVLC's says by another name: that name, and its values where they differ too.
# ceil_mode is of BVLC/caffe#3057; BVLC merged round_mode (#6282). hole is of DeepLab, before BVLC had dilation.
_SAME: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "PoolingParameter.ceil_mode": ("round_mode", _BOOLEANS),
    "ConvolutionParameter.hole": ("dilation", {}),
}
# The fields of a solver that none is without.
_OF_SOLVER: Final = (
    "net",
    "net_param",
    "train_net",
    "base_lr",
    "lr_policy",
    "max_iter",
    "test_iter",
)
_CAFFE2: Final = ("op", "external_input", "external_output", "arg", "device_option")
_OLD_TYPE: Final = "V1LayerParameter.type"
_BY_NAME: Final = {name.lower(): fork for name, fork in LAYERS.items()}


def about_layer(kind: str, computed: Collection[str]) -> str:
    """Which Caffe has this type of layer, and what to do; nothing where none is known. `computed` are types we have."""
    fork = _BY_NAME.get(kind.lower())
    if not fork:
        return ""
    return f"it is no layer of BVLC's Caffe, but of {fork}: {remedy(kind in computed)}"


def is_of_another(owner: str, field: str, said: str, by_value: bool) -> bool:
    """Whether another Caffe has this field, or with `by_value` this value of it.

    `said` is the value, or else the type of the layer that has the field: one that no file here knows is another
    Caffe's, and so are its parameters.
    """
    if by_value and f"{owner}.{field}" == _OLD_TYPE:
        return said.replace("_", "").lower() in _BY_NAME
    if by_value:
        return field in _WITHOUT_EFFECT or f"{owner}.{field}: {said}" in _VALUES
    owner = owner.removeprefix("V1")
    if f"{owner}.{field}" in _SAME:  # with a value that cannot be
        return False
    if _fork_of(owner, field) or _is_without_effect(owner, field):
        return True
    is_own = field.endswith("_param") or owner != "LayerParameter"
    return is_own and owner != "NetParameter" and bool(said) and said not in _known()


def kept_as(owner: str, field: str, value: str, said: str) -> str:
    """The text of a field that keeps this one of another Caffe."""
    if f"{owner}.{field}" == _OLD_TYPE:
        name = value.replace("_", "").lower()
        return f'type_name: "{next(one for one in LAYERS if one.lower() == name)}"'
    return f'unread: "{text_encoding.CEscape(said.encode(), as_utf8=True)}"'


def unread(message: Any, nested: bool = True) -> Iterator[tuple[str, str]]:
    """Message and name of each field in here that another Caffe reads and nothing here, and that changes a net."""
    for field, value in message.ListFields():
        if field.name == "unread":
            names = (str(said).split(":")[0].split()[0].rstrip("{<") for said in value)
            owner = message.DESCRIPTOR.name
            yield from ((owner, name) for name in names if not _is_without_effect(owner, name))
        elif nested and field.message_type is not None:
            for one in value if hasattr(value, "add") else (value,):
                yield from unread(one)


def unread_problem(message: Any, nested: bool = True) -> str:
    """The first of `unread` as the end of a sentence that begins with the layer or the net; empty for none."""
    for owner, field in unread(message, nested):
        about = about_field(owner, field) or f"no Caffe that is known here has it: {remedy(False)}"
        return f"has {field}: {about}"
    return ""


def about_field(owner: str, field: str) -> str:
    """The same of a field of a message."""
    if owner == "NetParameter" and field in _CAFFE2:
        return "this is a net of Caffe2, which Caffe does not read: give one of Caffe (`layer { ... }`)"
    if owner == "NetParameter" and field in _OF_SOLVER:
        return "this is a solver: give the net that it names (`net`, `train_net`)"
    same = _SAME.get(f"{owner}.{field}")
    if same is not None:
        return f"it says in another Caffe what {same[0]} says in BVLC's: use that"
    fork = _fork_of(owner, field) or _WITHOUT_EFFECT.get(f"{owner}.{field}")
    if not fork:
        return ""
    message = caffe_pb2.DESCRIPTOR.message_types_by_name.get(owner)
    is_known = message is not None and field in message.fields_by_name
    return f"it is no field of BVLC's Caffe, but of {fork}: {remedy(is_known)}"


def changes_the_net(owner: str, field: str) -> bool:
    """Whether a field that the engine does not know is known to change what a net computes."""
    return f"{owner}.{field}" in _SAME or bool(_fork_of(owner, field))


def in_bvlcs_words(owner: str, field: str, value: str) -> str:
    """`field: value` as BVLC's Caffe says it; empty where that is not known."""
    name, values = _SAME.get(f"{owner}.{field}", ("", {}))
    value = values.get(value, "") if values else value
    return f"{name}: {value}" if name and value else ""


def _is_without_effect(owner: str, field: str) -> bool:
    return field in _WITHOUT_EFFECT or f"{owner}.{field}" in _WITHOUT_EFFECT


@cache
def _known() -> frozenset[str]:
    """The types of layers that this package knows."""
    from caffenets.known_types import refusals
    from caffenets.layers import LAYERS as COMPUTED

    data = {"Data", "HDF5Data", "ImageData"}
    return frozenset(data | (refusals().keys() - LAYERS.keys()) | COMPUTED.keys())


def _fork_of(owner: str, field: str) -> str:
    if fork := _FIELDS.get(f"{owner}.{field}"):
        return fork
    if owner not in ("LayerParameter", "V1LayerParameter") or not field.endswith("_param"):
        return ""
    return _BY_NAME.get(field.removesuffix("_param").replace("_", ""), "")
