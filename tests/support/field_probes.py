"""What the fields of Caffe's parameter messages do in the PyTorch engine, found by computing. No tests itself.

Each message has probes: a layer around a base text of the message, and its bottoms. A field acts if some value of it
has the layer compute something else; it is refused if values are refused and none acts. `PAIRS` are whole texts, one of
them with the field, where no value beside the base would do.
"""

# ruff: noqa: E501  tables of texts
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from caffenets.caffe_schema import caffe_pb2
from speedo.errors import EngineError, SolverError

ACTS: Final = "acts"
REFUSED: Final = "refused"
NONE: Final = "no effect"
_REFUSED: Final = ("refused",)
Outcome = tuple[Any, ...]
Bottom = tuple[int, ...] | tuple[str, Any]


@dataclass(frozen=True)
class Probe:
    """`layer` has %s where the text of the message is; bottoms are shapes of random numbers, or ("k", shape) of labels
    below k, or ("=", values).
    """

    layer: str
    base: str = ""
    bottoms: tuple[Any, ...] = ()


def layer(
    kind: str, param: str, base: str = "", *bottoms: Any, tops: int = 1, more: str = ""
) -> Probe:
    """A probe of the message `param` of a layer of this type."""
    made = " ".join(f'top: "t{at}"' for at in range(tops))
    return Probe(f'name: "l" type: "{kind}" {made} {more} {param} {{ %s }}', base, bottoms)


BOX = (4.0, 4.0, 20.0, 24.0)
PRIORS = [
    [0.1, 0.1, 0.4, 0.5],
    [0.3, 0.2, 0.8, 0.7],
    [0.35, 0.25, 0.9, 0.75],
    [-0.1, 0.0, 0.3, 1.2],
]
PRIORS += [[0.0, 0.8, 0.1, 1.0], [0.9, 0.0, 1.0, 0.1]]
PRIOR = ("=", [[[edge for box in PRIORS for edge in box], [0.1, 0.1, 0.2, 0.2] * 6]])
TRUE = ("=", [[[[0, 1, 0, 0.12, 0.1, 0.42, 0.5, 0], [0, 2, 0, 0.3, 0.22, 0.8, 0.66, 1]]]])
FOUND = (
    "=",
    [
        [
            [
                [0, 1, 0.9, 0.1, 0.1, 0.4, 0.5],
                [0, 2, 0.8, 0.3, 0.3, 0.8, 0.7],
                [0, 2, 0.3, 0, 0, 0.1, 0.1],
            ]
        ]
    ],
)
_ROIS = ("=", [[0.0, *BOX], [0.0, 0.0, 2.0, 9.0, 13.0]])
_SSD = ((1, 24), (1, 18), PRIOR, TRUE)
_MOVED = (("=", [[0.0] * 4 + [2.5, 1.5, 0.5, 0.5] * 5]), (1, 18), PRIOR, TRUE)
_IP = ((3, 2, 4),)
_IM = (2, 4, 7, 7)

