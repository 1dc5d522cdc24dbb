"""One net on pycaffe, and its exports in ONNX Runtime and as a PyTorch module, all in this process. No tests itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from caffenets.deploy import with_batch
from caffenets.export.layered import Layered, draw_inputs, layered
from caffenets.forms.steps import dims_of
from caffenets.weight_files.caffemodel import Model
from speedo.engines.caffe_import import load_caffe, prepare_environment
from speedo.errors import EngineError
from tests.support.stored_arrays import held_model

BATCHES = (1, 7)


@dataclass
class Tried:
    """What was made of a net, the inputs and pycaffe's outputs with each batch, and its weights."""

    made: Layered
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    model: Model


def parsed(text: str) -> Any:
    prepare_environment(1)
    return text_format.Parse(text, load_caffe().proto.caffe_pb2.NetParameter())


def on_pycaffe(
    net: Any, folder: Path, batches: tuple[int, ...] = BATCHES, weights: Path | None = None
) -> Tried:
    """Compute a deploy net with these weights, or with random ones, and export it."""
    caffe = load_caffe()
    caffe.set_mode_cpu()
    inputs, outputs, shapes = [], [], []
    stored: dict[str, list[Any]] = {}
    blobs: dict[str, list[tuple[int, ...]]] = {}
    for batch in batches:
        sized = with_batch(net, batch)
        path = folder / f"net{batch}.prototxt"
        path.write_text(text_format.MessageToString(sized))
        built = caffe.Net(str(path), *([] if weights is None else [str(weights)]), caffe.TEST)
        kinds = {layer.name: layer.type for layer in net.layer}
        rng = np.random.default_rng(3)
        for name, own in built.params.items() if weights is None else ():
            fill(own, kinds[name], rng)
        if not blobs:
            for name, own in built.params.items():
                blobs[name] = [tuple(blob.data.shape) for blob in own]
                stored[name] = [blob.data.copy() for blob in own]
        given = draw_inputs(sized, np.random.default_rng(batch))
        for name, values in given.items():
            built.blobs[name].data[...] = values
        found = built.forward()
        inputs.append(given)
        outputs.append({name: value.copy() for name, value in found.items()})
        shapes.append({name: tuple(blob.data.shape) for name, blob in built.blobs.items()})
    dims = dims_of(shapes[0], shapes[-1])
    model = held_model(stored)
    made = layered(with_batch(net, batches[0]), "net.prototxt", dims, outputs[0], blobs, model)
    return Tried(made, inputs, outputs, model)


def on_torch(net: Any, batches: tuple[int, ...] = BATCHES) -> Tried:
    """The same with the PyTorch engine, for layers that pycaffe does not have."""
    import torch

    from speedo.engines.pytorch.export_trials import computing

    inputs, outputs, answers = [], [], []
    request = {"kind": "engine", "weights": None}
    torch.manual_seed(3)
    for batch in batches:
        sized = with_batch(net, batch)
        given = draw_inputs(sized, np.random.default_rng(batch))
        torch.manual_seed(3)
        text = text_format.MessageToString(sized)
        answer, found = computing(request, {})({"net": text}, given)
        inputs.append(given)
        outputs.append(found)
        answers.append(answer)
    torch.set_grad_enabled(True)
    if any(answer["blobs"] != answers[0]["blobs"] for answer in answers):
        raise EngineError("the shape of a parameter depends on the batch")
    blobs = {name: [tuple(one) for one in own] for name, own in answers[0]["blobs"].items()}
    torch.manual_seed(3)
    from speedo.engines.pytorch.net import Net

    built = Net(with_batch(net, batches[0]), "TEST")
    stored = {
        name: [blob.numpy().copy() for blob in own] for name, own in built.blobs_of_layers() if own
    }
    shapes = [{n: tuple(one) for n, one in answer["shapes"].items()} for answer in answers]
    dims = dims_of(shapes[0], shapes[-1])
    model = held_model(stored)
    sized = with_batch(net, batches[0])
    constants = answers[0]["constants"]
    made = layered(sized, "net.prototxt", dims, outputs[0], blobs, model, None, constants)
    return Tried(made, inputs, outputs, model)


def fill(blobs: Any, kind: str, rng: np.random.Generator) -> None:
    """Random values that keep the size of what passes."""
    for at, blob in enumerate(blobs):
        values = rng.normal(
            0,
            np.sqrt(2 / max(1, blob.data[0].size)) if blob.data.ndim > 1 else 0.5,
            blob.data.shape,
        )
        if kind == "BatchNorm":
            values = (values, rng.uniform(0.5, 2, blob.data.shape) * 999.5, [999.5])[at]
        blob.data[...] = values


def in_onnx_runtime(content: bytes, inputs: dict[str, Any]) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def in_pytorch(made: Layered, inputs: dict[str, Any]) -> dict[str, Any]:
    import torch

    namespace: dict[str, Any] = {"__file__": "net.py", "__name__": "exported"}
    text = made.as_torch("a net")
    assert "speedo" not in text
    exec(compile(text, "net.py", "exec"), namespace)
    net = namespace["Net"]()
    values = {key: torch.from_numpy(made.values[own].copy()) for key, own in made.owners.items()}
    net.load_state_dict(values)
    with torch.no_grad():
        found = net.eval()(*(torch.from_numpy(one) for one in inputs.values()))
    if not isinstance(found, dict):
        found = {next(iter(made.outputs)): found}
    return {name: one.numpy() for name, one in found.items()}
