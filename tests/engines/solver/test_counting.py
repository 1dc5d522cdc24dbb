"""The training records of HDF5 files are counted, so hosts are compared and epochs known with them, too."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from speedo.engines.solver import SolverSpec, read_solver
from speedo.engines.solver.data_layers import count_records
from speedo.engines.solver.holding import holding_of
from speedo.errors import ClusterError
from tests.actors.test_host_manager import Desk
from tests.support.nets import LOSS, SMOOTH, write_solver

NET = f"""layer {{ name: "data" type: "HDF5Data" top: "data" top: "label"
  hdf5_data_param {{ source: "list.txt" batch_size: 4 }} }}{SMOOTH}{LOSS}"""


def host(folder: Path, *rows: int) -> SolverSpec:
    """A host's solver, with a file of so many rows each."""
    folder.mkdir()
    for number, count in enumerate(rows):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["data"] = np.zeros((count, 1, 8, 8), np.float32)
            file["label"] = np.zeros(count, np.float32)
    (folder / "list.txt").write_text("".join(f"{number}.h5\n" for number in range(len(rows))))
    return read_solver(write_solver(folder, NET, test_iter=None, test_interval=None))


def test_the_rows_of_all_files_of_the_list_are_the_records(tmp_path: Path) -> None:
    assert count_records(host(tmp_path / "a", 5, 3)) == 8


def test_rows_that_cannot_be_counted_are_not_known(tmp_path: Path) -> None:
    spec = host(tmp_path / "a", 5, 3)
    (tmp_path / "a" / "1.h5").write_bytes(b"\x89HDF\r\n\x1a\n and then nothing")
    assert count_records(spec) is None
    (tmp_path / "a" / "1.h5").unlink()
    assert count_records(spec) is None
    with h5py.File(tmp_path / "a" / "1.h5", "w") as file:
        file["other"] = np.zeros(3)
    assert count_records(spec) is None


def test_hosts_with_hdf5_are_compared_in_shard_and_make_up_an_epoch_together_in_own(
    tmp_path: Path,
) -> None:
    first = holding_of(host(tmp_path / "a", 5, 3), "a")
    second = holding_of(host(tmp_path / "b", 6), "b")
    desk = Desk()
    desk.board.records = first.records
    desk.supervisor.enlist("a", 1, 4, first)
    with pytest.raises(ClusterError, match="host b has 6 training records, but the master 8"):
        desk.supervisor.enlist("b", 1, 4, second)
    desk = Desk("own")
    desk.supervisor.enlist("a", 1, 4, first)
    desk.supervisor.enlist("b", 1, 4, second)
    assert desk.board.records == 14
