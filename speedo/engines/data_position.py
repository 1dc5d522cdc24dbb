"""Where a net's data layers stand in their sources."""

from __future__ import annotations

from typing import Any


def advance(net: Any, batches: int) -> None:
    """Let every layer that reads data give `batches` batches to nobody.

    What it draws at random for them (mirrored or cropped images) is drawn as in training, so a net that is built
    anew and advanced goes on with the very images that would have come next.
    """
    layers = [index for index in range(len(net.layers)) if not len(net._bottom_ids(index))]
    for _ in range(batches):
        for layer in layers:
            net._forward(layer, layer)
