"""Facts: fields and values of the published Caffes beside BVLC's that SpeeDO's own schema does not have.

Read in each one's src/caffe/proto/caffe.proto: those of SSD (in a copy), R-FCN, SegNet, DeepLab (version 2;
`hole` is of the first) and PSPNet; where several versions are published, the fields of all. Messages that only such a
Caffe has are named by their layer's field.
"""

from __future__ import annotations

from typing import Final

# By Caffe: MESSAGE.FIELD, or LayerParameter.FIELD for a message of a layer that is not here.
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "SSD": ("LayerParameter.video_data_param", "SolverParameter.plateau_winsize"),
    "R-FCN": (
        "LayerParameter.box_annotator_ohem_param", "LossParameter.pre_fixed_normalizer",
    ),
    "SegNet": (
        "LayerParameter.dense_image_data_param",
    ),
    "DeepLab": (
        "LayerParameter.adaptive_bias_channel_param", "LayerParameter.bias_channel_param",
        "LayerParameter.dense_crf_param", "LayerParameter.domain_transform_param", "LayerParameter.mat_read_param",
        "LayerParameter.mat_write_param", "LayerParameter.seg_accuracy_param", "LayerParameter.unique_label_param",
        "TransformationParameter.scale_factors", "TransformationParameter.crop_width",
        "TransformationParameter.crop_height", "BatchNormParameter.update_global_stats",
        "ImageDataParameter.ignore_label", "ImageDataParameter.label_type",
        "ConvolutionParameter.hole", "ConvolutionParameter.hole_h", "ConvolutionParameter.hole_w",
    ),
    "PSPNet": (
        "LayerParameter.batch_reduction_param", "LayerParameter.video_data_param",
        "LayerParameter.seg_accuracy_param", "LayerParameter.adaptive_bias_channel_param",
        "LayerParameter.bias_channel_param", "LayerParameter.dense_crf_param", "LayerParameter.domain_transform_param",
        "LayerParameter.mat_read_param", "LayerParameter.mat_write_param", "LayerParameter.unique_label_param",
        "TransformationParameter.scale_factors", "TransformationParameter.crop_width",
        "TransformationParameter.crop_height", "TransformationParameter.rand_resize",
        "TransformationParameter.rand_rotate", "TransformationParameter.gaussian_blur",
        "TransformationParameter.rand_aspect_ratio", "TransformationParameter.label_scalefactor",
        "TransformationParameter.label_offset", "TransformationParameter.rotate90n",
        "BatchNormParameter.update_global_stats", "ConvolutionParameter.hole", "ConvolutionParameter.hole_h",
        "ConvolutionParameter.hole_w", "DataParameter.shuffle", "InterpParameter.interp_type",
        "ImageDataParameter.ignore_label", "ImageDataParameter.label_type", "ImageDataParameter.is_rsdata",
        "ImageDataParameter.rs_channels", "ImageDataParameter.is_modis_bin", "ImageDataParameter.modis_channles",
        "ImageDataParameter.modis_channel_list", "ImageDataParameter.modis_class_num",
    ),
    "many Caffes (BVLC/caffe#3057)": ("PoolingParameter.ceil_mode",),
}  # fmt: skip

# Values of enums that BVLC's Caffe lacks: a text that has it.
VALUES: Final[dict[str, tuple[str, ...]]] = {
    "R-FCN": ("layer { loss_param { normalization: PRE_FIXED } }",),
    "SegNet": ("layers { type: DENSE_IMAGE_DATA }",),
}
