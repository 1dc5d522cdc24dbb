"""How many training records there are, where that can be told without reading them."""

from __future__ import annotations

import lmdb

from speedo.solver.proto import caffe_proto, parse_text
from speedo.solver.spec import SolverSpec


def count_records(spec: SolverSpec) -> int | None:
    """Entries of the LMDB or lines of the image list of the first training data layer; None for the rest."""
    parameter = parse_text(spec.text, caffe_proto().SolverParameter())
    for layer in parameter.train_net_param.layer:
        if layer.type == "Data" and layer.data_param.backend == layer.data_param.LMDB:
            found = spec.search.find(layer.data_param.source)
            if found is None:
                return None
            try:
                with lmdb.open(
                    str(found), readonly=True, lock=False, subdir=found.is_dir()
                ) as database:
                    return int(database.stat()["entries"])
            except lmdb.Error:
                return None
        if layer.type == "ImageData":
            found = spec.search.find(layer.image_data_param.source)
            if found is not None:
                with found.open(encoding="utf-8", errors="replace") as lines:
                    return sum(1 for line in lines if line.strip())
    return None
