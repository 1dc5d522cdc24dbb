"""Layers and fields of other Caffes than BVLC's, whose prototxts are published beside it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

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
LAYERS: Final = {
    "ROIPooling": _FAST, "SmoothL1Loss": _FAST, "PSROIPooling": _RFCN, "BoxAnnotatorOHEM": _RFCN,
    "SmoothL1LossOHEM": _RFCN,
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
    "CenterLoss": "the Caffe of center loss", "TripletLoss": "a Caffe for faces",
    "MultiStageMeanfield": "CRF-RNN's Caffe", "CPMData": "OpenPose's Caffe", "CPMDataTransform": "OpenPose's Caffe",
    "Correlation": _FLOWNET, "Correlation1D": _FLOWNET, "FlowWarp": _FLOWNET, "Resample": _FLOWNET,
    "CustomData": _FLOWNET, "DataAugmentation": _FLOWNET, "Downsample": _FLOWNET, "ChannelNorm": _FLOWNET,
    "L1Loss": _FLOWNET, "LpqLoss": _FLOWNET, "Reorg": _DARKNET, "RegionLoss": _DARKNET, "Yolov3": _DARKNET,
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
    "LayerParameter.shuffle_param": "ShuffleNet's Caffe", "ReLUParameter.slope_type": _DARKNET,
    "BatchNormParameter.scale_bias": _NVIDIA, "LayerParameter.detectnet_groundtruth_param": _NVIDIA,
    "LayerParameter.detectnet_augmentation_param": _NVIDIA, "NetParameter.bn_stats_batch_size": _INTEL,
}  # fmt: skip
# Those that choose only how fast and how precisely that Caffe computes.
_WITHOUT_EFFECT: Final = {
    **dict.fromkeys((f"NetParameter.default_{way}" for way in (
        "forward_type", "backward_type", "forward_math", "backward_math")), _NVIDIA),
    "SolverParameter.disabled_update": _INTEL, "SolverParameter.optimize_learning_rate": _INTEL,
}  # fmt: skip
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
_BY_NAME: Final = {name.lower(): fork for name, fork in LAYERS.items()}


def about_layer(kind: str, computed: Collection[str]) -> str:
    """Which Caffe has this type of layer, and what to do; nothing where none is known. `computed` are types we have."""
    fork = _BY_NAME.get(kind.lower())
    if not fork:
        return ""
    return f"it is no layer of BVLC's Caffe, but of {fork}: {remedy(kind in computed)}"


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


def _fork_of(owner: str, field: str) -> str:
    if fork := _FIELDS.get(f"{owner}.{field}"):
        return fork
    if owner not in ("LayerParameter", "V1LayerParameter") or not field.endswith("_param"):
        return ""
    return _BY_NAME.get(field.removesuffix("_param").replace("_", ""), "")
