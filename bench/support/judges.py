"""What each judge makes of a published net: Caffe, OpenCV, caffe-nets, and the exported ONNX and PyTorch.

    python -m bench.support.judges NET

prints a line of JSON, the fields of `Verdict`. Each net has a process of its own, since Caffe may end it, and nothing
of speedo is imported before the net has been exported: messages are those of caffe-nets alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
import yaml

from caffenets.costs import costs_of
from caffenets.deploy import Deploy, batch_axes, with_batch
from caffenets.errors import NetError
from caffenets.export import exporting
from caffenets.export.differences import of_largest, paired
from caffenets.export.exporting import Wanted, exported
from caffenets.export.layered import found_in
from caffenets.export.trials import Arrays, Computed
from caffenets.graph import NetGraph
from caffenets.known_types import type_here
from caffenets.layer import LayerContext
from caffenets.nets import read_deploy
from caffenets.prototxt.text import to_text
from caffenets.pytorch.trials import TrialsHere
from caffenets.weight_files.caffemodel import read_model
from caffenets.weights import read_weights
from tests.support.published_nets.table import NETS, trained
from tests.support.published_nets.weights import save_weights, walked, with_sizes

CLOSE: Final = 1e-5
_LARGE: Final = 20e9  # multiply-adds of a record, from which on the second batch is 2
_FLIPS: Final = 0.001  # of the values of a net that unpools
_HUGE: Final = 100e9  # from which on there is one of 1 alone: it takes a minute in each form


@dataclass(slots=True)
class Verdict:
    """Of one net. `worst` has the difference of each judge from `reference`, or what it said instead.

    `caffe` is what pycaffe said instead; `changed` are weights that are not in an exported file to the bit.
    """

    parameters: int = 0
    multiply_adds: int = 0
    batches: tuple[int, ...] = ()
    reference: str = "caffenets"
    caffe: str = ""
    worst: dict[str, float | str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Try:
    """A net at one batch with its records, and what caffe-nets makes of them."""

    net: Any
    records: dict[str, Any]
    outputs: Arrays


class Kept(TrialsHere):
    """Trials of an export, which keep what was tried and what each form made; each net is computed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Computed] = {}
        self.tries: list[Try] = []
        self.made: list[Arrays] = []

    def engine(self, nets: Sequence[tuple[Any, Arrays]], weights: Path | None) -> list[Computed]:
        found = []
        for net, records in nets:
            key, made = net.SerializeToString(), with_sizes(dict(records))
            if key not in self._known:
                (self._known[key],) = super().engine([(net, made)], weights)
            found.append(self._known[key])
        pairs = zip(nets, found, strict=True)
        self.tries = [Try(net, dict(records), one.outputs) for (net, records), one in pairs]
        return found

    def onnx(self, file: Path, inputs: Sequence[Arrays]) -> list[Arrays]:
        self.made = super().onnx(file, inputs)
        return self.made

    def torch(self, file: Path, inputs: Sequence[Arrays], *more: Any) -> list[Arrays]:
        self.made = super().torch(file, inputs, *more)
        return self.made


def distance(
    ours: Arrays, theirs: Arrays, found: frozenset[str], flips: float = 0.0
) -> float | str:
    """The greatest difference of an output, of its largest value; or that one is not there.

    A share of `flips` of the values, those that are furthest apart, does not count.
    """
    worst = 0.0
    for name, one in theirs.items():
        mine = ours.get(name)
        if mine is not None and name in found and mine.shape[-1:] == one.shape[-1:]:
            mine, one = paired(mine, one)
        if mine is None or mine.size != one.size:
            return f"{name} has the shape {getattr(mine, 'shape', None)}, not {one.shape}"
        if flips and mine.size:
            away = np.abs(mine.reshape(one.shape) - one)
            kept = away <= np.quantile(away, 1 - flips)
            mine = np.where(kept, mine.reshape(one.shape), one)
        worst = max(
            worst, of_largest(mine.reshape(one.shape).astype(np.float64), one.astype(np.float64))
        )
    return worst


