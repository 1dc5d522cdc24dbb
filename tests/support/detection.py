"""A small detection set of colored shapes, as Pascal VOC and as COCO, and nets that learn it: SSD and Faster R-CNN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 64
CLASSES = ("disc", "square")
_COLORS = {"disc": (200, 60, 60), "square": (60, 60, 200)}

Object = tuple[str, int, int, int, int]


def draw(seed: int) -> tuple[Image.Image, list[Object]]:
    """An image of noise with one or two shapes that do not touch: name, and corners with the last pixel."""
    chance = np.random.default_rng(seed)
    pixels = chance.integers(90, 130, (SIDE, SIDE, 3)).astype(np.uint8)
    objects: list[Object] = []
    for _ in range(int(chance.integers(1, 3))):
        size = int(chance.integers(14, 30))
        left, top = (int(one) for one in chance.integers(0, SIDE - size, 2))
        box = (left, top, left + size - 1, top + size - 1)
        if any(
            box[0] <= o[3] and o[1] <= box[2] and box[1] <= o[4] and o[2] <= box[3] for o in objects
        ):
            continue
        name = CLASSES[int(chance.integers(2))]
        rows, columns = np.mgrid[:size, :size] - (size - 1) / 2
        inside = (
            np.ones((size, size), bool) if name == "square" else rows**2 + columns**2 <= size**2 / 4
        )
        pixels[top : top + size, left : left + size][inside] = _COLORS[name]
        objects.append((name, *box))
    return Image.fromarray(pixels, "RGB"), objects


def write_voc(folder: Path, first: int, count: int) -> Path:
    """A folder of Pascal VOC; corners count from 1 there."""
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    names = []
    for seed in range(first, first + count):
        image, objects = draw(seed)
        names.append(f"{seed:06}")
        image.save(folder / "JPEGImages" / f"{seed:06}.png")
        boxes = "".join(
            f"<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>"
            f"<xmax>{right + 1}</xmax><ymax>{bottom + 1}</ymax></bndbox></object>"
            for name, left, top, right, bottom in objects
        )
        (folder / "Annotations" / f"{seed:06}.xml").write_text(
            f"<annotation><filename>{seed:06}.png</filename>{boxes}</annotation>"
        )
    (folder / "ImageSets/Main/all.txt").write_text("\n".join(names) + "\n")
    return folder


def write_coco(folder: Path, first: int, count: int) -> Path:
    """The JSON file of COCO for the same images."""
    folder.mkdir(parents=True, exist_ok=True)
    images: list[Any] = []
    annotations: list[Any] = []
    for seed in range(first, first + count):
        image, objects = draw(seed)
        image.save(folder / f"{seed:06}.png")
        images.append({"id": seed, "file_name": f"{seed:06}.png", "width": SIDE, "height": SIDE})
        annotations += [
            {"image_id": seed, "category_id": 10 * (1 + CLASSES.index(name)), "iscrowd": 0,
             "bbox": [left, top, right - left + 1, bottom - top + 1]}
            for name, left, top, right, bottom in objects
        ]  # fmt: skip
    categories = [{"id": 10 * number, "name": name} for number, name in enumerate(CLASSES, 1)]
    file = folder / "instances.json"
    file.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    return file


def make_databases(folder: Path, train: int = 200, test: int = 40) -> None:
    """train_lmdb and test_lmdb in the folder."""
    from speedo.data.boxes import prepare_boxes

    prepare_boxes(write_voc(folder / "voc-train", 0, train), folder / "data", subset="all")
    prepare_boxes(
        write_voc(folder / "voc-test", 10_000, test), folder / "data", database="test_lmdb"
    )


def _data(batch: int, test_batch: int, mirror: bool = True) -> str:
    mean, mirrored = "scale: 0.02 mean_value: 110", "mirror: true" if mirror else ""
    return f"""
layer {{ name: "data" type: "AnnotatedData" top: "data" top: "label" include {{ phase: TRAIN }}
  transform_param {{ {mean} {mirrored} resize_param {{ height: {SIDE} width: {SIDE} }} }}
  data_param {{ source: "data/train_lmdb" backend: LMDB batch_size: {batch} }}
  annotated_data_param {{ batch_sampler {{ max_sample: 1 max_trials: 1 }} }} }}
layer {{ name: "data" type: "AnnotatedData" top: "data" top: "label" include {{ phase: TEST }}
  transform_param {{ {mean} resize_param {{ height: {SIDE} width: {SIDE} }} }}
  data_param {{ source: "data/test_lmdb" backend: LMDB batch_size: {test_batch} }} }}
