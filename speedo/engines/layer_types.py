"""The types of layers that a net may name.

Caffe says which it has. Those of the PyTorch engine are what its files declare; a net is checked without importing it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from caffenets import known_types
from caffenets.checks.nets import Known
from caffenets.layers import LAYERS
from speedo.engines.caffe_import import load_caffe
from speedo.system.bounds import EngineName


def layer_types(engine: EngineName) -> Sequence[str]:
    """All types that are known, also those that the engine refuses; with pycaffe those of the user's own Caffe."""
    return list(load_caffe().layer_type_list()) if engine == "caffe" else _pytorch_layers()


_DATA: Final = Path(__file__).parent / "pytorch" / "data"


@cache
def _pytorch_layers() -> tuple[str, ...]:
    """The data layers are those in `LAYERS` of their files, read as text: importing them would import PyTorch."""
    found = [*known_types.refusals(), *LAYERS]
    for file in sorted(_DATA.glob("*.py")):
        names = re.search(r"^LAYERS: Final = \(([^)]*)\)", file.read_text("utf-8"), re.MULTILINE)
        found += re.findall(r"\w+", names[1]) if names else ()
    return tuple(found)


def known_to(engine: EngineName) -> Known:
    """What this engine has, and why not what Caffe has beside it."""
    refused = known_types.refusals() if engine == "torch" else {}
    return Known(layer_types(engine), refused, _pytorch_layers(), engine == "caffe")
