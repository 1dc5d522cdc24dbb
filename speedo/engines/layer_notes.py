"""Notes in a small file which layer computes, so that another process can name it once this one has died.

Native code may end a process at any time. The note is in a page of memory that is the file's, and outlives the process.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

FILE: Final = "layer"  # in the process's scratch folder
_BYTES: Final = 512
_page: mmap.mmap | None = None


def note_layers(file: Path) -> None:
    """Note each layer of this process from now on; costs some microseconds a layer and pass.

    Without room for the file nothing is noted.
    """
    global _page
    with suppress(OSError), file.open("w+b") as opened:
        # A page without a block would end the process
        os.posix_fallocate(opened.fileno(), 0, _BYTES)
        _page = mmap.mmap(opened.fileno(), _BYTES)


def noting() -> bool:
    """Whether this process notes its layers."""
    return _page is not None


def note(what: str) -> None:
    """Note that this computes now; empty for nothing of a layer."""
    if _page is not None:
        _page[:] = what.encode()[:_BYTES].ljust(_BYTES, b"\0")


def note_forward(param: Any) -> None:
    """Note the forward pass of this LayerParameter's layer."""
    note(_pass("forward", param))


def note_backward(param: Any, bottoms: Sequence[Any], tops: Sequence[Any]) -> None:
    """Have the backward pass of this layer noted when it begins; `tops` are tensors of PyTorch."""
    for top in tops:
        if top.grad_fn is not None and not any(top is bottom for bottom in bottoms):
            top.grad_fn.register_prehook(partial(_begin, _pass("backward", param)))


def noted(file: Path) -> str:
    """What a process that is gone noted last, such as "the forward pass of layer 'conv' (Convolution)"."""
    try:
        return file.read_bytes()[:_BYTES].rstrip(b"\0").decode("utf-8", "replace")
    except OSError:
        return ""


def _begin(what: str, _gradients: Any) -> None:
    note(what)


def _pass(direction: str, param: Any) -> str:
    return f"the {direction} pass of layer {str(param.name)[:200]!r} ({str(param.type)[:60]})"