LAYERS: Final[dict[str, Sequence[Probe]]] = {
    "AccuracyParameter": [layer("Accuracy", "accuracy_param", "", (6, 4, 4), (4, (6, 4)))],
    "ArgMaxParameter": [layer("ArgMax", "argmax_param", "", (3, 4, 2))],
    "BatchNormParameter": [layer("BatchNorm", "batch_norm_param", "", (4, 3, 2, 2))],
    "BNParameter": [
        layer("BN", "bn_param", base, (4, 3, 2, 2)) for base in ("", 'scale_filler { type: "constant" value: 1 }')
    ],
    "CenterLossParameter": [layer("CenterLoss", "center_loss_param", "num_output: 3", (4, 2), (2, (4,)))],
    "ReorgParameter": [layer("Reorg", "reorg_param", "", (1, 36, 6, 6))],
    "ReverseParameter": [layer("Reverse", "reverse_param", "", (2, 3, 4))],
    "TransposeParameter": [layer("Transpose", "transpose_param", "dim: 0 dim: 1 dim: 2", (2, 3, 4))],
    "BiasParameter": [layer("Bias", "bias_param", "", (2, 3, 4))],
    "ClipParameter": [layer("Clip", "clip_param", "min: -0.5 max: 0.5", (3, 4))],
    "ConcatParameter": [layer("Concat", "concat_param", "", (2, 3, 3), (2, 3, 3))],
    "ContrastiveLossParameter": [
        layer("ContrastiveLoss", "contrastive_loss_param", "margin: 4", (4, 3), (4, 3), (2, (4,)))
    ],
    "ConvolutionParameter": [layer("Convolution", "convolution_param", "num_output: 4 kernel_size: 3", _IM)],
    "CropParameter": [layer("Crop", "crop_param", "axis: 2", (1, 2, 6, 6), (1, 1, 3, 3))],
    "DropoutParameter": [layer("Dropout", "dropout_param", "", (4, 5))],
    "EltwiseParameter": [
        layer("Eltwise", "eltwise_param", base, (2, 3), (2, 3), (2, 3)) for base in ("", "operation: PROD")
    ],
    "ELUParameter": [layer("ELU", "elu_param", "", (3, 4))],
    "EmbedParameter": [layer("Embed", "embed_param", "num_output: 3 input_dim: 5", (5, (4,)))],
    "ExpParameter": [layer("Exp", "exp_param", "", (3, 4))],
    "FlattenParameter": [layer("Flatten", "flatten_param", "", (2, 3, 2, 2))],
    "HDF5OutputParameter": [layer("HDF5Output", "hdf5_output_param", 'file_name: "x"', (2, 3), tops=0)],
    "HingeLossParameter": [layer("HingeLoss", "hinge_loss_param", "", (3, 4), (4, (3,)))],
    "InfogainLossParameter": [
        layer("InfogainLoss", "infogain_loss_param", "", (3, 4, 4), (4, (3, 4)), (1, 1, 4, 4)),
        layer("InfogainLoss", "infogain_loss_param", 'source: "infogain 2"', (3, 4, 4), (4, (3, 4))),
    ],
    "InnerProductParameter": [layer("InnerProduct", "inner_product_param", "num_output: 3", *_IP)],
    "InterpParameter": [layer("Interp", "interp_param", "zoom_factor: 2", (1, 2, 5, 5))],
    "LogParameter": [layer("Log", "log_param", "", ("=", [[1.0, 2.0, 3.5]]))],
    "LossParameter": [
        layer("SoftmaxWithLoss", "loss_param", base, (4, 3, 2), (3, (4, 2))) for base in ("", "ignore_label: 1", "class_weighting: 2 class_weighting: 3 class_weighting: 4",
                 "weight_by_label_freqs: true class_weighting: 2 class_weighting: 3 class_weighting: 4")
    ],
    "LRNParameter": [layer("LRN", "lrn_param", "alpha: 0.5", (2, 5, 6, 6))],
    "MemoryDataParameter": [layer("MemoryData", "memory_data_param", "batch_size: 2 channels: 1 height: 2 width: 2")],
    "MultiBoxLossParameter": [
        layer("MultiBoxLoss", "multibox_loss_param", f"num_classes: 3 {more}", *_SSD)
        for more in ("overlap_threshold: 0.3 neg_overlap: 0.9", "use_prior_for_matching: false", "do_neg_mining: false",
                     "neg_pos_ratio: 0.4", "neg_pos_ratio: 1 neg_overlap: 0.2")
    ] + [layer("MultiBoxLoss", "multibox_loss_param", "num_classes: 3 code_type: CENTER_SIZE", *_MOVED),
         layer("MultiBoxLoss", "multibox_loss_param", "num_classes: 4", (1, 24), (1, 24), PRIOR, TRUE)],
    "MVNParameter": [layer("MVN", "mvn_param", "", (2, 3, 4, 4))],
    "NormalizeParameter": [layer("Normalize", "norm_param", "", (2, 3, 4, 4))],
    "PermuteParameter": [layer("Permute", "permute_param", "order: 0 order: 1 order: 2 order: 3", (1, 2, 3, 4))],
    "PoolingParameter": [layer("Pooling", "pooling_param", "kernel_size: 3 stride: 2 pad: 1", (2, 3, 8, 8))],
    "PowerParameter": [layer("Power", "power_param", "shift: 3", (3, 4))],
    "PReLUParameter": [layer("PReLU", "prelu_param", "", (2, 3, 2))],
    "PriorBoxParameter": [
        layer("PriorBox", "prior_box_param", "min_size: 20 max_size: 40 aspect_ratio: 2", (1, 4, 4, 4), (1, 3, 64, 64))
    ],
    "ProposalParameter": [
        layer("Proposal", "proposal_param", "ratio: 1 scale: 1 min_size: 4", (1, 2, 6, 6), (1, 4, 6, 6), ("=", [[96, 96, 1]]))
    ],
    "PSROIPoolingParameter": [
        layer("PSROIPooling", "psroi_pooling_param", "output_dim: 2 group_size: 2 spatial_scale: 0.25", (1, 8, 8, 8), _ROIS)
    ],
    "PythonParameter": [layer("Python", "python_param", 'module: "m" layer: "l"', (2, 3))],
    "RecurrentParameter": [
        layer("LSTM", "recurrent_param", "num_output: 3", (3, 2, 4), (2, (3, 2))),
        layer("RNN", "recurrent_param", "num_output: 3 expose_hidden: true", (3, 2, 4), (2, (3, 2)), (1, 2, 3), tops=2),
    ],
    "ReductionParameter": [layer("Reduction", "reduction_param", "", (2, 3, 4))],
    "ReLU6Parameter": [layer("ReLU6", "relu6_param", "", (3, 4))],
    "ReLUParameter": [layer("ReLU", "relu_param", "", (3, 4))],
    "ReshapeParameter": [layer("Reshape", "reshape_param", "shape { dim: -1 }", (2, 3, 4))],
    "ROIPoolingParameter": [
        layer("ROIPooling", "roi_pooling_param", "pooled_h: 2 pooled_w: 2 spatial_scale: 0.25", (1, 3, 8, 8), _ROIS)
    ],
    "ScaleParameter": [layer("Scale", "scale_param", base, (2, 3, 4)) for base in ("", "bias_term: true")],
    "ShuffleChannelParameter": [layer("ShuffleChannel", "shuffle_channel_param", "", (1, 6, 2, 2))],
    "SigmoidParameter": [layer("Sigmoid", "sigmoid_param", "", (3, 4))],
    "SliceParameter": [layer("Slice", "slice_param", "", (2, 4, 6), tops=2)],
    "SmoothL1LossParameter": [layer("SmoothL1Loss", "smooth_l1_loss_param", "", (3, 4), (3, 4))],
    "SoftmaxParameter": [layer("Softmax", "softmax_param", "", (2, 3, 4))],
    "SPPParameter": [layer("SPP", "spp_param", "pyramid_height: 2", (1, 2, 8, 8))],
    "SwishParameter": [layer("Swish", "swish_param", "", (3, 4))],
    "TanHParameter": [layer("TanH", "tanh_param", "", (3, 4))],
    "ThresholdParameter": [layer("Threshold", "threshold_param", "", (3, 4))],
    "TileParameter": [layer("Tile", "tile_param", "tiles: 2", (2, 3, 4))],
    "UpsampleParameter": [
        layer("Upsample", "upsample_param", "", (1, 2, 3, 3)),
        layer("Upsample", "upsample_param", "", (1, 2, 3, 3), (9, (1, 2, 3, 3))),
    ],
    "WindowDataParameter": [layer("WindowData", "window_data_param", 'source: "x" batch_size: 1', tops=2)],
    "DetectionOutputParameter": [
        layer("DetectionOutput", "detection_output_param", "num_classes: 3 nms_param { nms_threshold: 0.9 }",
              (1, 24), (1, 18), PRIOR, more='bottom: "a"')
    ],
    "DetectionEvaluateParameter": [
        layer("DetectionEvaluate", "detection_evaluate_param", "num_classes: 3", FOUND, TRUE)
    ],
    "NonMaximumSuppressionParameter": [
        layer("DetectionOutput", "detection_output_param", "", (1, 24), (1, 18), PRIOR),
    ],
    "SaveOutputParameter": [layer("DetectionOutput", "detection_output_param", "", (1, 24), (1, 18), PRIOR)],
    "FillerParameter": [
        Probe('name: "l" type: "InnerProduct" top: "t" inner_product_param { num_output: 3 weight_filler { %s } }', base, _IP)
        for base in ('type: "constant"', 'type: "uniform"', 'type: "gaussian"', 'type: "xavier"')
    ],
}  # fmt: skip
_NESTED: Final = {
    "NonMaximumSuppressionParameter": "nms_param",
    "SaveOutputParameter": "save_output_param",
}
for _name, _field in _NESTED.items():
    LAYERS[_name] = [
        Probe(one.layer.replace("%s", f"num_classes: 3 {_field} {{ %s }}"), "nms_threshold: 0.9" * (_field[0] == "n"), one.bottoms)
        for one in LAYERS[_name]
    ]  # fmt: skip

