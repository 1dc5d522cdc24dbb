"""Computes a net in a process of its own: by an engine, by ONNX Runtime, or by a file with a PyTorch module.

`python -m speedo.engines.export.trial` reads one line of JSON; arrays are in files. A crash or an abort ends only it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf import text_format

from caffenets.export.trials import Arrays, Computed
from caffenets.int8.model import quantising
from caffenets.onnx_session import opened
from speedo.engines.caffe_import import is_cpu_only, load_caffe
from speedo.engines.child import problems_told, started, tell
from speedo.engines.forward_pass import ForwardPass
from speedo.engines.make import EngineChoice, prepare_process
from speedo.engines.weights_check import caffe_blobs, load_to_score
from speedo.errors import EngineError

DONE: Final = "speedo-done: "
_MODULE: Final = "speedo.engines.export.trial"
Run = Mapping[str, Any]  # `file` has its inputs, and then its outputs
Compute = Callable[[Run, Arrays], tuple[Any, Any]]


class Trials:
    """Implements `caffenets.export.trials.Trials`, one after another.

    `folder` is for their files, `origin` begins every sentence about the net.
    """

    def __init__(self, choice: EngineChoice, folder: Path, origin: str) -> None:
        self.choice, self._folder, self._origin = choice, folder, origin
        self._count = 0

    @property
    def judge(self) -> str:
        return self.choice.name

    def engine(self, nets: Sequence[tuple[Any, Arrays]], weights: Path | None) -> list[Computed]:
        """Nets with inputs, in Caffe's TEST phase. Raises `SolverError`, `EngineError`."""
        runs = [({"net": text_format.MessageToString(net)}, inputs) for net, inputs in nets]
        found = self._run("engine", runs, {"weights": weights and str(weights)})
        return [
            Computed(
                {name: tuple(shape) for name, shape in answer["shapes"].items()},
                {name: tuple(map(tuple, blobs)) for name, blobs in answer["blobs"].items()},
                outputs,
                answer.get("constants", {}),
            )
            for answer, outputs in found
        ]

    def records(
        self, solver_text: str, folder: Path, batches: int = 1, names: Sequence[str] = ()
    ) -> Arrays:
        """Batches of the first test net's data layers along a new first axis, by the names of their tops.

        With `names` only these, of which there may be fewer. Raises `SolverError`, `EngineError`.
        """
        given = {"batches": batches, "names": list(names)}
        request = {"solver": solver_text, "folder": str(folder), **given}
        ((_, found),) = self._run("records", [({}, {})], request)
        return found

    def int8(self, file: Path, batches: Arrays, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Quantise an ONNX file; see `caffenets.int8.model`."""
        ((answer, _),) = self._run("int8", [({}, batches)], {"file": str(file), **request})
        return dict(answer)

    def onnx(self, file: Path, inputs: Sequence[Arrays]) -> list[Arrays]:
        """The outputs of an ONNX file."""
        found = self._run("onnx", [({}, one) for one in inputs], {"file": str(file)})
        return [outputs for _, outputs in found]

    def torch(
        self,
        file: Path,
        inputs: Sequence[Arrays],
        names: Sequence[str],
        values: Arrays,
        owners: Mapping[str, str],
    ) -> list[Arrays]:
        """The outputs of the module in this file, which have these names in the net.

        Before, its state dict is written beside it, with a tensor for each key of `owners`.
        """
        stored = self._folder / "values.npz"
        write_arrays(stored, values)
        request = {"file": str(file), "names": list(names), "owners": dict(owners)}
        runs: list[tuple[dict[str, Any], Arrays]] = [({}, one) for one in inputs]
        found = self._run("torch", runs, {**request, "values": str(stored)})
        return [outputs for _, outputs in found]

    def _run(
        self, kind: str, runs: Sequence[tuple[dict[str, Any], Arrays]], request: dict[str, Any]
    ) -> list[tuple[Any, Arrays]]:
        """The answer and the arrays of each run, all in one process."""
        self._count += 1
        place = self._folder / f"trial{self._count}"
        files = [self._folder / f"arrays{self._count}-{at}" for at in range(len(runs))]
        for file, (_, inputs) in zip(files, runs, strict=True):
            write_arrays(file, inputs)
        given = [{**own, "file": str(file)} for file, (own, _) in zip(files, runs, strict=True)]
        whole = {"kind": kind, "engine": asdict(self.choice), **request, "runs": given}
        with started(_MODULE, whole, place, self._origin) as child:
            answers = child.answer(DONE)
        return list(zip(answers, map(read_arrays, files), strict=True))


def write_arrays(file: Path, arrays: Arrays) -> None:
    """Write them with their names, which may be any text."""
    plain: dict[str, Any] = {f"a{index}": array for index, array in enumerate(arrays.values())}
    with file.open("wb") as out:
        np.savez(out, names=np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8), **plain)


def read_arrays(file: Path) -> dict[str, npt.NDArray[Any]]:
    """What `write_arrays` wrote."""
    with np.load(file, allow_pickle=False) as stored:
        names = json.loads(stored["names"].tobytes())
        return {name: stored[f"a{index}"] for index, name in enumerate(names)}


def _on_caffe(run: Run, inputs: Arrays, weights: str | None) -> tuple[Any, Arrays]:
    caffe = load_caffe()
    caffe.set_mode_cpu()
    file = Path(run["file"]).with_suffix(".prototxt")
    file.write_text(run["net"], encoding="utf-8")
    net = caffe.Net(str(file), caffe.TEST)
    if weights is not None:
        load_to_score(Path(weights), *caffe_blobs(net))
    for name, values in inputs.items():
        net.blobs[name].data[...] = values
    net.forward()
    outputs = {net._blob_names[at]: net._blobs[at].data.copy() for at in net._outputs}
    shapes = {name: list(blob.data.shape) for name, blob in net.blobs.items()}
    blobs = {str(n): [list(blob.data.shape) for blob in own] for n, own in net.params.items()}
    return {"shapes": shapes, "blobs": blobs}, outputs


def _records_of_caffe(request: dict[str, Any]) -> list[Arrays]:
    caffe = load_caffe()
    parameter = text_format.Parse(
        request["solver"], caffe.proto.caffe_pb2.SolverParameter()
    ).test_net_param[0]
    gpu = not is_cpu_only()
    caffe.set_mode_gpu() if gpu else caffe.set_mode_cpu()
    file = Path(request["runs"][0]["file"]).with_suffix(".prototxt")
    file.write_text(text_format.MessageToString(parameter), encoding="utf-8")
    net = caffe.Net(str(file), caffe.TEST, level=parameter.state.level)
    tops = [net._top_ids(at) for at in range(len(net._layer_names)) if not len(net._bottom_ids(at))]
    read = ForwardPass(net, parameter)
    found: list[Arrays] = []
    for _ in range(request["batches"]):
        read.read()
        found.append(
            {net._blob_names[at]: net._blobs[at].data.copy() for ids in tops for at in ids}
        )
    return found


def _stacked(batches: Sequence[Arrays], names: Sequence[str]) -> Arrays:
    """Batches along a new first axis; of them these names, if any. Raises `EngineError` for one with several shapes."""
    found = {}
    for name in [name for name in batches[0] if name in names or not names]:
        shapes = {batch[name].shape for batch in batches}
        if len(shapes) > 1:
            raise EngineError(
                f"{name!r} has batches of several shapes, such as {' and '.join(map(str, sorted(shapes)[:2]))}"
            )
        found[name] = np.stack([batch[name] for batch in batches])
    return found


def _onnx_runtime(file: str) -> Compute:
    session = opened(Path(file))
    names = [output.name for output in session.get_outputs()]

    def compute(run: Run, inputs: Arrays) -> tuple[Any, Arrays]:
        return None, dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return compute


def _computing(request: dict[str, Any]) -> Compute:
    """What computes each run."""
    kind, choice = request["kind"], EngineChoice(**request["engine"])
    if kind == "onnx":
        return _onnx_runtime(request["file"])
    if kind == "int8":
        return lambda run, batches: (quantising(request, batches), {})
    if kind in ("engine", "records"):
        prepare_process(choice)
        if choice.engine == "caffe" and kind == "engine":
            return lambda run, inputs: _on_caffe(run, inputs, request["weights"])
        if choice.engine == "caffe":
            return lambda run, inputs: (None, _records_of_caffe(request))
    from speedo.engines.pytorch.devices import load_torch

    load_torch()
    from speedo.engines.pytorch import export_trials

    values = read_arrays(Path(request["values"])) if kind == "torch" else {}
    return export_trials.computing(request, values)


def main() -> None:
    """The child's part."""
    with problems_told():
        request = json.loads(sys.stdin.readline())
        compute = _computing(request)
        answers = []
        for run in request["runs"]:
            file = Path(run["file"])
            answer, outputs = compute(run, read_arrays(file))
            if request["kind"] == "records":
                outputs = _stacked(outputs, request["names"])
            write_arrays(file, outputs)
            answers.append(answer)
        tell(DONE, answers)


if __name__ == "__main__":
    main()
