"""Caffe's snapshots in HDF5: `.caffemodel.h5` and `.solverstate.h5`.

Written here and not by Caffe, which can write only to the disk, and aborts the process if that is full (Caffe: net.cpp,
ToHDF5; solvers/sgd_solver.cpp, SnapshotSolverStateToHDF5).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import numpy as np

from caffenets.weight_files.hdf5 import write_layers
from speedo.engines.solverstate import read_state
from speedo.exchange.vector import Layout, Vector


def write_model_hdf5(
    layers: Iterable[str], layout: Layout, weights: Vector, file: IO[bytes]
) -> None:
    """Write the weights as a `.caffemodel.h5` into an open file; `layers` are the names of all layers of the net."""
    blobs = ((blob.name, weights[place].reshape(blob.shape)) for blob, place in layout.slices())
    write_layers(file, layers, blobs)


def write_hdf5(solverstate: bytes, file: IO[bytes]) -> None:
    """Write the content of a `.solverstate` as HDF5 into an open file."""
    import h5py  # beside Caffe's own library of HDF5, and only where it is asked for

    state = read_state(solverstate)
    with h5py.File(file, "w") as out:
        out.create_dataset("iter", data=np.array([state.iter], np.int32))
        _write_text(h5py, out, "learned_net", str(state.learned_net))
        out.create_dataset("current_step", data=np.array([state.current_step], np.int32))
        history = out.create_group("history")
        for index, blob in enumerate(state.history):
            values = np.frombuffer(blob.data, "<f4").reshape(tuple(blob.shape.dim))
            history.create_dataset(str(index), data=values)


def _write_text(h5py: Any, out: Any, name: str, text: str) -> None:
    """As H5LTmake_dataset_string: of fixed length, with a zero at the end, which Caffe relies on."""
    value = text.encode() + b"\0"
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(value))
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    space = h5py.h5s.create(h5py.h5s.SCALAR)
    dataset = h5py.h5d.create(out.id, name.encode(), kind, space)
    dataset.write(space, space, np.array(value, f"S{len(value)}"), mtype=kind)
