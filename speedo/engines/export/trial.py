"""Computes a net in a process of its own: by an engine, by ONNX Runtime, or by a file with a PyTorch module.

`python -m speedo.engines.export.trial` reads one line of JSON; arrays are in files. A crash or an abort ends only it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf import text_format

from speedo.engines.caffe_import import is_cpu_only, load_caffe
from speedo.engines.child import PROBLEM, started, tell
from speedo.engines.export.steps import Shape
from speedo.engines.forward_pass import ForwardPass
from speedo.engines.make import EngineChoice, prepare_process
from speedo.engines.native_failures import describe_exception
from speedo.engines.pytorch.model_files import matched, read_model
from speedo.engines.weights_check import UNTOUCHED, check_scored, load_to_score
from speedo.errors import EngineError, SolverError, SpeedoError
from speedo.system.remedies import needed

DONE: Final = "speedo-done: "
_MODULE: Final = "speedo.engines.export.trial"
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Computed:
    """What an engine made of a net: the shapes between its layers and of its blobs, and its outputs."""

    shapes: Mapping[str, Shape]
    blobs: Mapping[str, tuple[Shape, ...]]
    outputs: Arrays


class Trials:
    """Runs trials one after another; `folder` is for their files, `origin` begins every sentence about the net."""

    def __init__(self, choice: EngineChoice, folder: Path, origin: str) -> None:
        self.choice, self._folder, self._origin = choice, folder, origin
        self._count = 0

    def engine(self, net: Any, weights: Path | None, inputs: Arrays) -> Computed:
        """The net in Caffe's TEST phase. Raises `SolverError`, `EngineError`."""
        text = text_format.MessageToString(net)
        answer, outputs = self._run(
            "engine", inputs, {"net": text, "weights": weights and str(weights)}
        )
        return Computed(
            {name: tuple(shape) for name, shape in answer["shapes"].items()},
            {name: tuple(map(tuple, blobs)) for name, blobs in answer["blobs"].items()},
            outputs,
        )

    def records(self, solver_text: str, folder: Path) -> Arrays:
        """A batch of the first test net's data layers, by the names of their tops."""
        _, found = self._run("records", {}, {"solver": solver_text, "folder": str(folder)})
        return found

    def onnx(self, file: Path, inputs: Arrays) -> Arrays:
        """The outputs of an ONNX file."""
        return self._run("onnx", inputs, {"file": str(file)})[1]

    def torch(self, file: Path, inputs: Arrays, names: Sequence[str]) -> Arrays:
        """The outputs of the module in this file, which have these names in the net."""
        return self._run("torch", inputs, {"file": str(file), "names": list(names)})[1]

    def save_state_dict(self, file: Path, values: Arrays, owners: Mapping[str, str]) -> None:
        """Write a state dict with a tensor for each key of `owners`."""
        self._run("save", values, {"file": str(file), "owners": dict(owners)})

    def read_state_dict(self, file: Path) -> Arrays:
        """The tensors of a state dict."""
        return self._run("read", {}, {"file": str(file)})[1]

    def _run(self, kind: str, inputs: Arrays, request: dict[str, Any]) -> tuple[Any, Arrays]:
        self._count += 1
        given, made = (self._folder / f"{name}{self._count}.npz" for name in ("inputs", "outputs"))
        write_arrays(given, inputs)
        files = {"inputs": str(given), "outputs": str(made)}
        whole = {"kind": kind, "engine": asdict(self.choice), **files, **request}
        place = self._folder / f"trial{self._count}"
        with started(_MODULE, whole, place, self._origin) as child:
            for line in child.lines():
                if line.startswith(PROBLEM):
                    problem = json.loads(line.removeprefix(PROBLEM))
                    if problem.startswith("weights ") or kind in ("read", "save"):
                        raise SolverError(problem)
                    raise EngineError(f"{self._origin}: {problem}")
                if line.startswith(DONE):
                    return json.loads(line.removeprefix(DONE)), read_arrays(made)
            raise child.death()


def write_arrays(file: Path, arrays: Arrays) -> None:
    """Write them with their names, which may be any text."""
    plain: dict[str, Any] = {f"a{index}": array for index, array in enumerate(arrays.values())}
    np.savez(file, names=np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8), **plain)


