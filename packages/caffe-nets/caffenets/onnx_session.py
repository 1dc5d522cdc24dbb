"""Runs an ONNX file in ONNX Runtime, alone or as a layer of a test net."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from caffenets.extras import needed

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


def opened(file: Path, what: str = "--onnx") -> Any:
    """A session of this file in one thread; `what` needs it. Raises `ConfigError` without ONNX Runtime."""
    runtime = needed("onnxruntime", "onnx", what)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    # Sums of 8-bit products are exact then also on processors without VNNI, which add pairs of them in 16 bits.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


class OnnxNet:
    """A file as a layer: `text` is what `described` made; bottoms are its inputs, tops its outputs, in their order."""

    def __init__(self, text: str) -> None:
        given = json.loads(text)
        self._inputs, self._outputs = given["inputs"], given["outputs"]
        self._session = opened(Path(given["file"]), "--int8")

    def __call__(self, bottoms: Sequence[Array]) -> list[Array]:
        """The tops."""
        records = [np.ascontiguousarray(bottom, np.float32) for bottom in bottoms]
        return list(self._session.run(self._outputs, dict(zip(self._inputs, records, strict=True))))

    def shapes(self, bottoms: Sequence[Shape]) -> list[Shape]:
        """The shapes of the tops for bottoms of these."""
        return [top.shape for top in self([np.zeros(shape, np.float32) for shape in bottoms])]


def described(file: Path, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """What an `OnnxNet` is made from."""
    return json.dumps({"file": str(file), "inputs": list(inputs), "outputs": list(outputs)})
