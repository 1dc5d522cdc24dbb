"""Random train nets over the records of `test_batch_division.py`, with layers that mix records and others.

Nothing makes sure that a net can be built: pycaffe decides that.
"""

from __future__ import annotations

import random
from collections.abc import Callable

FILLER = 'weight_filler { type: "gaussian" std: 0.3 }'
OPERATIONS = ("SUM", "ASUM", "SUMSQ", "MEAN")
Layer = Callable[[str, str, str, str], str]


def random_net(seed: int, batch: int, data: Callable[..., str], layer: Callable[..., str]) -> str:
    """The text of a net of up to 6 layers and up to 2 losses; `data` and `layer` write layers."""
    chance = random.Random(seed)
    text = data("data", "label", "target", "seg")
    last = "data"
    for number in range(chance.randint(0, 4)):
        name = f"l{number}"
        text += _between(chance, batch, layer, name, last)
        last = name
    text += layer(
        "ip", "InnerProduct", last, "ip", f"inner_product_param {{ num_output: 4 {FILLER} }}"
    )
    text += layer(
        "ip3", "InnerProduct", last, "ip3", f"inner_product_param {{ num_output: 3 {FILLER} }}"
    )
    for number in range(chance.choice((1, 1, 1, 2))):
        text += _loss(chance, layer, f"loss{number}")
    return text


def _between(
    chance: random.Random, batch: int, layer: Callable[..., str], name: str, last: str
) -> str:
    half = batch // 2
    first, second = chance.choice((0, -1, batch)), chance.choice((36, 18, 12, -1))
    plain = chance.choice(
        (
            "Sigmoid",
            "TanH",
            "AbsVal",
            "BNLL",
            "ELU",
            "PReLU",
            "ReLU",
            "Scale",
            "Bias",
            "Flatten",
            "Softmax",
            "Swish",
        )
    )
    axis = chance.choice((0, 1, 1))
    special = chance.choice(
        (
            ("Convolution", f"convolution_param {{ num_output: 2 kernel_size: 3 pad: 1 {FILLER} }}"),
            ("Pooling", f"pooling_param {{ pool: {chance.choice(('MAX', 'AVE'))} kernel_size: 2 stride: 2 }}"),
            ("InnerProduct", f"inner_product_param {{ num_output: 6 {FILLER} axis: {chance.choice((1, 1, 1, 2))} }}"),
            ("Power", "power_param { scale: 0.7 shift: 0.2 power: 2 }"),
            ("MVN", f"mvn_param {{ across_channels: {chance.choice(('true', 'false'))} }}"),
            ("LRN", "lrn_param { local_size: 3 alpha: 0.5 }"),
            ("BatchNorm", f"batch_norm_param {{ use_global_stats: {chance.choice(('true', 'false'))} }}"),
            ("Reshape", f"reshape_param {{ shape {{ dim: {first} dim: {second} }} }}"),
            ("Reshape", f"reshape_param {{ shape {{ dim: {half} dim: -1 }} }}"),
            ("Tile", f"tile_param {{ axis: {axis} tiles: 2 }}"),
            ("Reduction", f"reduction_param {{ axis: {axis} operation: {chance.choice(OPERATIONS)} }}"),
            ("Softmax", f"softmax_param {{ axis: {axis} }}"),
            ("Flatten", f"flatten_param {{ axis: {axis} }}"),
        )
    )  # fmt: skip
    form = chance.randrange(10)
    if form < 4:
        return layer(name, plain, last, name)
    if form < 8:
        return layer(name, special[0], last, name, special[1])
    if form == 8:  # cut, and put together elsewhere
        other = chance.choice((0, 1))
        cut = layer(
            f"{name}cut",
            "Slice",
            last,
            f'{name}a" top: "{name}b',
            f"slice_param {{ axis: {axis} }}",
        )
        return cut + layer(
            name, "Concat", f"{name}b {name}a", name, f"concat_param {{ axis: {other} }}"
        )
    side = layer(f"{name}side", "TanH", last, f"{name}side")
    how = chance.choice(("SUM", "PROD", "MAX"))
    return side + layer(
        name, "Eltwise", f"{last} {name}side", name, f"eltwise_param {{ operation: {how} }}"
    )


def _loss(chance: random.Random, layer: Callable[..., str], name: str) -> str:
    weight = chance.choice(("", "", "loss_weight: 0.25"))
    how = chance.choice(
        ("", "", "normalization: NONE", "normalization: FULL", "normalization: BATCH_SIZE", "normalize: false",
         "ignore_label: 2", "ignore_label: 2 normalization: FULL", "ignore_label: 1 normalize: false")
    )  # fmt: skip
    kind = chance.choice(
        ("softmax", "softmax", "softmax", "euclid", "hinge", "sigmoid", "reduction")
    )
    if kind == "softmax":
        return layer(name, "SoftmaxWithLoss", "ip label", name, f"{weight} loss_param {{ {how} }}")
    if kind == "euclid":
        return layer(name, "EuclideanLoss", "ip3 target", name, weight)
    if kind == "hinge":
        return layer(name, "HingeLoss", "ip label", name, weight)
    if kind == "sigmoid":
        return layer(
            name, "SigmoidCrossEntropyLoss", "ip3 target", name, f"{weight} loss_param {{ {how} }}"
        )
    operation = f"reduction_param {{ operation: {chance.choice(OPERATIONS)} }}"
    return layer(name, "Reduction", "ip", name, f"loss_weight: 0.1 {operation}")
