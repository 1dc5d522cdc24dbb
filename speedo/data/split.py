"""Splits a database into parts for hosts, each a dataset by itself.

`interleaved` gives part k of n every n-th record from the k-th on, `blocks` gives it the k-th of n stretches of
records. With `shuffle` the records are permuted before that, with new keys; otherwise each part keeps order and keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

import numpy as np

from speedo.data.base import MANIFEST, Progress, reported, silent
from speedo.data.database import Record, Written, record_key, write_database
from speedo.data.folder import replace_folder
from speedo.data.manifest import Database, Manifest, read_manifest, write_manifest
from speedo.data.survey import Survey, as_lmdb, opened, read_keys, read_record
from speedo.errors import DataError

SPLIT: Final = "split"
Order = Literal["interleaved", "blocks"]


def split(
    database: Path,
    folder: Path,
    parts: int,
    *,
    order: Order = "interleaved",
    shuffle: bool = False,
    seed: int = 1,
    name: str | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> dict[str, int]:
    """Write `folder/part-K/NAME` for each K below `parts`; every record of `database` is in exactly one of them.

    Returns the records of each `part-K/NAME`. `name` is the path of the database in each part, by default its own name.
    Raises `DataError`: there are fewer records than parts, `folder` is there and not to be replaced, or cannot be
    written.
    """
    inside = _inside(name if name is not None else database.absolute().name)
    options: dict[str, Any] = {
        "source": str(database.absolute()),
        "parts": parts,
        "order": order,
        "seed": seed if shuffle else None,
    }

    def build(staging: Path) -> dict[str, int]:
        with opened(as_lmdb(database)) as transaction:
            keys = read_keys(database, transaction)
            if len(keys) < parts:
                raise DataError(
                    f"{database} has {len(keys):,} records: split it into at most as many parts"
                )
            chosen: Sequence[int] = range(len(keys))
            if shuffle:
                chosen = np.random.default_rng(seed).permutation(len(keys)).tolist()
            steps = reported(range(len(keys)), len(keys), "splitting", progress)
            made: dict[str, Database] = {}
            for part in range(parts):
                survey = Survey()
                mine = _part(chosen, part, parts, order)
                records = _records(
                    ((keys[at], read_record(database, transaction, keys[at])) for at in mine),
                    shuffle,
                    survey,
                    steps,
                )
                target = staging / part_name(part) / inside
                target.parent.mkdir(parents=True)
                written = write_database(target, records)
                described = _describe(database, survey, written, options | {"part": part})
                write_manifest(staging / part_name(part), Manifest(SPLIT, {str(inside): described}))
                made[f"{part_name(part)}/{inside}"] = described
        write_manifest(staging, Manifest(SPLIT, made))
        return {name: one.records for name, one in made.items()}

    return replace_folder(folder, SPLIT, build, force=force)


def part_name(part: int) -> str:
    """The folder of a part."""
    return f"part-{part}"


def _part(chosen: Sequence[int], part: int, parts: int, order: Order) -> Sequence[int]:
    if order == "interleaved":
        return chosen[part::parts]
    return chosen[len(chosen) * part // parts : len(chosen) * (part + 1) // parts]


def _records(
    records: Iterator[Record], shuffled: bool, survey: Survey, steps: Iterator[int]
) -> Iterator[Record]:
    for place, (key, value) in enumerate(records):
        new = record_key(place, key.decode("utf-8", "surrogateescape")) if shuffled else key
        survey.add((new, value))
        next(steps)
        yield new, value


def _describe(
    database: Path, survey: Survey, written: Written, options: dict[str, Any]
) -> Database:
    former = read_manifest(database.absolute().parent)
    known = former.databases.get(database.absolute().name) if former else None
    return Database(
        **asdict(written),
        shape=survey.shape,
        channels=known.channels if known else "as in the source",
        encoded=survey.encoded > 0,
        options=options,
        sources={database.absolute().name: known.sha256} if known else {},
    )


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if not path.name or path.is_absolute() or ".." in path.parts or path.name == MANIFEST:
        raise DataError(
            f"{name!r} cannot be a database's path in its part: use a relative one, as fashion-mnist/train_lmdb"
        )
    return path
