"""Nets of published papers as prototxt, written from the papers' tables: each as train and test net, and as deploy net.

`save_weights` gives a net random weights, and those of BatchNorm the statistics of random records.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from caffenets.export.layered import draw_inputs
from speedo.engines.caffe_import import load_caffe


@dataclass(frozen=True, slots=True)
class Published:
    """`data` and `inputs` are the first layers of the train and of the deploy net; the loss reads `scores`.

    `parameters` is the number that is trained, where it is published.
    """

    name: str
    data: str
    inputs: str
    body: str
    scores: str
    label: str = "label"
    axis: int = 1
    parameters: int = 0

    def train(self) -> str:
        """The train and test net."""
        options = f"softmax_param {{ axis: {self.axis} }}" if self.axis != 1 else ""
        ends = f'bottom: "{self.scores}" bottom: "{self.label}"'
        accuracy = f"include {{ phase: TEST }} accuracy_param {{ axis: {self.axis} }}"
        return (
            f'name: "{self.name}"\n{self.data}{self.body}'
            f'layer {{ name: "loss" type: "SoftmaxWithLoss" {ends} top: "loss" {options} }}\n'
            f'layer {{ name: "accuracy" type: "Accuracy" {ends} top: "accuracy" {accuracy} }}\n'
        )

    def deploy(self) -> str:
        """What is used once it is trained."""
        options = f"softmax_param {{ axis: {self.axis} }}" if self.axis != 1 else ""
        return (
            f'name: "{self.name}"\n{self.inputs}{self.body}'
            f'layer {{ name: "prob" type: "Softmax" bottom: "{self.scores}" top: "prob" {options} }}\n'
        )


class _Body:
    """Layers one after another; each method returns the name of the top that it makes."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, name: str, kind: str, *bottoms: str, top: str = "", options: str = "") -> str:
        top = top or name
        read = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
        self.text += f'layer {{ name: "{name}" type: "{kind}" {read} top: "{top}" {options} }}\n'
        return top

    def windows(
        self, name: str, bottom: str, outputs: int, kernel: int, stride: int = 1, *,
        pad: int = -1, more: str = "", kind: str = "Convolution",
    ) -> str:  # fmt: skip
        """A convolution; without `pad` it keeps the size but for the stride."""
        padding = kernel // 2 if pad < 0 else pad
        return self.add(
            name, kind, bottom,
            options=f"param {{ lr_mult: 1 decay_mult: 1 }} convolution_param {{ num_output: {outputs} "
            f"kernel_size: {kernel} stride: {stride} pad: {padding} {more} "
            'weight_filler { type: "msra" } }',
        )  # fmt: skip

    def relu(self, blob: str) -> str:
        return self.add(f"{blob}/relu", "ReLU", blob, top=blob)

    def normalized(
        self, name: str, bottom: str, outputs: int, kernel: int, stride: int = 1, *,
        group: int = 1, relu: bool = True,
    ) -> str:  # fmt: skip
        """A convolution without bias, BatchNorm and Scale in place, and ReLU."""
        more = f"bias_term: false group: {group}"
        top = self.windows(name, bottom, outputs, kernel, stride, more=more)
        fixed = "param { lr_mult: 0 } " * 3
        self.add(f"{name}/bn", "BatchNorm", top, top=top, options=fixed)
        self.add(f"{name}/scale", "Scale", top, top=top, options="scale_param { bias_term: true }")
        return self.relu(top) if relu else top

    def pool(self, name: str, bottom: str, options: str) -> str:
        return self.add(name, "Pooling", bottom, options=f"pooling_param {{ {options} }}")


_MAX_3 = "pool: MAX kernel_size: 3 stride: 2"
_MAX_2 = "pool: MAX kernel_size: 2 stride: 2"
_WHOLE = "pool: AVE global_pooling: true"


def _images(side: int) -> tuple[str, str]:
    """The data layers of a train net, and the input of a deploy net, of colour images with a label each."""
    data = _readers('name: "data" top: "data" top: "label"', "images", _transform(side))
    return data, _input("data", data=(2, 3, side, side))


def _readers(ends: str, source: str, transform: str = "") -> str:
    return "".join(
        f'layer {{ {ends} type: "Data" include {{ phase: {phase} }} {transform} data_param {{ '
        f'source: "{phase.lower()}_{source}" backend: LMDB batch_size: {batch} }} }}\n'
        for phase, batch in (("TRAIN", 32), ("TEST", 10))
    )


