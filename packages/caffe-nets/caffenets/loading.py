"""A net of Caffe with its weights, ready to compute in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from caffenets.extras import needed
from caffenets.nets import about, read_deploy
from caffenets.weight_files.stored import Shape

if TYPE_CHECKING:
    from caffenets.pytorch.module import CaffeModule


def load(
    net: Path | str, weights: Path | str | None = None, shapes: Mapping[str, Shape] | None = None
) -> CaffeModule:
    """The deploy net of this prototxt, a `torch.nn.Module` in evaluation mode, with the values of a `.caffemodel`.

    `shapes` are those of inputs that the net does not say, as of one with data layers. Raises `NetError` with what to
    change; `ConfigError` without PyTorch.
    """
    needed("torch", "torch", "a net that computes")
    from caffenets.pytorch.module import CaffeModule

    with about(net):
        module = CaffeModule(read_deploy(net, shapes))
        if weights is not None:
            module.load_weights(weights)
    return module.eval()