# Values where those that the type suggests do not do.
VALUES: Final[dict[str, Sequence[str]]] = {
    "FillerParameter.type": [
        f'type: "{one}"' for one in ("gaussian", "msra", "positive_unitball", "bilinear")
    ],
    "FillerParameter.sparse": ["sparse: 1"],
    "EltwiseParameter.coeff": ["coeff: 2 coeff: 1 coeff: 3"],
    "PriorBoxParameter.max_size": ["max_size: 50"],
    "InfogainLossParameter.source": ['source: "infogain"'],
    "TransposeParameter.dim": ["dim: 2 dim: 0 dim: 1"],
    "PermuteParameter.order": ["order: 0 order: 2 order: 1 order: 3"],
    "SaveOutputParameter.output_directory": ['output_directory: "x"'],
    "DetectionOutputParameter.save_output_param": ['save_output_param { output_directory: "x" }'],
    "DetectionOutputParameter.save_file": ['save_file: "x"'],
    "DetectionOutputParameter.nms_param": ["nms_param { nms_threshold: 0.01 }"],
    "DetectionEvaluateParameter.name_size_file": ['name_size_file: "x"'],
    "MultiBoxLossParameter.nms_param": ["nms_param { nms_threshold: 0.1 top_k: 1 }"],
    "LossParameter.class_weighting": ["class_weighting: 5 class_weighting: 3 class_weighting: 4"],
    "ReshapeParameter.shape": ["shape { dim: 6 dim: 4 }"],
    "ParameterParameter.shape": ["shape { dim: 6 }"],
}
# Layers that compute only with the field.
DECIDES: Final[dict[str, Probe]] = {
    "DetectionOutputParameter.num_classes": layer(
        "DetectionOutput", "detection_output_param", "num_classes: 2", (1, 24), (1, 12), PRIOR),
    "DetectionOutputParameter.share_location": layer(
        "DetectionOutput", "detection_output_param", "num_classes: 3 share_location: false", (1, 72), (1, 18), PRIOR),
    "DetectionOutputParameter.normalized_bbox": layer(
        "DetectionOutput", "detection_output_param", "num_classes: 3 normalized_bbox: false code_type: CENTER_SIZE",
        (2, 4), (2, 3), _ROIS, (1, 3, 32, 32)),
    "MultiBoxLossParameter.num_classes": layer(
        "MultiBoxLoss", "multibox_loss_param", "num_classes: 4", (1, 24), (1, 24), PRIOR, TRUE),
    "MultiBoxLossParameter.share_location": layer(
        "MultiBoxLoss", "multibox_loss_param", "num_classes: 3 share_location: false do_neg_mining: false",
        (1, 72), (1, 18), PRIOR, TRUE),
    "MultiBoxLossParameter.map_object_to_agnostic": layer(
        "MultiBoxLoss", "multibox_loss_param", "num_classes: 2 map_object_to_agnostic: true", (1, 24), (1, 12), PRIOR, TRUE),
    **{f"PythonParameter.{field}": Probe(
        'name: "l" type: "Python" top: "t" python_param { %s }',
        """module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "'scales': [1], 'ratios': [1]" """,
        ((1, 2, 6, 6), (1, 4, 6, 6), ("=", [[96, 96, 1]]))) for field in ("module", "layer", "param_str")},
}  # fmt: skip
# Two texts that must compute different things; the second has the field.
PAIRS: Final[dict[str, tuple[str, str]]] = {
    "ConvolutionParameter.pad_h": ("num_output: 4 kernel_size: 3", "num_output: 4 kernel_size: 3 pad_h: 1 pad_w: 0"),
    "ConvolutionParameter.pad_w": ("num_output: 4 kernel_size: 3", "num_output: 4 kernel_size: 3 pad_h: 0 pad_w: 1"),
    "ConvolutionParameter.kernel_h": ("num_output: 4 kernel_size: 3", "num_output: 4 kernel_h: 2 kernel_w: 3"),
    "ConvolutionParameter.kernel_w": ("num_output: 4 kernel_size: 3", "num_output: 4 kernel_h: 3 kernel_w: 2"),
    "ConvolutionParameter.stride_h": ("num_output: 4 kernel_size: 3", "num_output: 4 kernel_size: 3 stride_h: 2 stride_w: 1"),
    "ConvolutionParameter.stride_w": ("num_output: 4 kernel_size: 3", "num_output: 4 kernel_size: 3 stride_h: 1 stride_w: 2"),
    "ConvolutionParameter.axis": ("num_output: 4 kernel_size: 3", "num_output: 4 kernel_size: 3 axis: 0"),
    "PoolingParameter.kernel_h": ("kernel_size: 3", "kernel_h: 2 kernel_w: 3"),
    "PoolingParameter.kernel_w": ("kernel_size: 3", "kernel_h: 3 kernel_w: 2"),
    "PoolingParameter.stride_h": ("kernel_size: 3", "kernel_size: 3 stride_h: 2 stride_w: 1"),
    "PoolingParameter.stride_w": ("kernel_size: 3", "kernel_size: 3 stride_h: 1 stride_w: 2"),
    "PoolingParameter.pad_h": ("kernel_size: 3", "kernel_size: 3 pad_h: 1 pad_w: 0"),
    "PoolingParameter.pad_w": ("kernel_size: 3", "kernel_size: 3 pad_h: 0 pad_w: 1"),
    "PoolingParameter.global_pooling": ("kernel_size: 3", "global_pooling: true"),
    "PriorBoxParameter.img_size": ("min_size: 20", "min_size: 20 img_size: 50"),
    "PriorBoxParameter.img_h": ("min_size: 20", "min_size: 20 img_h: 50 img_w: 64"),
    "PriorBoxParameter.img_w": ("min_size: 20", "min_size: 20 img_h: 64 img_w: 50"),
    "PriorBoxParameter.step_h": ("min_size: 20", "min_size: 20 step_h: 9 step_w: 16"),
    "PriorBoxParameter.step_w": ("min_size: 20", "min_size: 20 step_h: 16 step_w: 9"),
    "InterpParameter.height": ("height: 8 width: 9", "height: 7 width: 9"),
    "InterpParameter.width": ("height: 8 width: 9", "height: 8 width: 7"),
    "InterpParameter.pad_beg": ("zoom_factor: 2", "zoom_factor: 2 pad_beg: -1"),
    "InterpParameter.pad_end": ("zoom_factor: 2", "zoom_factor: 2 pad_end: -1"),
    "UpsampleParameter.scale_h": ("scale: 2", "scale_h: 3 scale_w: 2"),
    "UpsampleParameter.scale_w": ("scale: 2", "scale_h: 2 scale_w: 3"),
    "UpsampleParameter.upsample_h": ("scale: 2", "upsample_h: 8 upsample_w: 6"),
    "UpsampleParameter.upsample_w": ("scale: 2", "upsample_h: 6 upsample_w: 8"),
    "PSROIPoolingParameter.output_dim": (
        "output_dim: 2 group_size: 2 spatial_scale: 0.25", "output_dim: 8 group_size: 1 spatial_scale: 0.25"),
    "PSROIPoolingParameter.group_size": (
        "output_dim: 2 group_size: 2 spatial_scale: 0.25", "output_dim: 8 group_size: 1 spatial_scale: 0.25"),
    "RecurrentParameter.expose_hidden": ("num_output: 3", "num_output: 3 expose_hidden: true"),
    "SliceParameter.slice_point": ("axis: 1", "axis: 1 slice_point: 1"),
}  # fmt: skip

