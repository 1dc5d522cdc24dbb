"""An engine on a disk that is full: Caffe would abort the process, or leave a part of a model as if it were whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speedo.engines.solver import read_solver
from speedo.errors import EngineError
from tests.support.disks import fill, small_disk
from tests.support.nets import net_text, write_solver
from tests.support.solvers import weights, worker

pytestmark = pytest.mark.caffe
WIDE = """
layer { name: "wide" type: "InnerProduct" bottom: "data" top: "wide"
  inner_product_param { num_output: 4500 weight_filler { type: "xavier" } } }
layer { name: "sig" type: "Sigmoid" bottom: "wide" top: "top" }
"""


@pytest.mark.parametrize("net", [net_text(), net_text(WIDE)], ids=["3 kB", "1 MB"])
def test_a_model_without_room_is_told_and_leaves_no_part(home: Path, net: str) -> None:
    engine = worker(read_solver(write_solver(home, net)))
    disk = home / "disk"
    with small_disk(disk, "64k"):
        taken = fill(disk)
        with pytest.raises(EngineError) as told:
            engine.save(disk / "model.caffemodel")
        assert str(told.value) == (
            f"cannot write the model {disk / 'model.caffemodel'}: No space left on device"
        )
        assert list(disk.iterdir()) == [taken]
    engine.close()


def test_a_model_that_lacks_room_for_its_last_bytes_is_not_taken_for_whole(home: Path) -> None:
    engine = worker(read_solver(write_solver(home, net_text(WIDE))))
    engine.save(home / "whole.caffemodel")
    size = (home / "whole.caffemodel").stat().st_size
    disk = home / "disk"
    with small_disk(disk, str(size // 4096 * 4096)):
        with pytest.raises(EngineError, match="No space left on device"):
            engine.save(disk / "model.caffemodel")
        assert not list(disk.iterdir())
    engine.close()


def test_a_history_needs_no_disk(home: Path) -> None:
    with small_disk(home / "disk", "64k"):
        engine = worker(read_solver(write_solver(home, net_text(WIDE))), scratch=home / "disk")
        engine.step(2)
        fill(home / "disk")
        before, history = weights(engine), engine.history()
        engine.step(2)
        after = weights(engine)
        engine.load_weights(before)
        engine.load_history(history)
        assert engine.history() == history
        engine.step(2)
        assert np.isfinite(weights(engine)).all()
        assert not np.array_equal(after, before)
        engine.close()


def test_an_engine_without_a_place_for_its_files_says_so(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text()))
    with pytest.raises(
        EngineError, match=r"no folder for Caffe's small files in .*nowhere: No such"
    ):
        worker(spec, scratch=home / "nowhere")
