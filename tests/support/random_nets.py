"""Random solvers with their nets and records, each made by its seed: any layers that fit, sometimes with one mistake.

`random_net(seed)` gives texts; `write(folder)` puts them and their records there. Nothing in a net is random when it
runs: no Dropout, no random DummyData, no shuffling. So two engines, or one and several workers, can be compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final

import h5py
import numpy as np

from tests.support.net_mistakes import spoilt
from tests.support.nets import write_lmdb

Shape = tuple[int, ...]
RECORDS: Final = 24  # whole batches of every size here, for two workers, too
BATCHES: Final = (2, 4, 6)
CLASSES: Final = 4
WIDTH: Final = 5  # of the vectors in HDF5
MOST_VALUES: Final = 2000  # of a blob


@dataclass(frozen=True)
class RandomNet:
    """A solver that names `net.prototxt`, that net, and what its data layers read: "lmdb", "hdf5" or "dummy".

    `mistake` names what was spoilt, "" for nothing. `layers` are the types of the layers that compute.
    """

    seed: int
    solver: str
    net: str
    source: str
    batch: int
    layers: tuple[str, ...]
    mistake: str = ""

    def write(self, folder: Path) -> Path:
        """Net, solver and records below `folder`; the path of the solver."""
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(self.seed)
        labels = rng.integers(0, CLASSES, RECORDS)
        if self.source == "lmdb":
            images = rng.integers(0, 256, (RECORDS, 2, 6, 6)).astype(np.uint8)
            write_lmdb(folder / "records", images, labels)
        elif self.source == "hdf5":
            columns = {
                "data": rng.normal(0, 1, (RECORDS, 2, 6, 6)),
                "vector": rng.normal(0, 1, (RECORDS, WIDTH)),
                "label": labels,
                "target": rng.uniform(0.05, 0.95, (RECORDS, WIDTH)),
                # In every pair of records one is chosen: no batch is without.
                "chosen": np.tile([1, 0], RECORDS // 2),
                "alike": rng.integers(0, 2, RECORDS),
                "cont": rng.integers(0, 2, RECORDS),
            }
            with h5py.File(folder / "records.h5", "w") as file:
                for name, values in columns.items():
                    file[name] = values.astype(np.float32)
            (folder / "records.txt").write_text(f"{folder / 'records.h5'}\n")
        (folder / "net.prototxt").write_text(self.net)
        path = folder / "solver.prototxt"
        path.write_text(self.solver)
        return path


class NothingFits(Exception):
    """No blob is as a layer needs it."""


@dataclass
class _Draft:
    """A net while it is made: layers as texts, and the blobs with their shapes; `unread` have no reader."""

    rng: random.Random
    batch: int
    layers: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)  # blobs with a parameter below
    unread: list[str] = field(default_factory=list)
    count: int = 0

    def add(
        self,
        kind: str,
        bottoms: list[str],
        shapes: list[Shape],
        options: str = "",
        *,
        learned: bool = False,
        in_place: bool = False,
    ) -> list[str]:
        """A layer with a top of each shape; the names of its tops."""
        self.count += 1
        name = f"{kind.lower()}{self.count}"
        tops = bottoms[:1] if in_place else [f"{name}_{at}" for at in range(len(shapes))]
        ends = " ".join([f'bottom: "{b}"' for b in bottoms] + [f'top: "{t}"' for t in tops])
        self.layers.append(f'layer {{ name: "{name}" type: "{kind}" {ends}\n  {options} }}')
        self.types.append(kind)
        below = learned or any(bottom in self.trained for bottom in bottoms)
        self.unread = [blob for blob in self.unread if blob not in bottoms]
        for top, shape in zip(tops, shapes, strict=True):
            self.shapes[top] = shape
            self.unread.append(top)
            if below and kind not in ("ArgMax", "Threshold"):
                self.trained.add(top)
        return tops

    def blob(self, fits: Callable[[Shape], bool] = lambda shape: True) -> str:
        """A blob of the batch that fits; unread ones more often. Raises `NothingFits`."""
        found = [b for b in self.shapes if b not in COLUMNS and fits(self.shapes[b])]
        fresh = [blob for blob in found if blob in self.unread]
        if fresh and self.rng.random() < 0.75:
            return self.rng.choice(fresh)
        if not found:
            raise NothingFits
        return self.rng.choice(found)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability


COLUMNS: Final = ("label", "target", "chosen", "alike", "cont")


def random_net(seed: int, *, mistakes: bool = True) -> RandomNet:
    """The net of this seed; without `mistakes` it is one that Caffe trains."""
    rng = random.Random(seed)
    draft = _Draft(rng, rng.choice(BATCHES))
    source = rng.choice(["lmdb", "hdf5", "hdf5", "dummy"])
    data = _records(draft, source)
    for _ in range(rng.randint(1, 6)):
        with suppress(NothingFits):
            rng.choice(_MIDDLES)(draft)
    _end(draft, source)
    layers = [data, *draft.layers]
    mistake = ""
    if mistakes and rng.random() < 0.25:
        mistake, layers = spoilt(rng, layers)
    return RandomNet(
        seed, _solver(rng), "\n".join(['name: "random"', *layers, ""]), source, draft.batch,
        tuple(draft.types), mistake,
    )  # fmt: skip


def _solver(rng: random.Random) -> str:
    kind = rng.choice(["SGD", "SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])
    lines = [
        'net: "net.prototxt"', f'type: "{kind}"', "base_lr: 0.01", 'lr_policy: "fixed"',
        "max_iter: 10", "random_seed: 3", "solver_mode: CPU", "delta: 0.01",
        f"weight_decay: {rng.choice([0, 0.01])}", f"iter_size: {rng.choice([1, 1, 2])}",
    ]  # fmt: skip
    if kind in ("SGD", "Nesterov", "AdaDelta", "Adam"):
        lines.append("momentum: 0.9")
    if rng.random() < 0.2:
        lines.append("clip_gradients: 0.1")
    if rng.random() < 0.2:
        lines.append('regularization_type: "L1"')
    return "\n".join(lines) + "\n"


def _records(draft: _Draft, source: str) -> str:
    """The data layer's text; declares its tops."""
    n = draft.batch
    shapes: dict[str, Shape] = {"data": (n, 2, 6, 6), "label": (n,)}
    if source != "lmdb":
        shapes |= {"vector": (n, WIDTH), "target": (n, WIDTH)}
        shapes |= dict.fromkeys(("chosen", "alike", "cont"), (n,))
    draft.shapes.update(shapes)
    tops = " ".join(f'top: "{name}"' for name in shapes)
    if source == "lmdb":
        return (
            f'layer {{ name: "records" type: "Data" {tops} transform_param {{ scale: 0.0078125 }}\n'
            f'  data_param {{ source: "records" backend: LMDB batch_size: {n} }} }}'
        )
    if source == "hdf5":
        return (
            f'layer {{ name: "records" type: "HDF5Data" {tops}\n'
            f'  hdf5_data_param {{ source: "records.txt" batch_size: {n} }} }}'
        )
    values = {"data": 0.5, "label": 1, "vector": 0.7, "target": 0.25}
    options = " ".join(
        f"shape {{ {_dims(shape)} }} data_filler {{ value: {values.get(name, 1)} }}"
        for name, shape in shapes.items()
    )
    return (
        f'layer {{ name: "records" type: "DummyData" {tops}\n  dummy_data_param {{ {options} }} }}'
    )


