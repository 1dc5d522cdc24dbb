"""What a host tells the master of the training records that it has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import lmdb
import xxhash

from caffenets.data_layers import SOURCES, data_layers
from caffenets.files import read_bytes
from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from caffenets.shared_lmdb import SharedLmdb
from speedo.engines.solver.conversion import DATABASES, conversion_of, reads_leveldb
from speedo.engines.solver.data_layers import count_records
from speedo.engines.solver.spec import SolverSpec
from speedo.errors import DataError

MOST_LIST_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class Holding:
    """The training records that a host has: their number, None where it is not known, and a digest of the source.

    Hosts on one `machine` with the same `digest` read the same records.
    """

    records: int | None = None
    digest: str = ""
    machine: str = ""

    @property
    def group(self) -> str:
        """The same for all workers that share these records."""
        return f"{self.machine}/{self.digest}"


def holding_of(spec: SolverSpec, machine: str = "") -> Holding:
    """What the train net reads on this node; a source that cannot be read has no records and no digest."""
    digest = xxhash.xxh3_128()
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    for layer in data_layers(parameter.train_net_param):
        try:
            for part in _marks(layer, spec):
                digest.update(part)
        except (OSError, lmdb.Error, DataError):
            return Holding(None, "", machine)
    return Holding(count_records(spec), digest.hexdigest(), machine)


def _marks(layer: Any, spec: SolverSpec) -> Iterator[bytes]:
    """What tells this source from another one: its list, or the number of records, the first and the last."""
    if layer.type not in SOURCES:
        return
    found = spec.search.find(getattr(layer, SOURCES[layer.type]).source)
    if found is None:
        raise FileNotFoundError
    if layer.type not in DATABASES:
        yield read_bytes(found, MOST_LIST_BYTES)
        return
    if reads_leveldb(layer):
        found = conversion_of(found)
    if not os.path.isfile(found / "data.mdb" if found.is_dir() else found):
        raise FileNotFoundError
    with SharedLmdb(found) as database, database.begin(buffers=True) as transaction:
        yield b"%d" % database.stat()["entries"]
        cursor = transaction.cursor()
        for there in (cursor.first(), cursor.last()):
            if there:
                yield bytes(cursor.key()) + bytes(cursor.value())
