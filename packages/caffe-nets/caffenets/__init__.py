"""Nets and trained weights of Caffe, without Caffe.

`read_weights(path)` gives the arrays of a file by name, each read when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caffenets.weights import read_weights

__all__ = ["read_weights"]


def __getattr__(name: str) -> Any:
    """What `__all__` names, imported when it is first asked for: the rest needs no NumPy."""
    if name not in __all__:
        raise AttributeError(f"module 'caffenets' has no attribute {name!r}")
    from caffenets import weights

    return getattr(weights, name)
