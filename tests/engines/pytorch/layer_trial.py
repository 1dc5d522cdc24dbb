"""One layer on real pycaffe and on PyTorch: the same bottoms, blobs and top diffs must give the same results.

No tests itself. `trial(layer, bottoms)` builds with pycaffe `Input -> layer`, copies its blobs into our layer of the
same type, runs both forward and backward, and compares tops, bottom diffs, blobs and blob diffs. What pycaffe refuses
by a CHECK would abort the process: do not try it here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from numpy.typing import NDArray

from speedo.engines.caffe_import import load_caffe, prepare_environment

Array = NDArray[np.float32]
TOLERANCE = 1e-5


@dataclass
class Result:
    """What one engine computed; a diff is None where the layer gives no gradient."""

    tops: list[Array]
    bottom_diffs: list[Array | None] = field(default_factory=list)
    blobs: list[Array] = field(default_factory=list)  # after the forward passes
    blob_diffs: list[Array | None] = field(default_factory=list)


def trial(
    layer: str,
    bottoms: Sequence[Any],
    *,
    phase: str = "TRAIN",
    seed: int = 1,
    top_diffs: Sequence[Any] | None = None,
    blobs: Sequence[Any] | None = None,
    constant: Collection[int] = (),
    backward: bool = True,
    passes: int = 1,
    tolerance: float = TOLERANCE,
) -> tuple[Result, Result]:
    """Compare both engines on `layer`, the inside of a prototxt's `layer { }` without name, bottoms and tops.

    Tops are counted from a line `tops: N` at the start of the text; without it there is one. `top_diffs` has an array
    or None (no diff) for each top; the default is random numbers from `seed`, and for losses 1 and then None. `blobs`
    are the parameters' values; the default is random numbers. `constant` are the indices of bottoms without a gradient,
    such as labels; `backward=False` makes all so, and is needed where Caffe has no backward pass. `passes` are forward
    passes. Bottoms with 4 axes are tried in PyTorch's two memory formats. Returns ours and pycaffe's results.
    """
    text, tops = _split(layer)
    arrays = [np.asarray(bottom, dtype=np.float32) for bottom in bottoms]
    constant = set(range(len(arrays))) if not backward else set(constant)
    rng = np.random.default_rng(seed)
    theirs, layer_param, values, diffs = _run_pycaffe(
        text, tops, arrays, phase, rng, top_diffs, blobs, constant, backward, passes
    )
    for channels_last in (True, False) if any(array.ndim == 4 for array in arrays) else (False,):
        ours = _run_ours(
            layer_param,
            arrays,
            phase,
            seed,
            diffs,
            values,
            constant,
            backward,
            passes,
            channels_last,
        )
        compare(ours, theirs, tolerance)
    return ours, theirs


def set_up(layer: str, shapes: Sequence[tuple[int, ...]], phase: str = "TRAIN") -> Any:
    """Our layer alone, after its `setup`; `layer` as in `trial`."""
    from caffenets.layer import LayerContext
    from caffenets.layers import LAYERS

    text, tops = _split(layer)
    named = " ".join(f'top: "top{index}"' for index in range(tops))
    pb2 = load_caffe().proto.caffe_pb2
    parsed = text_format.Parse(f'layer {{ name: "tried" {named} {text} }}', pb2.NetParameter())
    made = LAYERS[parsed.layer[0].type](parsed.layer[0], LayerContext(phase))
    made.setup(shapes)
    return made


def compare(ours: Result, theirs: Result, tolerance: float = TOLERANCE) -> None:
    """AssertionError where an array differs in shape, or by more than `tolerance` of its largest magnitude."""
    for kind in ("tops", "bottom_diffs", "blobs", "blob_diffs"):
        mine, other = getattr(ours, kind), getattr(theirs, kind)
        assert len(mine) == len(other), f"{kind}: {len(mine)} and {len(other)}"
        for index, (left, right) in enumerate(zip(mine, other, strict=True)):
            _compare(f"{kind}[{index}]", left, right, tolerance)


def _compare(what: str, ours: Array | None, theirs: Array | None, tolerance: float) -> None:
    if theirs is None:
        return  # not asked for
    if ours is None:
        ours = np.zeros_like(theirs)
    assert ours.shape == theirs.shape, f"{what}: shape {ours.shape}, pycaffe's {theirs.shape}"
    if not theirs.size:
        return
    assert np.array_equal(np.isfinite(ours), np.isfinite(theirs)), f"{what}: {ours} {theirs}"
    finite = np.isfinite(theirs)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(ours[~finite], theirs[~finite], equal_nan=True), what
    if not finite.any():
        return
    largest = max(float(np.abs(ours[finite]).max()), float(np.abs(theirs[finite]).max()))
    error = float(np.abs(ours[finite].astype(np.float64) - theirs[finite]).max())
    assert error <= tolerance * largest, (
        f"{what}: differs by {error / largest:.2g} of {largest:.3g}\n{ours}\n{theirs}"
    )


def _split(layer: str) -> tuple[str, int]:
    first, _, rest = layer.strip().partition("\n")
    if first.startswith("tops:"):
        return rest, int(first.removeprefix("tops:"))
    return layer, 1


def _net_text(
    text: str,
    tops: int,
    arrays: Sequence[Array],
    weighted: Sequence[bool],
    constant: Collection[int],
) -> str:
    """Inputs, a Bias of one zero behind each that needs a gradient (so that Caffe wants one), and the layer."""
    lines = ["force_backward: false"]
    for index, array in enumerate(arrays):
        dims = " ".join(f"dim: {size}" for size in array.shape)
        name = f"bottom{index}" if index in constant else f"input{index}"
        lines.append(_layer("Input", None, name, f"input_param {{ shape {{ {dims} }} }}"))
        if index in constant:
            continue
        if array.ndim:
            lines.append(
                _layer("Bias", name, f"bottom{index}", "bias_param { axis: 0 num_axes: 0 }")
            )
        else:  # Bias has no axis 0 there
            lines += [
                _layer("Reshape", name, f"one{index}", "reshape_param { shape { dim: 1 } }"),
                _layer("Bias", f"one{index}", f"biased{index}", "bias_param { axis: 0 }"),
                _layer(
                    "Reshape", f"biased{index}", f"bottom{index}", "reshape_param { shape { } }"
                ),
            ]
    ends = [f'bottom: "bottom{index}"' for index in range(len(arrays))]
    ends += [f'top: "top{index}"' for index in range(tops)]
    if any(weighted):
        ends += [f"loss_weight: {int(used)}" for used in weighted]
    return "\n".join([*lines, f'layer {{ name: "tried" {" ".join(ends)}', text, "}"])


def _layer(kind: str, bottom: str | None, top: str, param: str) -> str:
    source = f'bottom: "{bottom}"' if bottom else ""
    return f'layer {{ name: "{top}" type: "{kind}" {source} top: "{top}" {param} }}'


def _run_pycaffe(
    text: str,
    tops: int,
    arrays: Sequence[Array],
    phase: str,
    rng: np.random.Generator,
    top_diffs: Sequence[Any] | None,
    blobs: Sequence[Any] | None,
    constant: Collection[int],
    backward: bool,
    passes: int,
) -> tuple[Result, Any, list[Array], list[Array | None]]:
    prepare_environment(1)
    caffe = load_caffe()
    caffe.set_mode_cpu()
    pb2 = caffe.proto.caffe_pb2
    probe = text_format.Parse(f"layer {{ {text} }}", pb2.NetParameter()).layer[0]
    is_loss = probe.type.endswith("Loss")
    weighted = [
        backward and (top_diffs[i] is not None if top_diffs is not None else i == 0 or not is_loss)
        for i in range(tops)
    ]
    written = _net_text(text, tops, arrays, weighted, constant)
    layer_param = text_format.Parse(written, pb2.NetParameter()).layer[-1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.prototxt"
        path.write_text(written)
        net = caffe.Net(str(path), getattr(caffe, phase))
    for index, array in enumerate(arrays):
        name = f"bottom{index}" if index in constant else f"input{index}"
        net.blobs[name].data[...] = array
    parameters = list(net.params["tried"]) if "tried" in net.params else []
    values: list[Array] = []
    for index, blob in enumerate(parameters):
        given = (
            blobs[index]
            if blobs is not None
            else rng.normal(0.0, 0.5, blob.data.shape).astype(np.float32)
        )
        blob.data[...] = given
        values.append(blob.data.copy())
    for _ in range(passes):
        net.forward()
    result = Result(
        tops=[net.blobs[f"top{index}"].data.copy() for index in range(tops)],
        blobs=[blob.data.copy() for blob in parameters],
    )
    diffs: list[Array | None] = []
    for index, used in enumerate(weighted):
        shape = result.tops[index].shape
        if not used:
            diffs.append(None)
        elif top_diffs is not None:
            diffs.append(np.broadcast_to(np.asarray(top_diffs[index], np.float32), shape).copy())
        elif is_loss:
            diffs.append(np.ones(shape, np.float32))
        else:
            diffs.append(rng.normal(0.0, 1.0, shape).astype(np.float32))
    if backward:
        for index, diff in enumerate(diffs):
            net.blobs[f"top{index}"].diff[...] = 0.0 if diff is None else diff
        net.clear_param_diffs()
        net.backward()
        result.bottom_diffs = [
            None if index in constant else net.blobs[f"bottom{index}"].diff.copy()
            for index in range(len(arrays))
        ]
        result.blob_diffs = [blob.diff.copy() for blob in parameters]
    return result, layer_param, values, diffs


def _run_ours(
    layer_param: Any,
    arrays: Sequence[Array],
    phase: str,
    seed: int,
    diffs: Sequence[Array | None],
    values: Sequence[Array],
    constant: Collection[int],
    backward: bool,
    passes: int,
    channels_last: bool,
) -> Result:
    import torch

    from caffenets.layer import LayerContext
    from caffenets.layers import LAYERS

    torch.manual_seed(seed)
    layer = LAYERS[layer_param.type](layer_param, LayerContext(phase, seed=seed))
    shapes = layer.setup([array.shape for array in arrays])
    assert [spec.shape for spec in layer.blobs] == [value.shape for value in values], "blobs"
    parameters = [
        torch.from_numpy(value.copy()).requires_grad_(backward and not spec.statistic)
        for value, spec in zip(values, layer.blobs, strict=True)
    ]
    bottoms = []
    for index, array in enumerate(arrays):
        bottom = torch.from_numpy(array.copy())
        if channels_last and bottom.ndim == 4:
            bottom = bottom.to(memory_format=torch.channels_last)
        bottoms.append(bottom.requires_grad_(index not in constant))
    for _ in range(passes):
        tops = layer.forward(bottoms, parameters)
    if layer_param.type != "Filter":  # whose tops' first axis is known when it has its selector
        assert [tuple(top.shape) for top in tops] == shapes, "shapes that setup gave"
    for bottom, array in zip(bottoms, arrays, strict=True):
        assert np.array_equal(bottom.detach().numpy(), array), "a bottom was overwritten"
    result = Result(
        tops=[top.detach().numpy().copy() for top in tops],
        blobs=[blob.detach().numpy().copy() for blob in parameters],
    )
    if backward:
        used = [
            (top, torch.from_numpy(diff))
            for top, diff in zip(tops, diffs, strict=True)
            if diff is not None and top.requires_grad
        ]
        if used:
            torch.autograd.backward([top for top, _ in used], [diff for _, diff in used])
        result.bottom_diffs = [_gradient(bottom) for bottom in bottoms]
        result.blob_diffs = [_gradient(blob) for blob in parameters]
    return result


def _gradient(tensor: Any) -> Array | None:
    return None if tensor.grad is None else tensor.grad.numpy().copy()
