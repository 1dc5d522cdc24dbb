"""Whether a file is a .caffemodel for a net: Caffe takes much for one that is none, and says nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from speedo.engines.caffe_import import load_caffe
from speedo.errors import SolverError
from speedo.files import read_bytes

_HDF5: Final = b"\x89HDF"  # Caffe reads such files too, and checks them itself


def check_weights(path: Path, layers: Iterable[str]) -> None:
    """Raises `SolverError` unless the file holds parameters for one of these layers."""
    try:
        content = read_bytes(path)
    except OSError as error:
        raise SolverError(
            f"weights {path} cannot be read ({error.strerror}): correct --weights"
        ) from error
    if content.startswith(_HDF5):
        return
    try:
        net = load_caffe().proto.caffe_pb2.NetParameter.FromString(content)
    except DecodeError as error:
        raise SolverError(
            f"weights {path} is no .caffemodel, or one cut short: give another --weights"
        ) from error
    held = [layer.name for layer in (*net.layer, *net.layers) if layer.blobs]
    if not held:
        raise SolverError(f"weights {path} holds no parameters: give another --weights")
    if not set(held) & set(layers):
        raise SolverError(
            f"weights {path} has no layer of this net, only {', '.join(held[:5])}: "
            "give another --weights, or name the layers alike"
        )
