"""Chooses the protobuf schema by which Caffe's files are read: that of pycaffe, or SpeeDO's own.

A pycaffe of the user's own may define more layers, so its schema comes first. Both have the same text and binary form.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from caffenets.caffe_schema import caffe_pb2
from speedo.engines.caffe_import import load_caffe
from speedo.errors import EngineError

_OWN_ONLY = False


def use_own_schema(only: bool = True) -> None:
    """Use SpeeDO's own schema in this process, and never import pycaffe for it; call it before anything is read."""
    global _OWN_ONLY
    _OWN_ONLY = only


def caffe_schema() -> Any:
    """The generated module `caffe_pb2`: pycaffe's where pycaffe can be imported, else SpeeDO's own."""
    return caffe_pb2 if _OWN_ONLY else _pycaffe_first()


@cache
def _pycaffe_first() -> Any:
    try:
        return load_caffe().proto.caffe_pb2
    except EngineError:
        return caffe_pb2