# ---- Data layers, which read files in the current folder

_WARP = "resize_param { height: 16 width: 16 }"
_DATA = 'data_param { source: "colors" backend: LMDB batch_size: 2 }'
_ENCODED = 'data_param { source: "encoded" backend: LMDB batch_size: 2 }'
_BOXES = 'data_param { source: "data/train_lmdb" backend: LMDB batch_size: 3 }'
_SAMPLER = "sampler { min_scale: 0.5 max_scale: 0.8 min_aspect_ratio: 0.8 max_aspect_ratio: 1.2 }"
_TRANSFORMED = (
    f'name: "l" type: "AnnotatedData" top: "a" top: "b" {_BOXES} transform_param {{ {_WARP} '
)
_SAMPLED = f"""name: "l" type: "AnnotatedData" top: "a" top: "b" {_BOXES} transform_param {{ {_WARP} }}
    annotated_data_param {{ batch_sampler {{ max_trials: 9 max_sample: 1 """
_CONSTRAINED = f"{_SAMPLED} {_SAMPLER} sample_constraint {{ %s }} }} }}"
_DISTORTED = " ".join(f"{one}_prob: 1" for one in ("brightness", "contrast", "hue", "saturation"))
_DISTORTED += " brightness_delta: 9 hue_delta: 9"
_DISTORTED += " contrast_lower: 0.6 contrast_upper: 1.4 saturation_lower: 0.6 saturation_upper: 1.4"
LAYERS |= {
    "DataParameter": [
        layer("Data", "data_param", f'source: "{one}" backend: LMDB batch_size: 2', tops=2) for one in ("colors", "encoded")
    ],
    "ImageDataParameter": [
        layer("ImageData", "image_data_param", 'source: "list.txt" batch_size: 2 new_height: 6 new_width: 6', tops=2)
    ],
    "HDF5DataParameter": [layer("HDF5Data", "hdf5_data_param", 'source: "h5.txt" batch_size: 2', tops=2)],
    "DummyDataParameter": [
        layer("DummyData", "dummy_data_param", base, tops=1)
        for base in ("shape { dim: 2 dim: 3 }", "num: 2 channels: 2 height: 3 width: 2")
    ],
    "InputParameter": [layer("Input", "input_param", "shape { dim: 2 dim: 3 }")],
    "ParameterParameter": [layer("Parameter", "parameter_param", "shape { dim: 2 dim: 3 }")],
    "TransformationParameter": [
        *(Probe(f'name: "l" type: "Data" top: "a" top: "b" {one} transform_param {{ %s }}') for one in (_DATA, _ENCODED)),
        Probe(_TRANSFORMED.replace(_WARP, "%s }") + f" annotated_data_param {{ batch_sampler {{ {_SAMPLER} }} }}", _WARP),
    ],
    "AnnotatedDataParameter": [layer("AnnotatedData", "annotated_data_param", "", tops=2, more=f"{_BOXES} transform_param {{ {_WARP} }}")],
    "BatchSampler": [Probe(f"{_SAMPLED} %s }} }}".replace("max_trials: 9 max_sample: 1", ""), base) for base in (_SAMPLER, f"{_SAMPLER} max_sample: 9")],
    "Sampler": [Probe(f"{_SAMPLED} sampler {{ %s }} }} }}", "min_scale: 0.5 max_scale: 0.8 min_aspect_ratio: 0.8 max_aspect_ratio: 1.2")],
    "SampleConstraint": [Probe(_CONSTRAINED)],
    "ResizeParameter": [Probe(_TRANSFORMED.replace(_WARP, "resize_param { %s }") + " }", "height: 16 width: 16")],
    "NoiseParameter": [Probe(f"{_TRANSFORMED} noise_param {{ %s }} }}", base) for base in ("", "prob: 0.5")],
    "SaltPepperParameter": [Probe(f"{_TRANSFORMED} noise_param {{ prob: 1 saltpepper: true saltpepper_param {{ %s }} }} }}")],
    "DistortionParameter": [Probe(f"{_TRANSFORMED} distort_param {{ %s }} }}", _DISTORTED)],
    "ExpansionParameter": [Probe(f"{_TRANSFORMED} expand_param {{ %s }} }}", "prob: 0.9 max_expand_ratio: 3")],
    "EmitConstraint": [
        Probe(f"{_TRANSFORMED} emit_constraint {{ %s }} }} annotated_data_param {{ batch_sampler {{ {_SAMPLER} }} }}", base)
        for base in ("", "emit_type: MIN_OVERLAP emit_overlap: 0.1")
    ],
}  # fmt: skip
VALUES |= {
    "DataParameter.source": ['source: "grays"'],
    "DataParameter.mean_file": ['mean_file: "mean"'],
    "TransformationParameter.mean_file": ['mean_file: "mean"'],
    "TransformationParameter.resize_param": ["resize_param { height: 9 width: 9 }"],
    "TransformationParameter.noise_param": ["noise_param { prob: 1 }"],
    "TransformationParameter.emit_constraint": ["emit_constraint { emit_type: CENTER }"],
    "TransformationParameter.distort_param": [f"distort_param {{ {_DISTORTED} }}"],
    "TransformationParameter.expand_param": ["expand_param { prob: 1 max_expand_ratio: 3 }"],
    "ImageDataParameter.source": ['source: "list2.txt"'],
    "ImageDataParameter.mean_file": ['mean_file: "mean"'],
    "ImageDataParameter.root_folder": ['root_folder: "other/"'],
    "HDF5DataParameter.source": ['source: "h52.txt"'],
    "DummyDataParameter.data_filler": ['data_filler { type: "constant" value: 2 }'],
    "DummyDataParameter.shape": ["shape { dim: 3 dim: 4 }"],
    "InputParameter.shape": ["shape { dim: 3 dim: 4 }"],
    "AnnotatedDataParameter.batch_sampler": [f"batch_sampler {{ {_SAMPLER} }}"],
    "BatchSampler.sampler": ["sampler { min_scale: 0.2 max_scale: 0.3 }"],
    "BatchSampler.sample_constraint": ["sample_constraint { min_object_coverage: 1 }"],
    "NoiseParameter.saltpepper_param": ["saltpepper_param { fraction: 0.2 }"],
    "ResizeParameter.interp_mode": ["interp_mode: AREA", "interp_mode: LINEAR interp_mode: NEAREST"],
    "ResizeParameter.height": ["height: 8"], "ResizeParameter.width": ["width: 8"],
    "DetectionEvaluateParameter.resize_param": ["resize_param { height: 8 width: 8 }"],
    "SaveOutputParameter.resize_param": ["resize_param { height: 8 width: 8 }"],
}  # fmt: skip


