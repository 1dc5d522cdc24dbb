"""An ONNX graph while it is made: nodes, constants, and the parameters of Caffe as initializers.

Written without torch.onnx: each layer becomes the operators that are it exactly, with a free batch, and parameters stay
bit for bit. The package `onnx` is imported when a graph is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from caffenets.errors import EngineError
from caffenets.extras import needed
from caffenets.forms.steps import Dims, NoFreeBatch, Shape, Step

OPSET: Final = 17  # of ONNX 1.12, from 2022: what reads ONNX today reads it
IR_VERSION: Final = 8
LIMIT: Final = 2**31 - 1  # bytes of a protobuf message
Values = npt.NDArray[np.float32]


class Graph:
    """`values` are the parameters by their keys; only those that a layer asks for are in the file."""

    def __init__(self, values: Mapping[str, Values]) -> None:
        self._onnx = needed("onnx", "onnx", "--onnx")
        self._values = values
        self._nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._constants: dict[tuple[str, Shape, bytes], str] = {}
        self._notes: dict[str, str] = {}
        self._step: Step | None = None
        self._first = 0  # node of the present layer

    @property
    def step(self) -> Step:
        assert self._step is not None
        return self._step

    def begin(self, step: Step) -> None:
        """The nodes that follow are this layer's."""
        self._step, self._first = step, len(self._nodes)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, and the name of that."""
        return self.add_several(op, inputs, 1, **attributes)[0]

    def add_several(
        self, op: str, inputs: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        """A node with several outputs, and their names."""
        number = len(self._nodes) - self._first
        base = f"{self.step.param.name}:{op}{number or ''}"
        names = [f"{base}:{at}" if outputs > 1 else base for at in range(outputs)]
        make = self._onnx.helper.make_node
        self._nodes.append(make(op, list(inputs), names, name=base, **attributes))
        return names

    def constant(self, values: Any, kind: Any = np.float32) -> str:
        """The name of a constant; equal ones are one."""
        array = np.asarray(values, kind)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant:{len(self._constants)}"
            self._constants[key] = name
            self._initializers[name] = self._onnx.numpy_helper.from_array(array, name)
        return self._constants[key]

    def integers(self, *values: int) -> str:
        """The name of a row of whole numbers."""
        return self.constant(values, np.int64)

    def blob(self, index: int, shape: Shape | None = None) -> str:
        """The name of the layer's blob, in Caffe's shape or another of as many values."""
        step = self.step
        key, wanted = step.owners[index], step.blobs[index] if shape is None else shape
        if key not in self._initializers:
            self.initializer(key, self._values[key].reshape(wanted))
        held = tuple(self._initializers[key].dims)
        return key if held == wanted else self.add("Reshape", key, self.integers(*wanted))

    def blob_values(self, index: int) -> Values:
        """The values of the layer's blob."""
        return self._values[self.step.owners[index]]

    def initializer(self, name: str, values: Values) -> str:
        """A parameter that has this name in the file."""
        array = np.ascontiguousarray(values, np.float32)
        self._initializers[name] = self._onnx.numpy_helper.from_array(array, name)
        return name

    def note(self, key: str, text: str) -> None:
        """Keep this text in the file's metadata."""
        self._notes[key] = text

    def reshaped(self, value: str, dims: Dims) -> str:
        """`value` in this shape, of which one size at most may depend on the batch. Raises `NoFreeBatch`."""
        if sum(size is None for size in dims) > 1:
            raise NoFreeBatch("has a top with two sizes that depend on the batch")
        sizes = [-1 if size is None else size for size in dims]
        return self.add("Reshape", value, self.integers(*sizes))

    def end(self, tops: Mapping[str, str]) -> dict[str, str]:
        """Give the present layer's values the names that they are to have, by their present ones; what they are named.

        A value that no node of this layer makes keeps its name.
        """
        made = {name for node in self._nodes[self._first :] for name in node.output}
        renamed = {old: new for old, new in tops.items() if old in made}
        for node in self._nodes[self._first :]:
            for names in (node.input, node.output):
                names[:] = [renamed.get(name, name) for name in names]
        return {old: renamed.get(old, old) for old in tops}

    def model(
        self,
        name: str,
        inputs: Mapping[str, Dims],
        outputs: Mapping[str, tuple[str, Dims]],
        found: Collection[str] = (),
    ) -> bytes:
        """The file. `outputs` have the names of their values; the free size of those in `found` is not the batch.

        `EngineError` if it is beyond protobuf's limit.
        """
        helper, onnx = self._onnx.helper, self._onnx
        ends = []
        for output, (value, dims) in outputs.items():
            if value != output:  # an input or a value under another name
                self._nodes.append(helper.make_node("Identity", [value], [output], name=output))
            ends.append(self._described(output, dims, "found" if output in found else "batch"))
        used = {name for node in self._nodes for name in node.input}
        kept = [one for key, one in self._initializers.items() if key in used]
        if sum(len(one.raw_data) for one in kept) > LIMIT - (1 << 20):
            raise EngineError(
                f"the model is larger than an ONNX file may be ({LIMIT:,} bytes): use --torch"
            )
        starts = [self._described(one, dims) for one, dims in inputs.items()]
        graph = helper.make_graph(self._nodes, name or "net", starts, ends, kept)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(
            graph, producer_name="caffe-nets", opset_imports=[opset], ir_version=IR_VERSION
        )
        helper.set_model_props(model, self._notes)
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString())

    def _described(self, name: str, dims: Dims, free: str = "batch") -> Any:
        sizes = [free if size is None else size for size in dims]
        return self._onnx.helper.make_tensor_value_info(name, self._onnx.TensorProto.FLOAT, sizes)