"""


def _conv(
    name: str, bottom: str, outputs: int, kernel: int, stride: int = 1, relu: bool = True
) -> str:
    text = f"""
layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{
  num_output: {outputs} kernel_size: {kernel} stride: {stride} pad: {kernel // 2}
  weight_filler {{ type: "msra" }} }} }}"""
    return text + (
        f'\nlayer {{ name: "{name}_relu" type: "ReLU6" bottom: "{name}" top: "{name}" }}'
        if relu
        else ""
    )


def _depthwise(name: str, bottom: str, channels: int, outputs: int, stride: int) -> str:
    """MobileNet's pair: a filter for each channel, then one of 1 x 1."""
    return f"""
layer {{ name: "{name}_dw" type: "ConvolutionDepthwise" bottom: "{bottom}" top: "{name}_dw" convolution_param {{
  num_output: {channels} kernel_size: 3 pad: 1 stride: {stride} weight_filler {{ type: "msra" }} }} }}
layer {{ name: "{name}_dw_relu" type: "ReLU6" bottom: "{name}_dw" top: "{name}_dw" }}""" + _conv(
        name, f"{name}_dw", outputs, 1
    )


def _backbone() -> str:
    return (
        _conv("conv1", "data", 16, 3, 2)
        + _depthwise("conv2", "conv1", 16, 32, 2)
        + _depthwise("conv3", "conv2", 32, 48, 2)
    )


def _head(source: str, size: int, largest: int) -> str:
    """Locations, confidences of 3 classes and priors of a feature map: 4 boxes for each place."""
    parts = []
    for what, outputs in (("loc", 16), ("conf", 12)):
        name = f"{source}_{what}"
        parts.append(
            _conv(name, source, outputs, 3, relu=False)
            + f"""
layer {{ name: "{name}_perm" type: "Permute" bottom: "{name}" top: "{name}_perm"
  permute_param {{ order: 0 order: 2 order: 3 order: 1 }} }}
layer {{ name: "{name}_flat" type: "Flatten" bottom: "{name}_perm" top: "{name}_flat" }}"""
        )
    return (
        "".join(parts)
        + f"""
layer {{ name: "{source}_prior" type: "PriorBox" bottom: "{source}" bottom: "data" top: "{source}_prior"
  prior_box_param {{
  min_size: {size} max_size: {largest} aspect_ratio: 1.5 clip: false
  variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }} }}"""
    )


def _of_other_caffes() -> str:
    """From conv3 to `mixed`, of one shape, through layers of ShuffleNet, SENet, SSD, SegNet and PSPNet."""
    return (
        """
layer { name: "shuffled" type: "ShuffleChannel" bottom: "conv3" top: "shuffled" shuffle_channel_param { group: 4 } }
layer { name: "squeezed" type: "Pooling" bottom: "shuffled" top: "squeezed"
  pooling_param { pool: AVE global_pooling: true } }"""
        + _conv("excited", "squeezed", 48, 1, relu=False)
        + """
layer { name: "gate" type: "Sigmoid" bottom: "excited" top: "gate" }
layer { name: "scaled" type: "Axpy" bottom: "gate" bottom: "shuffled" bottom: "conv3" top: "scaled" }
layer { name: "norm" type: "Normalize" bottom: "scaled" top: "norm" norm_param { across_spatial: false
  channel_shared: false scale_filler { type: "constant" value: 10 } } }
layer { name: "halved" type: "Pooling" bottom: "norm" top: "halved" top: "places"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "put_back" type: "Upsample" bottom: "halved" bottom: "places" top: "put_back"
  upsample_param { scale: 2 } }
layer { name: "smooth" type: "Interp" bottom: "halved" top: "smooth" interp_param { height: 8 width: 8 } }
layer { name: "mixed" type: "Eltwise" bottom: "norm" bottom: "put_back" bottom: "smooth" top: "mixed" }"""
    )