def _dims(shape: Shape) -> str:
    return " ".join(f"dim: {size}" for size in shape)


def _specs(draft: _Draft, blobs: int) -> str:
    """Multipliers of none, some or all of so many blobs."""
    given = draft.rng.choice([0, 0, blobs, draft.rng.randint(0, blobs)])
    return " ".join(
        f"param {{ lr_mult: {draft.rng.choice([1, 1, 2, 0])} decay_mult: {draft.rng.choice([1, 0])} }}"
        for _ in range(given)
    )


_FILLER: Final = (
    'weight_filler { type: "xavier" } bias_filler { type: "uniform" min: -0.2 max: 0.2 }'
)
_ELEMENTWISE: Final = {
    "AbsVal": "", "BNLL": "", "ReLU": "", "Sigmoid": "", "TanH": "", "Swish": "", "ELU": "elu_param { alpha: 0.7 }",
    "Exp": "exp_param { scale: 0.2 shift: 0.1 }", "Power": "power_param { power: 2 scale: 0.3 shift: 0.4 }",
    "Clip": "clip_param { min: -0.4 max: 0.6 }", "Split": "", "Softmax": "", "MVN": "", "PReLU": "",
    "Threshold": "threshold_param { threshold: 0.3 }",
}  # fmt: skip
# Those whose gradient Caffe takes from the top, or from a copy of the bottom: they may overwrite it.
_IN_PLACE: Final = ("ReLU", "Sigmoid", "TanH", "PReLU")


