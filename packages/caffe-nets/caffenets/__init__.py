"""Nets and trained weights of Caffe, without Caffe.

`read_weights(path)` gives the arrays of a file by name, each read when it is asked for. `read_net(path)` gives the
NetParameter of a prototxt, in today's format. `load(net, weights)` gives a module of PyTorch that computes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from caffenets.loading import load
    from caffenets.nets import read_net
    from caffenets.weights import read_weights

__all__ = ["load", "read_net", "read_weights"]
_PLACES: Final = {
    "load": "caffenets.loading",
    "read_net": "caffenets.nets",
    "read_weights": "caffenets.weights",
}


def __getattr__(name: str) -> Any:
    """What `__all__` names, imported when it is first asked for: the rest needs neither NumPy nor protobuf."""
    if name not in _PLACES:
        raise AttributeError(f"module 'caffenets' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