def candidates(message: str, field: FieldDescriptor) -> list[str]:
    """Texts with other values of the field."""
    name = f"{message}.{field.name}"
    if name in VALUES:
        return list(VALUES[name])
    if field.message_type is not None:
        if field.message_type.name == "FillerParameter":
            return [f'{field.name} {{ type: "constant" value: 0.75 }}']
        return []
    if field.enum_type is not None:
        return [f"{field.name}: {value}" for value in field.enum_type.values_by_name]
    if field.type == field.TYPE_BOOL:
        return [f"{field.name}: true", f"{field.name}: false"]
    if field.type == field.TYPE_FLOAT:
        return [f"{field.name}: {value}" for value in (0.3, 1.75, 5, 0, -1, 40)]
    if field.type == field.TYPE_STRING:
        return [f'{field.name}: "x"']
    return [f"{field.name}: {value}" for value in (2, 1, 3, 0, 4, 8)]


def fields_of(message: str) -> list[FieldDescriptor]:
    """Without those that hold what this schema does not have."""
    fields = caffe_pb2.DESCRIPTOR.message_types_by_name[message].fields
    return [field for field in fields if field.name not in ("unread", "type_name")]


def verdict(message: str, field: FieldDescriptor) -> str:
    """What a field of a layer's message does."""
    pair = PAIRS.get(f"{message}.{field.name}")
    if pair is not None:
        outcomes = [[outcome(one, text) for text in pair] for one in LAYERS[message]]
        good = any(a != b and b != _REFUSED for a, b in outcomes)
        return ACTS if good else NONE
    decides = DECIDES.get(f"{message}.{field.name}")
    if decides is not None:
        without = text_format.Parse(decides.base, getattr(caffe_pb2, message)())
        without.ClearField(field.name)
        text = text_format.MessageToString(without, as_one_line=True)
        good = outcome(decides, decides.base) not in (_REFUSED, outcome(decides, text))
        return ACTS if good else NONE
    texts = candidates(message, field)
    assert texts, f"no values for {message}.{field.name}"
    return judged(
        (outcome(one, one.base), (outcome(one, text) for text in with_field(message, one.base, field, texts)))
        for one in LAYERS[message]
    )  # fmt: skip