def ssd_net(
    batch: int = 16,
    test_batch: int = 20,
    *,
    every_layer: bool = False,
    normalization: str = "VALID",
    mirror: bool = True,
) -> str:
    """SSD over a small MobileNet, with the layers of the published prototxt, or with those of other Caffes, too."""
    first = "mixed" if every_layer else "conv3"
    joined = "".join(
        f"""
layer {{ name: "mbox_{what}" type: "Concat" bottom: "{first}_{tail}" bottom: "conv4_{tail}" top: "mbox_{what}"
  concat_param {{ axis: {axis} }} }}"""
        for what, tail, axis in (
            ("loc", "loc_flat", 1),
            ("conf", "conf_flat", 1),
            ("priorbox", "prior", 2),
        )
    )
    return f"""name: "ssd"
{_data(batch, test_batch, mirror)}{_backbone()}{_of_other_caffes() if every_layer else ""}
{_depthwise("conv4", first, 48, 64, 2)}{_head(first, 16, 24)}{_head("conv4", 24, 36)}{joined}
layer {{ name: "mbox_loss" type: "MultiBoxLoss" bottom: "mbox_loc" bottom: "mbox_conf" bottom: "mbox_priorbox"
  bottom: "label" top: "mbox_loss" include {{ phase: TRAIN }}
  propagate_down: true propagate_down: true propagate_down: false propagate_down: false
  loss_param {{ normalization: {normalization} }}
  multibox_loss_param {{ loc_loss_type: SMOOTH_L1 conf_loss_type: SOFTMAX loc_weight: 1 num_classes: 3
    share_location: true match_type: PER_PREDICTION overlap_threshold: 0.5 use_prior_for_matching: true
    background_label_id: 0 use_difficult_gt: true neg_pos_ratio: 3 neg_overlap: 0.5 code_type: CENTER_SIZE
    ignore_cross_boundary_bbox: false mining_type: MAX_NEGATIVE }} }}
layer {{ name: "conf_reshape" type: "Reshape" bottom: "mbox_conf" top: "conf_reshape" include {{ phase: TEST }}
  reshape_param {{ shape {{ dim: 0 dim: -1 dim: 3 }} }} }}
layer {{ name: "conf_softmax" type: "Softmax" bottom: "conf_reshape" top: "conf_softmax" include {{ phase: TEST }}
  softmax_param {{ axis: 2 }} }}
layer {{ name: "conf_flatten" type: "Flatten" bottom: "conf_softmax" top: "conf_flatten" include {{ phase: TEST }} }}
layer {{ name: "detection_out" type: "DetectionOutput" bottom: "mbox_loc" bottom: "conf_flatten" bottom: "mbox_priorbox"
  top: "detection_out" include {{ phase: TEST }}
  detection_output_param {{ num_classes: 3 share_location: true background_label_id: 0
    nms_param {{ nms_threshold: 0.45 top_k: 100 }} code_type: CENTER_SIZE keep_top_k: 50
    confidence_threshold: 0.01 }} }}
layer {{ name: "detection_eval" type: "DetectionEvaluate" bottom: "detection_out" bottom: "label" top: "detection_eval"
  include {{ phase: TEST }}
  detection_evaluate_param {{ num_classes: 3 background_label_id: 0 overlap_threshold: 0.5 }} }}
"""


def solver_text(max_iter: int, test_interval: int, test_iter: int = 2) -> str:
    return f"""net: "net.prototxt" type: "Adam" base_lr: 0.003 momentum: 0.9 lr_policy: "multistep" gamma: 0.3
stepvalue: {max_iter * 2 // 3} weight_decay: 0.0001 max_iter: {max_iter} test_iter: {test_iter}
test_interval: {test_interval} test_initialization: false random_seed: 1 solver_mode: CPU
eval_type: "detection" ap_version: "11point"
"""