def read_arrays(file: Path) -> dict[str, npt.NDArray[Any]]:
    """What `write_arrays` wrote."""
    with np.load(file, allow_pickle=False) as stored:
        names = json.loads(stored["names"].tobytes())
        return {name: stored[f"a{index}"] for index, name in enumerate(names)}


def _on_caffe(request: dict[str, Any], inputs: Arrays) -> tuple[Any, Arrays]:
    caffe = load_caffe()
    caffe.set_mode_cpu()
    file = Path(request["outputs"]).with_suffix(".prototxt")
    file.write_text(request["net"], encoding="utf-8")
    net = caffe.Net(str(file), caffe.TEST)
    if request["weights"] is not None:
        _load(Path(request["weights"]), net)
    for name, values in inputs.items():
        net.blobs[name].data[...] = values
    net.forward()
    outputs = {net._blob_names[at]: net._blobs[at].data.copy() for at in net._outputs}
    shapes = {name: list(blob.data.shape) for name, blob in net.blobs.items()}
    blobs = {str(n): [list(blob.data.shape) for blob in own] for n, own in net.params.items()}
    return {"shapes": shapes, "blobs": blobs}, outputs


def _load(weights: Path, net: Any) -> None:
    """Load weights that fit: of those that do not, Caffe's own words end the process."""
    shapes, shared, seen = [], set(), set()
    for name, blobs in net.params.items():
        for index, blob in enumerate(blobs):
            shapes.append((str(name), index, tuple(blob.data.shape)))
            if blob.data.ctypes.data in seen:
                shared.add((str(name), index))
            seen.add(blob.data.ctypes.data)
    try:
        matched(read_model(weights), shapes, layers=map(str, net._layer_names), shared=shared)
    except EngineError as error:
        raise SolverError(f"weights {error}") from error
    load_to_score(weights, net)


def _records_of_caffe(request: dict[str, Any]) -> Arrays:
    caffe = load_caffe()
    parameter = text_format.Parse(
        request["solver"], caffe.proto.caffe_pb2.SolverParameter()
    ).test_net_param[0]
    gpu = not is_cpu_only()
    caffe.set_mode_gpu() if gpu else caffe.set_mode_cpu()
    file = Path(request["outputs"]).with_suffix(".prototxt")
    file.write_text(text_format.MessageToString(parameter), encoding="utf-8")
    net = caffe.Net(str(file), caffe.TEST, level=parameter.state.level)
    ForwardPass(net, parameter).read()
    tops = [net._top_ids(at) for at in range(len(net._layer_names)) if not len(net._bottom_ids(at))]
    return {net._blob_names[at]: net._blobs[at].data.copy() for ids in tops for at in ids}


def _on_onnx_runtime(request: dict[str, Any], inputs: Arrays) -> Arrays:
    runtime = needed("onnxruntime", "onnx", "--onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(request["file"], options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _compute(request: dict[str, Any]) -> tuple[Any, Arrays]:
    inputs, kind = read_arrays(Path(request["inputs"])), request["kind"]
    if kind == "onnx":
        return None, _on_onnx_runtime(request, inputs)
    choice = EngineChoice(**request["engine"])
    if kind in ("engine", "records"):
        prepare_process(choice)
    if kind == "engine" and choice.engine == "caffe":
        return _on_caffe(request, inputs)
    if kind == "records" and choice.engine == "caffe":
        return None, _records_of_caffe(request)
    from speedo.engines.pytorch.devices import load_torch

    load_torch()
    from speedo.engines.pytorch import export_trials

    return export_trials.compute(request, inputs, float(UNTOUCHED), check_scored)


def main() -> None:
    """The child's part."""
    try:
        request = json.loads(sys.stdin.readline())
        answer, outputs = _compute(request)
        write_arrays(Path(request["outputs"]), outputs)
        tell(DONE, answer)
    except SpeedoError as error:
        tell(PROBLEM, str(error))
    except Exception as error:
        tell(PROBLEM, describe_exception(error))


if __name__ == "__main__":
    main()
