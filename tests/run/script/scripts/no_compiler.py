"""Imported before an optimizer is made: else PyTorch would import its compiler for that, two seconds of each script."""

import sys
from types import SimpleNamespace

import torch

torch._dynamo = sys.modules["torch._dynamo"] = SimpleNamespace(
    disable=lambda function, *_, **__: function, graph_break=lambda: None
)
