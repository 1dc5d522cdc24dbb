"""What a run takes from a store: weights, data below a root, a former run. The cache keeps what does not change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from speedo.data.base import Progress
from speedo.data.remote.fetch import RECORD, fetch
from speedo.data.remote.uris import local_name, uri_of
from speedo.data.roots import cache_root
from speedo.engines.solver import SolverSpec
from speedo.engines.solver.data_layers import files_named
from speedo.errors import ConfigError, DataError, SolverError, hide_secrets
from speedo.run.config.option_checks import weights_in
from speedo.run_dir.directory import make_own_folders
from speedo.system.bounds import said
from speedo.system.files_below import name_below

TELL_BYTES: Final = 64 << 20  # progress is reported each time that so much has come
Note = Callable[[str], None]


def located(path: Path | None) -> Path | None:
    """Where a file or folder is on this machine: for a URI its place in the cache, fetched or not."""
    uri = uri_of(path)
    return path if uri is None else cache_root() / "fetched" / local_name(uri)


def located_weights(weights: Path | None) -> tuple[Path, ...]:
    """Where the files of `--weights` are on this machine, fetched or not."""
    return tuple(place for one in weights_in(weights) if (place := located(one)) is not None)


def fetch_weights(weights: Path, note: Note) -> Path:
    """The file of weights on this machine, fetched if it is at a URI. Raises `DataError`."""
    uri, place = uri_of(weights), located(weights)
    if uri is not None and place is not None:
        _fetch(uri, place, note)
        if not os.path.isfile(place):
            raise DataError(f"{uri} is a folder; give the URI of a .caffemodel")
        return place
    return weights


def fetch_sources(spec: SolverSpec, root: Path | None, note: Note) -> None:
    """Fetch the data and mean files that the solver names and this machine lacks, from a root that is a URI.

    Raises `SolverError` with the URI of what is not there either.
    """
    uri, place = uri_of(root), located(root)
    if uri is None or place is None:
        return
    for name in files_named(spec):
        found = spec.search.find(name)
        if Path(name).is_absolute() or (found is not None and place not in found.parents):
            continue
        below = name_below(name)
        if below is None:
            raise SolverError(
                f"the solver names {said(name)}, which is not below the data root {uri}: correct the name, or give a "
                "--data-root of this machine"
            )
        try:
            _fetch(f"{uri.rstrip('/')}/{below}", place / below, note)
        except DataError as error:
            raise SolverError(f"the solver names {name!r}: {error}") from None


def fetch_run(uri: str, run_dir: Path | None, note: Note) -> Path:
    """The run directory at this URI on this machine: in `run_dir`, or in runs/ under its own name.

    Raises `ConfigError` if something else is there already, `DataError`.
    """
    folder = run_dir or Path("runs") / local_name(uri).name
    if folder.is_dir() and any(one.name != RECORD for one in folder.iterdir()):
        raise ConfigError(
            f"{folder} is there already: resume that one, or name a new folder with --run-dir for the copy of {uri}"
        )
    note(f"fetching the run {hide_secrets(uri)} into {folder}")
    make_own_folders(folder)
    fetch(uri, folder, progress=told(note, uri))
    return folder


def _fetch(uri: str, place: Path, note: Note) -> None:
    fetch(uri, place.parent, name=place.name, progress=told(note, uri))


def told(note: Note, uri: str) -> Progress:
    """Tells how far a long fetch is."""
    last = 0

    def progress(done: int, total: int, name: str) -> None:
        nonlocal last
        if done - last >= TELL_BYTES:
            last = done
            note(f"fetching {hide_secrets(uri)}: {done >> 20:,} of {total >> 20:,} MiB, {name}")

    return progress