def _transform(side: int) -> str:
    return (
        f"transform_param {{ crop_size: {side} mean_value: 104 mean_value: 117 mean_value: 123 }}"
    )


def _input(name: str, **shapes: tuple[int, ...]) -> str:
    tops = " ".join(f'top: "{top}"' for top in shapes)
    sizes = " ".join(
        f"shape {{ {' '.join(f'dim: {size}' for size in shape)} }}" for shape in shapes.values()
    )
    return f'layer {{ name: "{name}" type: "Input" {tops} input_param {{ {sizes} }} }}\n'


def squeezenet(side: int = 227) -> Published:
    """SqueezeNet 1.1: Iandola et al. 2016, arXiv:1602.07360, with the sizes of the authors' second version."""
    net = _Body()
    top = net.pool("pool1", net.relu(net.windows("conv1", "data", 64, 3, 2, pad=0)), _MAX_3)
    for number, narrow in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 2):
        name = f"fire{number}"
        squeezed = net.relu(net.windows(f"{name}/squeeze1x1", top, narrow, 1))
        wide = [
            net.relu(net.windows(f"{name}/expand{size}x{size}", squeezed, 4 * narrow, size))
            for size in (1, 3)
        ]
        top = net.add(f"{name}/concat", "Concat", *wide)
        if number in (3, 5):
            top = net.pool(f"pool{number}", top, _MAX_3)
    net.add("drop9", "Dropout", top, top=top, options="dropout_param { dropout_ratio: 0.5 }")
    top = net.relu(net.windows("conv10", top, 1000, 1))
    scores = net.pool("pool10", top, _WHOLE)
    return Published("SqueezeNet 1.1", *_images(side), net.text, scores, parameters=1_235_496)


def resnet(depth: int, side: int = 224) -> Published:
    """ResNet-18 or ResNet-50: He et al. 2015, arXiv:1512.03385, table 1; stage by stage, shortcuts of type B."""
    blocks, parameters = {18: ((2, 2, 2, 2), 11_689_512), 50: ((3, 4, 6, 3), 25_557_032)}[depth]
    net = _Body()
    top = net.pool("pool1", net.normalized("conv1", "data", 64, 7, 2), _MAX_3)
    for stage, count in enumerate(blocks, 2):
        width = 64 << (stage - 2)
        for number in range(1, count + 1):
            stride = 2 if number == 1 and stage > 2 else 1
            name, bottom = f"conv{stage}_{number}", top
            if depth == 18:
                outputs = width
                top = net.normalized(f"{name}a", bottom, width, 3, stride)
                top = net.normalized(f"{name}b", top, outputs, 3, relu=False)
            else:
                outputs = 4 * width
                top = net.normalized(f"{name}a", bottom, width, 1, stride)
                top = net.normalized(f"{name}b", top, width, 3)
                top = net.normalized(f"{name}c", top, outputs, 1, relu=False)
            if number == 1 and (stage > 2 or depth != 18):
                bottom = net.normalized(f"{name}short", bottom, outputs, 1, stride, relu=False)
            top = net.relu(net.add(f"{name}sum", "Eltwise", bottom, top))
    top = net.pool("pool5", top, _WHOLE)
    scores = net.add("fc", "InnerProduct", top, options="inner_product_param { num_output: 1000 }")
    return Published(f"ResNet-{depth}", *_images(side), net.text, scores, parameters=parameters)


def mobilenet(side: int = 224) -> Published:
    """MobileNet v1: Howard et al. 2017, arXiv:1704.04861, table 1; depthwise convolutions by `group`."""
    net = _Body()
    top, inputs = net.normalized("conv1", "data", 32, 3, 2), 32
    outputs = (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1)
    for number, (wide, stride) in enumerate(zip(outputs, strides, strict=True), 2):
        top = net.normalized(f"conv{number}/dw", top, inputs, 3, stride, group=inputs)
        top, inputs = net.normalized(f"conv{number}/sep", top, wide, 1), wide
    scores = net.windows("fc7", net.pool("pool6", top, _WHOLE), 1000, 1)
    return Published("MobileNet v1", *_images(side), net.text, scores, parameters=4_231_976)