def judged(found: Any) -> str:
    """The verdict of pairs of a base's outcome and those of other values."""
    refused = False
    for base, others in found:
        for other in others:
            if other not in (base, _REFUSED):
                return ACTS
            refused |= other == _REFUSED
    return REFUSED if refused else NONE


def with_field(
    message: str, base: str, field: FieldDescriptor, texts: Sequence[str]
) -> Iterator[str]:
    """The base with each of these in place of the field."""
    for text in texts:
        kind = getattr(caffe_pb2, message)
        added = text_format.Parse(text, kind())
        made = text_format.Parse(base, kind())
        for one, _ in added.ListFields():
            made.ClearField(one.name)
        made.MergeFrom(added)
        yield text_format.MessageToString(made, as_one_line=True)


def outcome(probe: Probe, text: str) -> Outcome:
    """Tops, gradients and first values of a layer with this text, in both phases."""
    param = text_format.Parse(probe.layer % text, caffe_pb2.LayerParameter())
    found: list[Any] = []
    for phase in (
        ("TRAIN", "TEST") if probe.bottoms or "_data_param" not in probe.layer else ("TRAIN",)
    ):
        try:
            found += _computed(param, probe.bottoms, phase)
        except (EngineError, SolverError):
            return _REFUSED
    return tuple(found)


