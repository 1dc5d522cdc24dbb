"""The folder of a Ray node, and the shared memory beside it."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from typing import Final

from speedo.system.private_folders import make_private_folder

OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024  # Ray's least: nothing of ours travels through it
STORE_SOCKET: Final = "plasma"  # no shorter than that of the raylet
RAY_FOLDER: Final = "r"  # in a private folder: Ray makes its own one writable for everybody


def ray_folder(stack: ExitStack) -> str:
    """A new private folder for a node, removed when `stack` closes."""
    folder = make_private_folder("speedo-ray-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)
