"""A Python file with a module of plain PyTorch, while it is made: its parts, and the lines of its forward pass."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from caffenets.forms.steps import Dims, NoEqual, Step, identifiers

_USED: Final = ("self", "torch", "nn", "F", "Net", "load", "Path", "path")

_BEGIN: Final = '''"""{title}

`load()` gives the net with its weights, ready to compute. Inputs and outputs:
{ends}
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

'''
_END: Final = '''

def load(path=Path(__file__).with_suffix(".pt")):
    """The net with the weights of this file, in the state for tests."""
    net = Net()
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return net.eval()
'''


class Code:
    """`blobs` are the names of the values between the layers, which become variables."""

    def __init__(self, blobs: Sequence[str]) -> None:
        self.variables = identifiers(blobs, _USED)
        self._helpers: dict[str, None] = {}
        self._parts: list[str] = []
        self._lines: list[str] = []
        self._step: Step | None = None

    @property
    def step(self) -> Step:
        assert self._step is not None
        return self._step

    def begin(self, step: Step) -> None:
        """What follows is this layer's."""
        self._step = step

    def part(self, constructor: str) -> str:
        """Make this part of the module and share its parameters as the layer does; the expression for it."""
        step = self.step
        self._parts.append(f"self.{step.name} = {constructor}")
        for key, owner in zip(step.keys, step.owners, strict=True):
            if key != owner:
                self._parts.append(f"self.{key} = self.{owner}")
        return f"self.{step.name}"

    def parameters(self) -> list[str]:
        """Make parameters of the layer's blobs; the expressions for them."""
        step = self.step
        made = [
            f'"{key.rpartition(".")[2]}": torch.zeros({listed(shape)})'
            for key, shape in zip(step.keys, step.blobs, strict=True)
        ]
        self.part(f"nn.ParameterDict({{{', '.join(made)}}})")
        return [f"self.{key}" for key in step.keys]

    def helper(self, text: str) -> None:
        """A class or function that the file has once."""
        self._helpers[text.strip("\n")] = None

    def assign(self, tops: Sequence[str], expressions: Sequence[str]) -> None:
        """The line of the layer. Raises `NoEqual` where it gives too few values."""
        names = [self.variables[top] for top in tops]
        if len(expressions) not in (1, len(names)):
            raise NoEqual(f"has {len(names)} tops")
        left, right = ", ".join(names), ", ".join(expressions)
        if left != right:
            self._lines.append(f"{left} = {right}")

    def text(self, title: str, inputs: Mapping[str, Dims], outputs: Mapping[str, Dims]) -> str:
        """The whole file."""
        names = [self.variables[name] for name in inputs]
        ends = [
            f"    {self.variables[name]}{'' if self.variables[name] == name else f' ({name})'}: {_sizes(dims)}"
            for name, dims in [*inputs.items(), *outputs.items()]
        ]
        given = [f"{json.dumps(name)}: {self.variables[name]}" for name in outputs]
        result = (
            self.variables[next(iter(outputs))] if len(outputs) == 1 else f"{{{', '.join(given)}}}"
        )
        lines = [
            _BEGIN.format(title=_escaped(title), ends="\n".join(map(_escaped, ends))),
            *(f"\n{helper}\n\n" for helper in self._helpers),
            "\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n",
            *(f"        {one}\n" for one in self._parts),
            f"\n    def forward(self, {', '.join(names)}):\n",
            *(f"        {one}\n" for one in self._lines),
            f"        return {result}\n",
            _END,
        ]
        return "".join(lines)


def number(value: float) -> str:
    """A float32 in as few digits as name it."""
    return str(np.float32(value))


def listed(values: Sequence[object]) -> str:
    """`1, 2` of (1, 2), and `()` of ()."""
    return ", ".join(map(str, values)) or "()"


def pair(values: Sequence[int]) -> str:
    """`3` of (3, 3), and `(3, 5)` of (3, 5)."""
    return str(values[0]) if len(set(values)) == 1 else f"({listed(values)})"


def arguments(*fixed: object, **optional: tuple[object, object]) -> str:
    """Arguments of a call: of the named ones, pairs of value and default, those that differ."""
    named = [f"{name}={value}" for name, (value, usual) in optional.items() if value != usual]
    return ", ".join([*map(str, fixed), *named])


def _sizes(dims: Dims) -> str:
    return f"({', '.join('batch' if size is None else str(size) for size in dims)})"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
