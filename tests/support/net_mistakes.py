"""Mistakes in the text of a net: what Caffe refuses, ends at, or takes otherwise than it was meant."""

from __future__ import annotations

import random
import re
from typing import Final

# Of a layer's text the first place that fits, and what takes it.
MISTAKES: Final[dict[str, tuple[str, str]]] = {
    "an unknown bottom": ('bottom: "', 'bottom: "no_'),
    "no top": (' top: "[^"]*"', ""),
    "one bottom too many": ('bottom: "', 'bottom: "data" bottom: "'),
    "one top too many": (' top: "', ' top: "other" top: "'),
    "a top that there is": (' top: "[^"]*"', ' top: "data"'),
    "too many param": ("type:", "param { } " * 4 + "type:"),
    "too many loss_weight": ("type:", "loss_weight: 1 loss_weight: 1 type:"),
    "a loss_weight of any layer": ("type:", "loss_weight: 0.5 type:"),
    "another lr_mult of a shared weight": ('param { name: "', 'param { lr_mult: 3 name: "'),
    "another decay_mult of a shared weight": ('param { name: "', 'param { decay_mult: 3 name: "'),
    "too many propagate_down": ("type:", "propagate_down: true " * 4 + "type:"),
    "propagate_down to labels": ("type:", "propagate_down: true propagate_down: true type:"),
    "propagate_down to nothing": ("type:", "propagate_down: false type:"),
    "no outputs": (r"num_output: \d+", "num_output: 0"),
    "a large kernel": (r"kernel_size: \d+", "kernel_size: 19"),
    "another axis": (r"axis: \d+", "axis: 3"),
    "another shape": ("dim: -1", "dim: 7"),
    "another group": (r"group: \d+", "group: 5"),
    "a far slice_point": (r"slice_point: \d+", "slice_point: 99"),
    "an even local_size": ("local_size: 3", "local_size: 4"),
    "in place": (
        '((?:ReLU|ELU|Exp|TanH|Softmax|Scale|Bias|Flatten|Reshape|Split)" bottom: "([^"]*)".*?) top: "[^"]*"',
        r'\1 top: "\2"',
    ),
}


def spoilt(rng: random.Random, layers: list[str]) -> tuple[str, list[str]]:
    """One mistake in a layer behind the data layer; "" where none fits."""
    names = list(MISTAKES)
    rng.shuffle(names)
    for name in names:
        part, other = MISTAKES[name]
        found = [at for at in range(1, len(layers)) if re.search(part, layers[at])]
        if found:
            at = rng.choice(found)
            other_layer = re.sub(part, other, layers[at], count=1)
            return name, [*layers[:at], other_layer, *layers[at + 1 :]]
    return "", layers