def faster_rcnn_net(batch: int = 4, test_batch: int = 20, *, every_layer: bool = False) -> str:
    """Faster R-CNN over the same backbone, with py-faster-rcnn's Python layers; or with R-FCN's votes besides."""
    rpn = "\"{'feat_stride': 8, 'scales': [1, 1.75], 'ratios': [1], 'min_size': 8}\""
    classes = "\"'num_classes': 3\""
    train, test = "include { phase: TRAIN }", "include { phase: TEST }"

    def python(name: str, kind: str, bottoms: str, tops: str, options: str, phase: str) -> str:
        named = "".join(f' bottom: "{one}"' for one in bottoms.split())
        named += "".join(f' top: "{one}"' for one in tops.split())
        return f"""
layer {{ name: "{name}" type: "Python"{named} {phase} python_param {{
  module: "rpn.{kind}_layer" layer: "{kind.title().replace("_", "")}Layer" param_str: {options} }} }}"""

    def product(name: str, bottom: str, outputs: int, filler: str) -> str:
        return f"""
layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}"
  inner_product_param {{ num_output: {outputs} weight_filler {{ {filler} }} }} }}"""

    scores = product("cls_score", "fc", 3, 'type: "gaussian" std: 0.01')
    if every_layer:
        scores = (
            product("cls_fc", "fc", 3, 'type: "gaussian" std: 0.01')
            + _conv("rfcn_cls", "conv3", 12, 1, relu=False)
            + """
layer { name: "parts" type: "PSROIPooling" bottom: "rfcn_cls" bottom: "rois" top: "parts"
  psroi_pooling_param { spatial_scale: 0.125 output_dim: 3 group_size: 2 } }
layer { name: "vote" type: "Pooling" bottom: "parts" top: "vote" pooling_param { pool: AVE global_pooling: true } }
layer { name: "votes" type: "Flatten" bottom: "vote" top: "votes" }
layer { name: "cls_score" type: "Eltwise" bottom: "cls_fc" bottom: "votes" top: "cls_score" }"""
        )
    proposed = "rpn_cls_prob_reshape rpn_bbox_pred data"
    targets = "bbox_targets bbox_inside_weights bbox_outside_weights"
    rpn_targets = "rpn_labels rpn_bbox_targets rpn_bbox_inside_weights rpn_bbox_outside_weights"
    return f"""name: "faster-rcnn"
{_data(batch, test_batch)}{_backbone()}{_conv("rpn_conv", "conv3", 48, 3)}
{_conv("rpn_cls_score", "rpn_conv", 4, 1, relu=False)}{_conv("rpn_bbox_pred", "rpn_conv", 8, 1, relu=False)}
layer {{ name: "rpn_cls_score_reshape" type: "Reshape" bottom: "rpn_cls_score" top: "rpn_cls_score_reshape"
  reshape_param {{ shape {{ dim: 0 dim: 2 dim: -1 dim: 0 }} }} }}
{python("rpn-data", "anchor_target", "rpn_cls_score label data data", rpn_targets, rpn, train)}
layer {{ name: "rpn_loss_cls" type: "SoftmaxWithLoss" bottom: "rpn_cls_score_reshape" bottom: "rpn_labels"
  top: "rpn_cls_loss" {train}
  propagate_down: true propagate_down: false loss_param {{ ignore_label: -1 normalize: true }} }}
layer {{ name: "rpn_loss_bbox" type: "SmoothL1Loss" bottom: "rpn_bbox_pred" bottom: "rpn_bbox_targets"
  bottom: "rpn_bbox_inside_weights" bottom: "rpn_bbox_outside_weights" top: "rpn_loss_bbox" {train}
  smooth_l1_loss_param {{ sigma: 3 }} }}
layer {{ name: "rpn_cls_prob" type: "Softmax" bottom: "rpn_cls_score_reshape" top: "rpn_cls_prob" }}
layer {{ name: "rpn_cls_prob_reshape" type: "Reshape" bottom: "rpn_cls_prob" top: "rpn_cls_prob_reshape"
  reshape_param {{ shape {{ dim: 0 dim: 4 dim: -1 dim: 0 }} }} }}
{python("proposal", "proposal", proposed, "rpn_rois", rpn, train)}
{python("proposal", "proposal", proposed, "rois", rpn, test)}
{python("roi-data", "proposal_target", "rpn_rois label data", "rois labels " + targets, classes, train)}
layer {{ name: "roi_pool" type: "ROIPooling" bottom: "conv3" bottom: "rois" top: "pool"
  roi_pooling_param {{ pooled_w: 4 pooled_h: 4 spatial_scale: 0.125 }} }}
{product("fc", "pool", 64, 'type: "xavier"')}
layer {{ name: "fc_relu" type: "ReLU" bottom: "fc" top: "fc" }}
{scores}{product("bbox_pred", "fc", 12, 'type: "gaussian" std: 0.001')}
layer {{ name: "loss_cls" type: "SoftmaxWithLoss" bottom: "cls_score" bottom: "labels" top: "loss_cls" {train}
  propagate_down: true propagate_down: false }}
layer {{ name: "loss_bbox" type: "SmoothL1Loss" bottom: "bbox_pred" bottom: "bbox_targets" bottom: "bbox_inside_weights"
  bottom: "bbox_outside_weights" top: "loss_bbox" {train} }}
layer {{ name: "cls_prob" type: "Softmax" bottom: "cls_score" top: "cls_prob" {test} }}
layer {{ name: "detection_out" type: "DetectionOutput" bottom: "bbox_pred" bottom: "cls_prob" bottom: "rois"
  bottom: "data" top: "detection_out" {test}
  detection_output_param {{ num_classes: 3 share_location: false code_type: CENTER_SIZE normalized_bbox: false
    clip: true confidence_threshold: 0.05 nms_param {{ nms_threshold: 0.3 }} keep_top_k: 100 }} }}
layer {{ name: "detection_eval" type: "DetectionEvaluate" bottom: "detection_out" bottom: "label" bottom: "data"
  top: "detection_eval" {test} detection_evaluate_param {{ num_classes: 3 }} }}
"""
