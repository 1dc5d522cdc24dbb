"""Further families of layers, which `speedo.engines.pytorch.layers` merges into its table."""

from __future__ import annotations

from speedo.engines.pytorch.layer import Layer

FURTHER: dict[str, type[Layer]] = {}
