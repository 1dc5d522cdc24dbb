"""What a program around this package decides: by which schema files are read, and what to do about other Caffes.

Alone, the package reads by its own schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def own_schema() -> Any:
    """The package's own generated module."""
    from caffenets.caffe_schema import caffe_pb2

    return caffe_pb2


def _take_out(is_computed: bool) -> str:
    return "give the net to a program that has it" if is_computed else "take it out"


_schema: Callable[[], Any] = own_schema
_remedy: Callable[[bool], str] = _take_out
_caffe_itself = "give the net to Caffe itself"


def decide(schema: Callable[[], Any], remedy: Callable[[bool], str], caffe: str) -> None:
    """Have files read by the generated module `caffe_pb2` that `schema()` gives.

    `remedy(True)` says what to do about a layer or field of another Caffe than BVLC's that this schema has,
    `remedy(False)` about another one; `caffe` how to have Caffe compute.
    """
    global _schema, _remedy, _caffe_itself
    _schema, _remedy, _caffe_itself = schema, remedy, caffe


def caffe_schema() -> Any:
    """The generated module `caffe_pb2` by which files are read."""
    return _schema()


def remedy(is_computed: bool) -> str:
    """See `decide`."""
    return _remedy(is_computed)


def caffe_itself() -> str:
    """How to have Caffe itself compute a net, in the imperative."""
    return _caffe_itself
