"""How many training records there are, where that can be told without reading them."""

from __future__ import annotations

import os

import lmdb

from speedo.errors import DataError
from speedo.solver.conversion import conversion_of, reads_leveldb
from speedo.solver.proto import caffe_proto, parse_text
from speedo.solver.spec import SolverSpec
from speedo.system.files import open_to_read


def count_records(spec: SolverSpec) -> int | None:
    """Entries of the database or lines of the image list of the first training data layer; None for the rest."""
    parameter = parse_text(spec.text, caffe_proto().SolverParameter())
    for layer in parameter.train_net_param.layer:
        if layer.type == "Data":
            found = spec.search.find(layer.data_param.source)
            if found is None:
                return None
            try:
                if reads_leveldb(layer):
                    found = conversion_of(found)
                if not os.path.isfile(found / "data.mdb" if found.is_dir() else found):
                    return None  # LMDB waits for what comes out of a pipe
                with lmdb.open(
                    str(found), readonly=True, lock=False, subdir=found.is_dir()
                ) as database:
                    return int(database.stat()["entries"])
            except (lmdb.Error, DataError):
                return None
        if layer.type == "ImageData":
            found = spec.search.find(layer.image_data_param.source)
            if found is not None:
                try:
                    with open_to_read(found) as lines:
                        return sum(1 for line in lines if line.strip())
                except OSError:
                    return None
    return None
