"""LevelDBs as Caffe's tools write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import plyvel

Records = Iterable[tuple[bytes, bytes]]


def write_leveldb(folder: Path, records: Records, **options: Any) -> Path:
    """A closed database; Caffe's own blocks have 64 KiB (Caffe: util/db_leveldb.cpp)."""
    opened = plyvel.DB(str(folder), create_if_missing=True, block_size=65536, **options)
    for key, value in records:
        opened.put(key, value)
    opened.close()
    return folder
