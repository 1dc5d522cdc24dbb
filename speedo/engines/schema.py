"""What SpeeDO decides for `caffenets`: files are read by the protobuf schema of pycaffe, or by the package's own.

A pycaffe of the user's own may define more layers, so its schema comes first. Both have the same text and binary form.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from caffenets import host_program
from caffenets.known_types import NATIVE_PYTHON
from speedo.engines.caffe_import import load_caffe
from speedo.errors import EngineError
from speedo.system.remedies import in_checkout

ONNX_LAYER: Final = "speedo.engines.onnx_layer"  # of the test nets that `speedo test --int8` makes
_OWN_ONLY = False


def use_own_schema(only: bool = True) -> None:
    """Never import pycaffe in this process to read a file; call it before anything is read."""
    global _OWN_ONLY
    _OWN_ONLY = only


def decide() -> None:
    """See `caffenets.host_program.decide`."""
    host_program.decide(_schema, _remedy, "use --engine caffe")
    NATIVE_PYTHON[ONNX_LAYER, "OnnxNet"] = "OnnxNet"


def _schema() -> Any:
    return host_program.own_schema() if _OWN_ONLY else _pycaffe_first()


@cache
def _pycaffe_first() -> Any:
    try:
        return load_caffe().proto.caffe_pb2
    except EngineError:
        return host_program.own_schema()


def _remedy(is_computed: bool) -> str:
    own = "use --engine torch, which has it" if is_computed else "take it out"
    how = (
        "make setup SPEEDO_CAFFE_PYTHONPATH=DIR"
        if in_checkout()
        else "its folder python on PYTHONPATH"
    )
    return f"{own}, or train with --engine caffe and that Caffe ({how})"