def by_caffe(one: Try, folder: Path, model: Path) -> Arrays | str:
    """The outputs of pycaffe, or which layers it lacks."""
    from speedo.engines.caffe_import import load_caffe, prepare_environment

    prepare_environment(1)
    caffe = load_caffe()
    caffe.set_mode_cpu()
    kinds = {str(layer.type) for layer in one.net.layer}
    if missing := sorted(kinds - {*caffe.layer_type_list()} | kinds & {"Python"}):
        return f"no {', '.join(missing)}"
    net = caffe.Net(str(folder / "net.prototxt"), str(model), caffe.TEST)
    for name, values in one.records.items():
        net.blobs[name].data[...] = values
    made = net.forward()
    return {name: made[name].copy() for name in one.outputs}


NO_OPENCV: Final = "is not installed: pip install --group judges"


def by_opencv(one: Try, folder: Path, model: Path) -> Arrays | str:
    """The outputs of OpenCV's own importer, or what it said."""
    try:
        import cv2
    except ImportError:
        return NO_OPENCV
    try:
        net = _in_opencv(one, folder, model)
        last = {str(top): str(layer.name) for layer in one.net.layer for top in layer.top}
        made = net.forward([last[name] for name in one.outputs])
    except cv2.error as error:
        return re.sub(r"^.*?error: (\([^)]*\) )?", "", str(error).strip().splitlines()[0])
    if any(type_here(layer) == "Proposal" for layer in one.net.layer):
        # Where fewer regions are found, OpenCV's Proposal fills up with empty ones.
        made = [
            mine[: len(theirs)] for mine, theirs in zip(made, one.outputs.values(), strict=True)
        ]
    return dict(zip(one.outputs, made, strict=True))


def _in_opencv(one: Try, folder: Path, model: Path) -> Any:
    import cv2

    text = folder / "opencv.prototxt"
    text.write_text(_in_opencvs_words(one.net))
    net = cv2.dnn.readNetFromCaffe(str(text), str(model))
    cv2.setNumThreads(1)
    net.setPreferableBackend(cv2.dnn.DNN_BACKEND_OPENCV)
    net.enableWinograd(False)
    for name, values in one.records.items():
        net.setInput(values, name)
    return net


def _in_opencvs_words(net: Any) -> str:
    """The net with Proposal as a type and with `ceil_mode`, as OpenCV's schema has them."""
    net = type(net).FromString(net.SerializeToString())
    for layer in net.layer:
        if layer.type == "Python" and type_here(layer) == "Proposal":
            given = yaml.safe_load(f"{{{layer.python_param.param_str.strip('{}')}}}")
            layer.type, layer.proposal_param.feat_stride = "Proposal", given["feat_stride"]
            layer.proposal_param.ratio.extend(given.get("ratios", (0.5, 1, 2)))
            layer.proposal_param.scale.extend(given.get("scales", (8, 16, 32)))
            layer.ClearField("python_param")
    return to_text(net).replace("round_mode: FLOOR", "ceil_mode: false")


def first_apart(one: Try, folder: Path, model: Path) -> str:
    """The first layer of which OpenCV makes something else than caffe-nets."""
    import cv2

    stored = {layer.name: layer.blobs for layer in read_model(model).layers}

    def blobs_of(layer: Any, _: Any) -> list[Any]:
        own = zip(layer.blobs, stored[layer.name], strict=True)
        return [torch.tensor(blob.read()).view(tuple(spec.shape)) for spec, blob in own]

    names = [str(layer.name) for layer in one.net.layer if layer.type != "Input"]
    with suppress(cv2.error):
        ran = _in_opencv(one, folder, model).forwardAndRetrieve(names)
        theirs = dict(zip(names, ran, strict=True))
        for layer, _, tops in walked(one.net, one.records, blobs_of):
            for mine, other in zip(tops, theirs.get(layer.name, ()), strict=False):
                away = distance({"": other}, {"": mine.numpy()}, frozenset())
                if isinstance(away, str) or away > CLOSE:
                    said = away if isinstance(away, str) else f"by {away:.0e}"
                    return f"from {layer.name} ({layer.param.type}) on, {said.strip()}"
    return "at no layer alone"


