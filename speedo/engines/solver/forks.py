"""Layers and fields of other Caffes than BVLC's, whose prototxts are published beside it."""

from __future__ import annotations

from typing import Final

from speedo.engines.caffe_schema import caffe_pb2
from speedo.engines.layer_types import layer_types
from speedo.system.remedies import in_checkout

_SSD: Final = "SSD's Caffe"
_FAST: Final = "Fast R-CNN's Caffe"
_SEGNET: Final = "SegNet's Caffe"
_DEEPLAB: Final = "DeepLab's Caffe"
_FLOWNET: Final = "FlowNet's Caffe"
_DARKNET: Final = "a Caffe with YOLO's layers"
LAYERS: Final = {
    "ROIPooling": _FAST, "SmoothL1Loss": _FAST, "PSROIPooling": "R-FCN's Caffe",
    "AnnotatedData": _SSD, "DetectionEvaluate": _SSD, "DetectionOutput": _SSD, "MultiBoxLoss": _SSD,
    "Normalize": _SSD, "Permute": _SSD, "PriorBox": _SSD, "VideoData": _SSD,
    "Interp": "the Caffe of PSPNet and DeepLab", "DenseCRF": _DEEPLAB, "ImageSegData": _DEEPLAB,
    "SegAccuracy": _DEEPLAB, "MatRead": _DEEPLAB, "MatWrite": _DEEPLAB,
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
# Fields that are not the layer's name and `_param`.
_FIELDS: Final = {
    "norm_param": _SSD, "resize_param": _SSD, "noise_param": _SSD, "distort_param": _SSD, "expand_param": _SSD,
    "emit_constraint": _SSD, "eval_type": _SSD, "ap_version": _SSD, "show_per_class_result": _SSD,
    "plateau_winsize": _SSD, "test_compute_loss": _SSD,
    "bn_mode": _SEGNET, "shuffle_param": "ShuffleNet's Caffe", "slope_type": _DARKNET,
    "default_forward_type": "NVIDIA's Caffe", "default_backward_type": "NVIDIA's Caffe",
    "default_forward_math": "NVIDIA's Caffe", "default_backward_math": "NVIDIA's Caffe",
    "scale_bias": "NVIDIA's Caffe", "detectnet_groundtruth_param": "NVIDIA's Caffe",
    "detectnet_augmentation_param": "NVIDIA's Caffe", "bn_stats_batch_size": "Intel's Caffe",
    "disabled_update": "Intel's Caffe", "optimize_learning_rate": "Intel's Caffe",
}  # fmt: skip
_CAFFE2: Final = ("op", "external_input", "external_output", "arg", "device_option")
_THAT_CAFFE: Final = "train with --engine caffe and that Caffe " + (
    "(make setup SPEEDO_CAFFE_PYTHONPATH=DIR)"
    if in_checkout()
    else "(its folder python on PYTHONPATH)"
)
_BY_NAME: Final = {name.lower(): fork for name, fork in LAYERS.items()}


def about_layer(kind: str) -> str:
    """Which Caffe has this type of layer, and what to do; nothing where none is known."""
    fork = _BY_NAME.get(kind.lower())
    if not fork:
        return ""
    return f"it is no layer of BVLC's Caffe, but of {fork}: {_remedy(kind in layer_types('torch'))}"


def _remedy(is_in_torch: bool) -> str:
    return (
        f"{'use --engine torch, which has it' if is_in_torch else 'take it out'}, or {_THAT_CAFFE}"
    )


def about_field(owner: str, field: str) -> str:
    """The same of a field of a message."""
    if owner == "NetParameter" and field in _CAFFE2:
        return "this is a net of Caffe2, which Caffe does not read: give one of Caffe (`layer { ... }`)"
    layer = field.removesuffix("_param").replace("_", "") if field.endswith("_param") else ""
    fork = _FIELDS.get(field) or _BY_NAME.get(layer)
    if not fork:
        return ""
    message = caffe_pb2.DESCRIPTOR.message_types_by_name.get(owner)
    is_in_torch = message is not None and field in message.fields_by_name
    return f"it is no field of BVLC's Caffe, but of {fork}: {_remedy(is_in_torch)}"
