"""What the run directory does not take goes where there is room."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from speedo.errors import EngineError
from speedo.run.outputs import Outputs
from tests.support.disks import fill, read_only, small_disk


def write(path: Path) -> None:
    path.write_text("the model")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    found = {name: tmp_path / name for name in ("run", "home", "temporary")}
    for folder in found.values():
        folder.mkdir()
    monkeypatch.setenv("HOME", str(found["home"]))
    monkeypatch.setattr("tempfile.tempdir", str(found["temporary"]))
    monkeypatch.setattr("speedo.run.outputs.LAST_PLACES", ())
    return found


def test_what_fits_stays_where_it_belongs(places: dict[str, Path]) -> None:
    outputs = Outputs(places["run"])
    assert outputs.keep("model", write) == places["run"] / "model"
    assert outputs.problems == []
    assert not list(places["home"].iterdir())


@pytest.mark.processes
def test_the_first_place_with_room_takes_all_that_follows(places: dict[str, Path]) -> None:
    with read_only(places["run"]), read_only(places["home"]):
        outputs = Outputs(places["run"])
        model = outputs.keep("model", write)
        assert model.parent.parent == places["temporary"]
        assert model.parent.stat().st_mode & 0o777 == 0o700
        assert outputs.keep("result", write).parent == model.parent
        assert outputs.keep_rest("log", b"one\ntwo\n", "No space left on device") == 0
        assert (model.parent / "log").read_bytes() == b"one\ntwo\n"
        assert outputs.problems[0] == (
            f"{places['run'] / 'model'} could not be written (Read-only file system): kept in {model} instead; make "
            f"room in {places['run']} and move it there"
        )
        assert outputs.problems[2].startswith(f"the last 2 lines of {places['run'] / 'log'} ")


@pytest.mark.processes
def test_a_full_place_is_passed_over_and_left_clean(places: dict[str, Path]) -> None:
    with small_disk(places["home"] / "disk", "64k"), read_only(places["run"]):
        home = places["home"] / "disk"
        fill(home)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(home))
            model = Outputs(places["run"]).keep("model", write)
        assert model.parent.parent == places["temporary"]
        assert [path.name for path in home.iterdir()] == ["somebody's file"]


@pytest.mark.processes
def test_where_there_is_no_room_at_all_every_place_is_named(places: dict[str, Path]) -> None:
    with ExitStack() as stack:
        for folder in places.values():
            stack.enter_context(read_only(folder))
        outputs = Outputs(places["run"])
        with pytest.raises(EngineError) as told:
            outputs.keep("model", write)
        for folder in places.values():
            assert str(folder) in str(told.value)
        assert outputs.keep_rest("log", b"one\n", "No space left on device") == 1
