"""Makes data layers that name a LevelDB read its LMDB conversion: only one process at a time can open a LevelDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text
from speedo.engines.solver.spec import SolverSpec

DATABASES: Final = ("Data", "AnnotatedData")  # the layers that read a database


def reads_leveldb(layer: Any) -> bool:
    """Whether it reads a database and has Caffe's default backend, LevelDB."""
    return layer.type in DATABASES and layer.data_param.backend == layer.data_param.LEVELDB


def conversion_of(database: Path, note: Callable[[str], None] = lambda line: None) -> Path:
    """The LMDB with this LevelDB's records, converted now unless it exists; raises `DataError`."""
    from speedo.data.leveldb import converted  # with all that makes datasets: few nets need it

    return converted(database, note)


def read_conversion(layer: Any) -> None:
    """Change the layer, whose source is absolute, to read an LMDB; raises `DataError` if none can be made."""
    if reads_leveldb(layer):
        source = layer.data_param
        source.source = str(conversion_of(Path(source.source)))
        source.backend = source.LMDB


def convert_databases(spec: SolverSpec, note: Callable[[str], None]) -> None:
    """Convert the LevelDBs that the nets read on this machine, with a note if that takes time."""
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    for net in (parameter.train_net_param, *parameter.test_net_param):
        for layer in filter(reads_leveldb, net.layer):
            found = spec.search.find(layer.data_param.source)
            if found is not None:
                conversion_of(found, note)