def changed(net: Any, model: Path, file: Path) -> list[str]:
    """The blobs of which this file has no array of the same values to the bit, in their order or in another one.

    Those of BatchNorm are divided in ONNX.
    """
    held = {_digest(array.read()): array for array in read_weights(file).values()}
    kinds = {str(layer.name): str(layer.type) for layer in net.layer}
    known = {
        name: _digest(array.read())
        for name, array in read_weights(model).items()
        if kinds[name.rpartition("/")[0]] != "BatchNorm"
    }
    left = {name: read_weights(model)[name] for name, digest in known.items() if digest not in held}
    if not left:
        return []
    others = [array for digest, array in held.items() if digest not in known.values()]
    moved = {_digest(np.sort(array.read(), axis=None)) for array in others}
    return [
        name for name, one in left.items() if _digest(np.sort(one.read(), axis=None)) not in moved
    ]


def _digest(values: Any) -> bytes:
    return hashlib.sha256(values.tobytes()).digest()


def _deploy(net: Any) -> Deploy:
    inputs = {
        str(top): tuple(shape.dim)
        for layer in net.layer
        if layer.type == "Input"
        for top, shape in zip(layer.top, layer.input_param.shape, strict=True)
    }
    return Deploy(net, inputs)


def refused(said: str) -> str:
    """What an export said of its layers, those of a kind together."""
    kinds: dict[str, list[str]] = {}
    for line in said.splitlines():
        match = re.search(r"layer '(?P<name>[^']+)' (?P<why>\(.*)", line)
        name, why = (match["name"], match["why"]) if match else ("", line.lstrip(",: "))
        kinds.setdefault(why, []).append(name)
    return "; ".join(f"{_some(names)} {why}".strip() for why, names in kinds.items())