def _computed(param: Any, given: Sequence[Any], phase: str) -> list[Any]:
    import torch

    from caffenets.known_types import type_here
    from caffenets.layer import LayerContext
    from caffenets.layers import LAYERS as KINDS
    from caffenets.pytorch.fillers import fill
    from speedo.engines.pytorch.data import SOURCES

    if param.type in SOURCES:
        return _read(
            SOURCES[param.type](
                param, LayerContext(phase, seed=3, folder=Path.cwd()), **_QUIET.get(param.type, {})
            )
        )
    kind = KINDS.get(type_here(param))
    if kind is None:
        raise EngineError(f"{param.type} is refused as a whole")
    rng = np.random.default_rng(7)
    bottoms = [torch.from_numpy(_values(one, rng)) for one in given]
    made = kind(param, LayerContext(phase, seed=3, folder=Path.cwd()))
    made.setup([tuple(bottom.shape) for bottom in bottoms])
    for at, (bottom, one) in enumerate(zip(bottoms, given, strict=True)):
        free = all(isinstance(size, int) for size in one) and at not in made.constant
        bottom.requires_grad_(free and at - len(bottoms) not in made.constant)
    torch.manual_seed(5)
    first = [
        fill(spec.filler, spec.shape) if spec.filler is not None else None for spec in made.blobs
    ]
    blobs = [
        torch.from_numpy(rng.normal(0.6, 0.4, spec.shape).astype(np.float32)).requires_grad_(not spec.statistic)
        for spec in made.blobs
    ]  # fmt: skip
    torch.manual_seed(5)
    tops = made.forward(bottoms, blobs)
    total = sum((top * _weights(top)).sum() for top in tops if top.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    made.check_indices()
    values = [*first, *tops, *blobs, *(one.grad for one in (*bottoms, *blobs))]
    return [None if one is None else (tuple(one.shape), _rounded(one)) for one in values]


_QUIET: Final = {
    "Data": {"ahead": False},
    "AnnotatedData": {"ahead": False, "decoders": 1},
    "ImageData": {"ahead": False},
}


def _read(source: Any) -> list[Any]:
    """Three batches of a data layer."""
    import torch

    torch.manual_seed(5)
    try:
        source.setup([])
        batches = [top for _ in range(2) for top in source.forward([], [])]
        return [(tuple(top.shape), _rounded(top.float())) for top in batches]
    finally:
        source.close()


def _weights(top: Any) -> Any:
    import torch

    return torch.linspace(0.5, 1.5, max(1, top.numel())).reshape(top.shape)


def _rounded(tensor: Any) -> bytes:
    """Its values to five digits: what differs by rounding is the same."""
    values = tensor.detach().numpy().astype(np.float64)
    with np.errstate(all="ignore"):
        scale = np.nanmax(np.abs(values), initial=1e-9)
        return np.round(values / scale, 5).tobytes() + np.float32(f"{scale:.4g}").tobytes()


def _values(one: Any, rng: np.random.Generator) -> Any:
    if one[0] == "=":
        return np.array(one[1], np.float32)
    if len(one) == 2 and isinstance(one[1], tuple):
        return rng.integers(0, one[0], one[1]).astype(np.float32)
    return rng.normal(size=one).astype(np.float32)