def _elementwise(draft: _Draft) -> None:
    kind = draft.rng.choice(list(_ELEMENTWISE))
    bottom = draft.blob(lambda shape: kind not in ("PReLU", "MVN") or 2 <= len(shape) <= 4)
    shape = draft.shapes[bottom]
    if kind == "MVN":
        shape = (*shape, *(1,) * (4 - len(shape)))
        if prod(shape[2:]) < 2:
            return  # no deviation: its gradient is rounding
    in_place = kind in _IN_PLACE and bottom in draft.unread and draft.chance(0.4)
    draft.add(
        kind, [bottom], [shape], _ELEMENTWISE[kind], learned=kind == "PReLU", in_place=in_place
    )


def _inner_product(draft: _Draft) -> None:
    bottom = draft.blob(lambda shape: len(shape) >= 2)
    shape = draft.shapes[bottom]
    axis = draft.rng.randint(1, len(shape) - 1) if draft.chance(0.3) else 1
    outputs, bias = draft.rng.randint(2, 6), draft.chance(0.7)
    draft.add(
        "InnerProduct", [bottom], [(*shape[:axis], outputs)],
        f"{_specs(draft, 1 + bias)} inner_product_param {{ num_output: {outputs} axis: {axis} "
        f"bias_term: {str(bias).lower()} transpose: {str(draft.chance(0.3)).lower()} {_FILLER} }}",
        learned=True,
    )  # fmt: skip


def _shared(draft: _Draft) -> None:
    """Two layers with one weight."""
    bottom = draft.blob(lambda shape: len(shape) == 2)
    batch, width = draft.shapes[bottom]
    name, rng = f"w{draft.count}", draft.rng
    multiplier = rng.choice(["", f"lr_mult: {rng.choice([1, 2])}"])
    for _ in range(2):
        given = rng.choice([multiplier, multiplier, ""])
        (bottom,) = draft.add(
            "InnerProduct", [bottom], [(batch, width)],
            f'param {{ name: "{name}" {given} }} '
            f"inner_product_param {{ num_output: {width} {_FILLER} }}",
            learned=True,
        )  # fmt: skip