def _some(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 2 else " and ".join(names)


def without_refused(net: Any, model: Path, form: str, wanted: Wanted, said: str) -> str:
    """A line about this form of the net without the layers that were refused, and those that are then refused.

    What these make is an input of it.
    """
    out: list[str] = []
    while names := [name for name in re.findall(r"layer '([^']+)'", said) if name not in out]:
        out += names
        trials = Kept()
        try:
            [*exported(_deploy(_without(net, out)), model, wanted, trials, "the net", model.parent)]
        except NetError as error:
            said = str(error)
            continue
        pairs = zip(trials.made, trials.tries, strict=True)
        worst = max(distance(made, one.outputs, frozenset()) for made, one in pairs)
        return f"{form} without {_some(out)} differs from caffenets by {worst:.1e}"
    return f"{form} without {_some(out)}: {refused(said)}"


def _without(net: Any, names: Sequence[str]) -> Any:
    shapes = NetGraph(net, "TEST", LayerContext("TEST")).shapes
    cut, made = type(net)(name=net.name), set[str]()
    for layer in net.layer:
        if layer.name not in names:
            for top in {str(one) for one in layer.bottom} - made:
                own = cut.layer.add(name=f"{top} given", type="Input", top=[top])
                own.input_param.shape.add().dim.extend(shapes[top])
                made.add(top)
            cut.layer.add().CopyFrom(layer)
            made.update(layer.top)
    return cut


def judged(name: str, folder: Path) -> Verdict:
    """Raises `NetError` for a net that cannot be shown at all."""
    entry, verdict = NETS[name], Verdict()
    text = folder / f"{name}.prototxt"
    text.write_text(entry.deploy())
    read = read_deploy(text, entry.shapes)
    net = with_batch(read.net, 1)
    deploy = _deploy(net)
    costs = costs_of(net)
    verdict.parameters = trained(costs)
    verdict.multiply_adds = work = sum(one.multiply_adds for one in costs)
    model = folder / "net.caffemodel"
    save_weights(net, model)
    batches, why = _batches(net, work)
    verdict.remarks += [why] if why else []
    with mock.patch.object(exporting, "BATCHES", batches):
        trials, made = _exported(verdict, deploy, model, text)
    (name, axis), *_ = batch_axes(net).items()
    verdict.batches = tuple(one.records[name].shape[axis] for one in trials.tries)
    _compare(verdict, trials.tries, made, folder, model)
    return verdict


def _batches(net: Any, work: int) -> tuple[tuple[int, ...], str]:
    """What is tried, and why it is not what an export tries."""
    if any(type_here(layer) == "Proposal" for layer in net.layer):
        return (1,), "batch 1: Proposal is of one image in its Caffe"
    if work > _HUGE:
        return (1,), f"batch 1: {work / 1e9:.0f} G multiply-adds an image"
    if work > _LARGE:
        return (1, 2), f"batches 1 and 2: {work / 1e9:.0f} G multiply-adds an image"
    return exporting.BATCHES, ""


def _exported(
    verdict: Verdict, deploy: Deploy, model: Path, text: Path
) -> tuple[Kept, dict[str, list[Arrays]]]:
    """What both forms make of the records, and what was refused."""
    folder, net, trials = text.parent, deploy.net, Kept()
    made: dict[str, list[Arrays]] = {}
    for form, wanted in (
        ("ONNX", Wanted(onnx=folder / "net.onnx")),
        ("PyTorch", Wanted(torch=folder / "net.py")),
    ):
        trials.made = []
        try:
            lines = [*exported(deploy, model, wanted, trials, str(text), folder)]
            if len(exporting.BATCHES) > 1:  # else the batch is not free, for that alone
                verdict.remarks += [line for line in lines[:-1] if line not in verdict.remarks]
            file = next(iter(wanted))[1].with_suffix(".onnx" if form == "ONNX" else ".pt")
            verdict.changed += [f"{form}: {one}" for one in changed(net, model, file)]
        except NetError as error:
            verdict.worst[form] = refused(
                str(error).replace(str(text), "").replace(f"{folder}/", "")
            )
            if trials.made:
                verdict.remarks.append(f"{form} is not written: {verdict.worst[form]}")
            else:
                verdict.remarks.append(without_refused(net, model, form, wanted, str(error)))
        made[form] = trials.made
    return trials, made


def _compare(
    verdict: Verdict,
    tries: Sequence[Try],
    made: Mapping[str, list[Arrays]],
    folder: Path,
    model: Path,
) -> None:
    judges: dict[str, Callable[[Try, Path, Path], Arrays | str]] = {
        "Caffe": by_caffe, "OpenCV": by_opencv,
    }  # fmt: skip
    for at, one in enumerate(tries):
        (folder / "net.prototxt").write_text(to_text(one.net))
        found = found_in(one.net.layer, one.outputs)
        if any(type_here(layer) == "Proposal" for layer in one.net.layer):
            found = frozenset(one.outputs)  # a row for each region, in the order of scores
        unpools = any(layer.type == "Upsample" and len(layer.bottom) > 1 for layer in one.net.layer)
        flips = _FLIPS if unpools else 0.0
        if unpools and not at:
            verdict.remarks.append(
                f"{_FLIPS:.1%} of the values do not count: rounding decides between equal maxima, "
                "and unpooling puts them elsewhere"
            )
        theirs = {judge: ask(one, folder, model) for judge, ask in judges.items()}
        truth = theirs.pop("Caffe")
        if isinstance(truth, str):
            verdict.caffe, truth = truth, one.outputs
        else:
            verdict.reference = "Caffe"
            theirs["caffenets"] = one.outputs
        for form, outputs in made.items():
            if outputs:
                theirs[form] = outputs[at]
        for judge, outputs in theirs.items():
            away = outputs if isinstance(outputs, str) else distance(outputs, truth, found, flips)
            before = verdict.worst.get(judge, 0.0)
            # What a form was refused for stands, unless it was refused for this difference.
            if isinstance(away, str) or (isinstance(before, str) and judge == "OpenCV"):
                verdict.worst[judge] = away if isinstance(away, str) else before
            else:
                verdict.worst[judge] = away if isinstance(before, str) else max(before, away)
        if at == 0 and _is_apart(verdict.worst["OpenCV"]):
            verdict.remarks.append(f"OpenCV differs {first_apart(one, folder, model)}")


def _is_apart(away: float | str) -> bool:
    return not isinstance(away, str) and not away <= CLOSE


def main(name: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    with TemporaryDirectory() as folder:
        try:
            said: dict[str, Any] = asdict(judged(name, Path(folder)))
        except NetError as error:
            said = {"refused": str(error).replace(f"{folder}/", "")}
    print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
