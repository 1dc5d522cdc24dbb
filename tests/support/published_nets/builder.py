"""Writes a net as prototxt, layer by layer: as train and test net, and as deploy net."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

Pair = int | tuple[int, int]
MAX_2: Final = "pool: MAX kernel_size: 2 stride: 2"
MAX_3: Final = "pool: MAX kernel_size: 3 stride: 2"
WHOLE: Final = "pool: AVE global_pooling: true"
LABELLED: Final = 'name: "data" top: "data" top: "label"'
_FIXED: Final = " ".join(["param { lr_mult: 0 }"] * 3)


class Net:
    """A deploy net with these inputs. Each method that adds a layer returns the name of its top.

    `scores`, once set, is what a Softmax reads, and in the train net a loss, along `axis`; `data` are the data layers
    of the train net, with the labels in `label`.
    """

    def __init__(self, name: str, **inputs: Sequence[int]) -> None:
        self.name, self.text, self.data = name, "", ""
        self.scores, self.label, self.axis = "", "label", 1
        self.inputs = "".join(inputs_of(top, **{top: shape}) for top, shape in inputs.items())

    def train(self) -> str:
        """The train and test net."""
        options = f"softmax_param {{ axis: {self.axis} }}" if self.axis != 1 else ""
        ends = f'bottom: "{self.scores}" bottom: "{self.label}"'
        accuracy = f"include {{ phase: TEST }} accuracy_param {{ axis: {self.axis} }}"
        return (
            f'name: "{self.name}"\n{self.data}{self.text}'
            f'layer {{ name: "loss" type: "SoftmaxWithLoss" {ends} top: "loss" {options} }}\n'
            f'layer {{ name: "accuracy" type: "Accuracy" {ends} top: "accuracy" {accuracy} }}\n'
        )

    def deploy(self) -> str:
        """What is used once it is trained."""
        text = f'name: "{self.name}"\n{self.inputs}{self.text}'
        if self.scores:
            options = f"softmax_param {{ axis: {self.axis} }}" if self.axis != 1 else ""
            text += f'layer {{ name: "prob" type: "Softmax" bottom: "{self.scores}" top: "prob" {options} }}\n'
        return text

    def add(
        self, name: str, kind: str, *bottoms: str, top: str | Sequence[str] = "", options: str = ""
    ) -> str:
        """Any layer; the first of its tops."""
        tops = [top] if isinstance(top, str) else top
        made = " ".join(f'top: "{one or name}"' for one in tops)
        read = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
        self.text += f'layer {{ name: "{name}" type: "{kind}" {read} {made} {options} }}\n'
        return tops[0] or name

    def conv(
        self, name: str, bottom: str, outputs: int, kernel: Pair, stride: int = 1, *,
        pad: Pair | None = None, more: str = "", kind: str = "Convolution", relu: bool = False,
    ) -> str:  # fmt: skip
        """Without `pad` it keeps the size but for the stride, unless `more` has a dilation."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        up, left = (pad, pad) if isinstance(pad, int) else pad or (high // 2, wide // 2)
        sizes = f"kernel_size: {high}" if high == wide else f"kernel_h: {high} kernel_w: {wide}"
        sizes += f" pad: {up}" if up == left else f" pad_h: {up} pad_w: {left}"
        self.add(
            name, kind, bottom,
            options=f"param {{ lr_mult: 1 decay_mult: 1 }} convolution_param {{ num_output: {outputs} {sizes} "
            f'stride: {stride} {more} weight_filler {{ type: "msra" }} }}',
        )  # fmt: skip
        return self.relu(name) if relu else name

    def conv_bn(
        self, name: str, bottom: str, outputs: int, kernel: Pair, stride: int = 1, *,
        pad: Pair | None = None, more: str = "", relu: bool = True, kind: str = "Convolution", norm: str = "",
    ) -> str:  # fmt: skip
        """A convolution without bias, BatchNorm and Scale in place, and ReLU."""
        more = f"bias_term: false {more}"
        top = self.conv(name, bottom, outputs, kernel, stride, pad=pad, more=more, kind=kind)
        return self.bn(top, relu=relu, norm=norm)

    def bn(self, blob: str, top: str = "", *, relu: bool = True, norm: str = "") -> str:
        """BatchNorm and Scale, in place or as `top`, and ReLU."""
        top, name = top or blob, top or f"{blob}/bn"
        options = f"{_FIXED} batch_norm_param {{ {norm} }}" if norm else _FIXED
        self.add(name, "BatchNorm", blob, top=top, options=options)
        self.add(f"{name}/scale", "Scale", top, top=top, options="scale_param { bias_term: true }")
        return self.relu(top) if relu else top

    def relu(self, blob: str, kind: str = "ReLU") -> str:
        return self.add(f"{blob}/relu", kind, blob, top=blob)

    def dropout(self, blob: str) -> str:
        return self.add(f"{blob}/drop", "Dropout", blob, top=blob)

    def pool(
        self, name: str, bottom: str, options: str = MAX_2, top: str | Sequence[str] = ""
    ) -> str:
        return self.add(name, "Pooling", bottom, top=top, options=f"pooling_param {{ {options} }}")

    def fc(
        self, name: str, bottom: str, outputs: int, more: str = "", *, relu: bool = False
    ) -> str:
        options = f"inner_product_param {{ num_output: {outputs} {more} }}"
        self.add(name, "InnerProduct", bottom, options=options)
        return self.relu(name) if relu else name

    def sum(self, name: str, *bottoms: str, relu: bool = True) -> str:
        self.add(name, "Eltwise", *bottoms)
        return self.relu(name) if relu else name

    def concat(self, name: str, *bottoms: str, axis: int = 1) -> str:
        options = f"concat_param {{ axis: {axis} }}" if axis != 1 else ""
        return self.add(name, "Concat", *bottoms, options=options)

    def crop(self, name: str, bottom: str, like: str, offset: int, axis: int = 2) -> str:
        options = f"crop_param {{ axis: {axis} offset: {offset} }}"
        return self.add(name, "Crop", bottom, like, options=options)

    def vgg(
        self, bottom: str, counts: Sequence[int] = (2, 2, 3, 3, 3), *, width: int = 64,
        first_pad: int = 1, pools: Sequence[str] = (), stages: int = 5, dilated: int = 1,
    ) -> list[str]:  # fmt: skip
        """VGG's stages of 3x3 convolutions: of each the last convolution, and the pool of so many `stages`.

        `pools` are other options of these; the fifth stage is `dilated`.
        """
        ends = []
        options = itertools.chain(pools, itertools.repeat(MAX_2))
        for stage, (count, pool) in enumerate(zip(counts, options, strict=False), 1):
            for number in range(1, count + 1):
                spread = dilated if stage == 5 else 1
                pad, more = (first_pad if stage == number == 1 else spread), ""
                if spread > 1:
                    more = f"dilation: {spread}"
                outputs, name = width << min(stage - 1, 3), f"conv{stage}_{number}"
                bottom = self.conv(name, bottom, outputs, 3, pad=pad, more=more, relu=True)
            ends.append(bottom)
            if stage <= stages:
                bottom = self.pool(f"pool{stage}", bottom, pool)
                ends.append(bottom)
        return ends


def images(name: str, height: int, width: int = 0, channels: int = 3) -> Net:
    """A net of labelled images."""
    net = Net(name, data=(1, channels, height, width or height))
    net.data = readers(LABELLED, "images", height)
    return net


def inputs_of(name: str, **shapes: Sequence[int]) -> str:
    """An Input layer."""
    tops = " ".join(f'top: "{top}"' for top in shapes)
    sizes = " ".join(
        f"shape {{ {' '.join(f'dim: {size}' for size in shape)} }}" for shape in shapes.values()
    )
    return f'layer {{ name: "{name}" type: "Input" {tops} input_param {{ {sizes} }} }}\n'


def readers(ends: str, source: str, crop: int = 0) -> str:
    """Data layers for both phases."""
    transform = f"crop_size: {crop} mean_value: 104 mean_value: 117 mean_value: 123" if crop else ""
    return "".join(
        f'layer {{ {ends} type: "Data" include {{ phase: {phase} }} transform_param {{ {transform} }} data_param {{ '
        f'source: "{phase.lower()}_{source}" backend: LMDB batch_size: {batch} }} }}\n'
        for phase, batch in (("TRAIN", 32), ("TEST", 10))
    )