def _convolution(draft: _Draft) -> None:
    bottom = draft.blob(lambda shape: len(shape) == 4)
    n, channels, height, width = draft.shapes[bottom]
    rng, kind = draft.rng, draft.rng.choice(["Convolution", "Convolution", "Deconvolution"])
    kernel, pad, stride = rng.randint(1, 3), rng.randint(0, 1), rng.randint(1, 2)
    group = rng.choice([1, 1, channels]) if channels <= 6 else 1
    outputs = group * rng.randint(1, 3)
    if kind == "Convolution":
        sizes = [(size + 2 * pad - kernel) // stride + 1 for size in (height, width)]
        fits = min(height, width) + 2 * pad >= kernel
    else:
        sizes = [stride * (size - 1) + kernel - 2 * pad for size in (height, width)]
        fits = min(sizes) >= 1
    if not fits or n * outputs * prod(sizes) > MOST_VALUES:
        return
    draft.add(
        kind, [bottom], [(n, outputs, *sizes)],
        f"{_specs(draft, 2)} convolution_param {{ num_output: {outputs} kernel_size: {kernel} "
        f"pad: {pad} stride: {stride} group: {group} {_FILLER} }}",
        learned=True,
    )  # fmt: skip


def _pooling(draft: _Draft) -> None:
    bottom = draft.blob(lambda shape: len(shape) == 4 and min(shape[2:]) >= 3)
    # Equal maxima of the records have no trained layer below; later ones are equal by chance only.
    n, channels, *sizes = draft.shapes[bottom]
    method = draft.rng.choice(["MAX", "AVE"])
    kernel = draft.rng.randint(2, 3)
    tops = [-(-(size - kernel) // 2) + 1 for size in sizes]
    if any((top - 1) * 2 >= size for top, size in zip(tops, sizes, strict=True)):
        return
    draft.add(
        "Pooling", [bottom], [(n, channels, *tops)],
        f"pooling_param {{ pool: {method} kernel_size: {kernel} stride: 2 }}",
    )  # fmt: skip


def _normalized(draft: _Draft) -> None:
    bottom = draft.blob(lambda shape: len(shape) == 4)
    shape = draft.shapes[bottom]
    kind = draft.rng.choice(["BatchNorm", "LRN", "LRN"])
    region = draft.rng.choice(["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
    options = (
        f"lrn_param {{ local_size: 3 alpha: 0.5 norm_region: {region} }}" if kind == "LRN" else ""
    )
    draft.add(kind, [bottom], [shape], options)


def _scaled(draft: _Draft) -> None:
    bottom = draft.blob(lambda shape: len(shape) >= 2)
    shape = draft.shapes[bottom]
    kind, axis = draft.rng.choice(["Scale", "Bias"]), draft.rng.randint(1, len(shape) - 1)
    bias = "bias_term: true" if kind == "Scale" and draft.chance(0.5) else ""
    draft.add(
        kind, [bottom], [shape], f"{kind.lower()}_param {{ axis: {axis} {bias} }}", learned=True
    )


def _joined(draft: _Draft) -> None:
    first = draft.blob()
    shape = draft.shapes[first]
    second = draft.blob(lambda other: other == shape)
    if draft.chance(0.3) and len(shape) >= 2:
        axis = draft.rng.randint(1, len(shape) - 1)
        joined = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
        draft.add("Concat", [first, second], [joined], f"concat_param {{ axis: {axis} }}")
        return
    operation = draft.rng.choice(["SUM", "PROD", "MAX", "SUM coeff: 1 coeff: -0.5"])
    draft.add("Eltwise", [first, second], [shape], f"eltwise_param {{ operation: {operation} }}")


def _cut(draft: _Draft) -> None:
    bottom = draft.blob(lambda shape: len(shape) >= 2 and max(shape[1:]) >= 2)
    shape, rng = draft.shapes[bottom], draft.rng
    axis = rng.choice([axis for axis in range(1, len(shape)) if shape[axis] >= 2])
    point = rng.randint(1, shape[axis] - 1)
    parts = [(*shape[:axis], part, *shape[axis + 1 :]) for part in (point, shape[axis] - point)]
    draft.add("Slice", [bottom], parts, f"slice_param {{ axis: {axis} slice_point: {point} }}")


def _reshaped(draft: _Draft) -> None:
    bottom = draft.blob(lambda shape: len(shape) >= 2)
    shape = draft.shapes[bottom]
    n = shape[0]
    kind = draft.rng.choice(["Flatten", "Reshape", "ReshapeBatch", "Tile", "Reduction"])
    if kind == "Flatten":
        draft.add(kind, [bottom], [(n, prod(shape[1:]))])
    elif kind == "Tile" and 2 * prod(shape) <= MOST_VALUES:
        draft.add(
            kind, [bottom], [(n, 2 * shape[1], *shape[2:])], "tile_param { axis: 1 tiles: 2 }"
        )
    elif kind == "Reduction":
        operation = draft.rng.choice(["SUM", "ASUM", "SUMSQ", "MEAN"])
        options = f"reduction_param {{ axis: 1 operation: {operation} coeff: 0.5 }}"
        draft.add(kind, [bottom], [(n,)], options)
    elif kind.startswith("Reshape"):
        first = n if kind == "ReshapeBatch" else 0  # the batch written into the shape, or copied
        options = f"reshape_param {{ shape {{ dim: {first} dim: -1 dim: 1 }} }}"
        draft.add("Reshape", [bottom], [(n, prod(shape[1:]), 1)], options)


def _recurrent(draft: _Draft) -> None:
    """The records as time steps of two sequences."""
    bottom = draft.blob(lambda shape: len(shape) == 2)
    if "cont" not in draft.shapes or draft.chance(0.5):
        return
    steps, width = draft.batch // 2, draft.shapes[bottom][1]
    if draft.shapes[bottom][0] != draft.batch:
        return
    shape = "reshape_param {{ shape {{ dim: -1 dim: 2 {rest} }} }}"
    (x,) = draft.add("Reshape", [bottom], [(steps, 2, width)], shape.format(rest=f"dim: {width}"))
    (cont,) = draft.add("Reshape", ["cont"], [(steps, 2)], shape.format(rest=""))
    kind = draft.rng.choice(["LSTM", "RNN"])
    options = f"recurrent_param {{ num_output: 3 {_FILLER} }}"
    (top,) = draft.add(kind, [x, cont], [(steps, 2, 3)], options, learned=True)
    draft.add("Reshape", [top], [(draft.batch, 3)], "reshape_param { shape { dim: -1 dim: 3 } }")


_MIDDLES: Final[list[Callable[[_Draft], None]]] = [
    _elementwise, _elementwise, _inner_product, _inner_product, _shared, _convolution, _convolution, _pooling,
    _normalized, _scaled, _joined, _cut, _reshaped, _recurrent,
]  # fmt: skip


def _end(draft: _Draft, source: str) -> None:
    """A loss, sometimes two, and sometimes a weight of some other blob."""
    for _ in range(1 + draft.chance(0.3)):
        bottom = draft.blob(lambda shape: len(shape) >= 1 and shape[0] == draft.batch)
        kinds = ["SoftmaxWithLoss", "SoftmaxWithLoss", "HingeLoss", "MultinomialLogisticLoss"]
        kinds += ["Reduction", "InfogainLoss"]
        if source != "lmdb":
            kinds += ["EuclideanLoss", "SigmoidCrossEntropyLoss", "ContrastiveLoss", "Filtered"]
        _loss(draft, draft.rng.choice(kinds), bottom)
    unread = [blob for blob in draft.unread if draft.shapes.get(blob)]
    if unread and draft.chance(0.3):
        draft.add("Silence", [draft.rng.choice(unread)], [])


def _loss(draft: _Draft, kind: str, bottom: str) -> None:
    rng, n = draft.rng, draft.batch

    def ip(outputs: int, of: str = bottom) -> str:
        options = f"inner_product_param {{ num_output: {outputs} {_FILLER} }}"
        return draft.add("InnerProduct", [of], [(n, outputs)], options, learned=True)[0]

    if len(draft.shapes[bottom]) == 1:
        (bottom,) = draft.add(
            "Reshape", [bottom], [(n, 1)], "reshape_param { shape { dim: 0 dim: 1 } }"
        )
    weight = rng.choice(["", "", f"loss_weight: {rng.choice([0.5, 2])}"])
    ignored = rng.choice(["", "ignore_label: 1"])
    normalization = rng.choice(
        ["", *map("normalization: {}".format, ("FULL", "VALID", "NONE", "BATCH_SIZE"))]
    )
    loss_param = f"loss_param {{ {ignored} {normalization} }}"
    if kind == "Filtered":
        scores, label = draft.add(
            "Filter", [ip(CLASSES, bottom), "label", "chosen"], [(n, CLASSES), (n,)]
        )
        for blob in (scores, label):
            draft.shapes.pop(blob)
        # Caffe wants the second
        down = rng.choice(["", "propagate_down: true propagate_down: false"])
        draft.add("SoftmaxWithLoss", [scores, label], [()], f"{weight} {loss_param} {down}")
        if draft.chance(0.5):
            draft.add("Accuracy", [scores, label], [()])
    elif kind in ("SoftmaxWithLoss", "InfogainLoss", "HingeLoss", "MultinomialLogisticLoss"):
        options, scores = weight, ip(CLASSES, bottom)
        bottoms = [scores, "label"]
        if kind == "SoftmaxWithLoss":
            options += f" {loss_param}"
        elif kind == "HingeLoss":
            options += f" hinge_loss_param {{ norm: {rng.choice(['L1', 'L2'])} }}"
        elif kind == "MultinomialLogisticLoss":
            bottoms[0] = draft.add("Softmax", [scores], [(n, CLASSES)])[0]
        else:
            matrix = f"shape {{ {_dims((1, 1, CLASSES, CLASSES))} }} data_filler {{ value: 0.5 }}"
            bottoms += draft.add(
                "DummyData", [], [(1, 1, CLASSES, CLASSES)], f"dummy_data_param {{ {matrix} }}"
            )
            options += f" {loss_param}"
        draft.add(kind, bottoms, [()], options)
        if draft.chance(0.3):
            draft.add("Accuracy", [scores, "label"], [()], "accuracy_param { top_k: 2 }")
    elif kind == "Reduction":
        operation = rng.choice(["SUM", "ASUM", "SUMSQ", "MEAN"])
        options = f"reduction_param {{ operation: {operation} coeff: 0.1 }} loss_weight: 1"
        draft.add("Reduction", [ip(3, bottom)], [()], options)
    elif kind == "ContrastiveLoss":
        draft.add(kind, [ip(3), ip(3), "alike"], [()], weight)
    else:
        options = f"{weight} " + (loss_param if kind == "SigmoidCrossEntropyLoss" else "")
        draft.add(kind, [ip(WIDTH), "target"], [()], options)
