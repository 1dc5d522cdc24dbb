"""The datasets that `speedo data` can make for a solver that lacks them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from speedo.data.roots import ensure_bundled
from speedo.engines.solver import SolverSpec

PREPARABLE: Final = ("fashion-mnist", "mnist", "cifar10")


def preparable_dataset(spec: SolverSpec) -> str | None:
    """The dataset that this solver lacks and that `speedo data` can make, known by the name of its source's folder."""
    source = spec.train_source
    if source is None or spec.search.find(source) is not None:
        return None
    name = Path(source).parts[0] if not Path(source).is_absolute() else ""
    return name if name in PREPARABLE else None


def make_dataset(data_root: Path, name: str, note: Callable[[str], None]) -> None:
    """Make a dataset that can be made without a download; raises `DataError` with the command otherwise."""
    said: set[str] = set()

    def progress(done: int, total: int, what: str) -> None:
        if what not in said:
            said.add(what)
            note(f"preparing {name} in {data_root}: {what}")

    ensure_bundled(data_root, name, progress=progress)