def fcn_8s(side: int = 224, width: int = 64, classes: int = 21) -> Published:
    """FCN-8s: Long et al. 2014, arXiv:1411.4038, over VGG-16 with `width` channels in its first layers."""
    net = _Body()
    top, pools = "data", {}
    for stage, (times, count) in enumerate(((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)), 1):
        for number in range(1, count + 1):
            pad = 100 if top == "data" else 1
            name = f"conv{stage}_{number}"
            top = net.relu(net.windows(name, top, times * width, 3, pad=pad))
        top = pools[stage] = net.pool(f"pool{stage}", top, _MAX_2)
    for name, kernel in (("fc6", 7), ("fc7", 1)):
        top = net.relu(net.windows(name, top, 64 * width, kernel, pad=0))
        net.add(f"{name}/drop", "Dropout", top, top=top)

    def larger(name: str, bottom: str, factor: int) -> str:
        return net.windows(
            name, bottom, classes, 2 * factor, factor, pad=0, more="bias_term: false", kind="Deconvolution"
        )  # fmt: skip

    def cut(name: str, bottom: str, like: str, offset: int) -> str:
        options = f"crop_param {{ axis: 2 offset: {offset} }}"
        return net.add(name, "Crop", bottom, like, options=options)

    top = larger("upscore2", net.windows("score_fr", top, classes, 1), 2)
    for stage, offset in ((4, 5), (3, 9)):
        finer = net.windows(f"score_pool{stage}", pools[stage], classes, 1)
        finer = cut(f"score_pool{stage}c", finer, top, offset)
        top = net.add(f"fuse_pool{stage}", "Eltwise", top, finer)
        top = larger(f"upscore_pool{stage}", top, 2 if stage == 4 else 8)
    scores = cut("score", top, "data", 31)
    data = _readers('name: "data" top: "data"', "images", _transform(side))
    data += _readers('name: "label" top: "label"', "labels")
    inputs = _input("data", data=(2, 3, side, side))
    return Published("FCN-8s", data, inputs, net.text, scores)


def lrcn(steps: int = 20, words: int = 8801, width: int = 1000, features: int = 1000) -> Published:
    """LRCN's caption model, two layers, factored: Donahue et al. 2014, arXiv:1411.4389, on features of images."""
    net = _Body()
    wide = f"recurrent_param {{ num_output: {width} }}"
    embed = f"embed_param {{ input_dim: {words} num_output: {width} bias_term: false }}"
    top = net.add("embedding", "Embed", "input_sentence", options=embed)
    top = net.add("lstm1", "LSTM", top, "cont_sentence", options=wide)
    top = net.add("lstm2", "LSTM", top, "cont_sentence", "image_features", options=wide)
    product = f"inner_product_param {{ num_output: {words} axis: 2 }}"
    scores = net.add("predict", "InnerProduct", top, options=product)
    data = (
        'layer { name: "sentences" type: "HDF5Data" top: "cont_sentence" top: "input_sentence" top: "target_sentence" '
        f'hdf5_data_param {{ source: "sentences" batch_size: {steps} }} }}\n'
        'layer { name: "features" type: "HDF5Data" top: "image_features" '
        'hdf5_data_param { source: "features" batch_size: 2 } }\n'
    )
    sizes = (steps, 2)
    inputs = _input("sentences", cont_sentence=sizes, input_sentence=sizes)
    inputs += _input("features", image_features=(2, features))
    return Published("LRCN", data, inputs, net.text, scores, "target_sentence", 2)


def save_weights(net: Any, path: Path, seed: int = 1) -> None:
    """Write a `.caffemodel` for a deploy net; its file is beside it. pycaffe computes the statistics."""
    caffe = load_caffe()
    caffe.set_mode_cpu()
    caffe.set_random_seed(seed)
    text = path.with_suffix(".prototxt")
    text.write_text(text_format.MessageToString(net))
    made = caffe.Net(str(text), caffe.TRAIN)
    layers = {layer.name: layer for layer in net.layer}
    rng = np.random.default_rng(seed)
    for name, blobs in made.params.items():
        layer = layers[name]
        for blob in blobs:
            if layer.type == "Scale":
                # Around 0 a ReLU would cut half: such a net, untrained, makes much of rounding, also pycaffe's own.
                blob.data[...] = rng.uniform(0.5, 1.5, blob.data.shape)
            elif layer.type != "BatchNorm":
                scale = np.sqrt(2 / blob.data[0].size) if blob.data.ndim > 1 else 0.1
                if layer.type == "Deconvolution":
                    scale *= max(layer.convolution_param.stride)  # so many places meet in one
                values = rng.standard_normal(blob.data.shape, np.float32)
                blob.data[...] = values * np.float32(scale)
    if any(layer.type == "BatchNorm" for layer in net.layer):
        for _ in range(2):
            for name, values in draw_inputs(net, rng).items():
                made.blobs[name].data[...] = values
            made.forward()
    made.save(str(path))
