"""The default folders of datasets and caches, and the dataset of the bundled solver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from caffenets import files
from speedo.data.base import COMMAND, Progress, silent
from speedo.data.folder import is_complete
from speedo.data.mnist import FASHION_MNIST, prepare_fashion_mnist
from speedo.errors import DataError

CACHE_VARIABLE: Final = "SPEEDO_CACHE"


def default_data_root() -> Path:
    """`$SPEEDO_DATA`, or `speedo/data` in the user's data folder (XDG Base Directory
    Specification). Raises DataError for a user without one."""
    if chosen := os.environ.get("SPEEDO_DATA"):
        return Path(os.path.expanduser(chosen))
    home = os.environ.get("XDG_DATA_HOME", "")
    # The specification tells readers to ignore a relative path.
    if not os.path.isabs(home):
        try:
            home = str(files.home() / ".local" / "share")
        except OSError as error:
            raise DataError(f"{error.strerror}, or SPEEDO_DATA to a folder for data") from None
    return Path(home) / "speedo" / "data"


def cache_root() -> Path:
    """`$SPEEDO_CACHE`, or `speedo` in the user's cache folder: for files that can be made again."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
    return base / "speedo"


def ensure_bundled(
    data_root: Path, name: str = FASHION_MNIST, *, progress: Progress = silent
) -> Path:
    """The complete folder of a dataset under the root; if Fashion-MNIST is missing it is made from Debian's package.

    Every worker of a node may call it at the same time. Raises DataError for any other dataset that is missing: SpeeDO
    downloads only on request.
    """
    folder = data_root / name
    if name == FASHION_MNIST:
        return prepare_fashion_mnist(folder, progress=progress).folder
    if not is_complete(folder):
        raise DataError(
            f"{folder} has no complete dataset {name}: make it with `{COMMAND} {name} {folder}`"
        )
    return folder
