"""A host whose worker has died keeps a process that has loaded what the next one needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from speedo.actors import spare_worker
from speedo.actors.spare_worker import PLENTY, SHORT, SpareWorker
from tests.faults.running import Run, Watched
from tests.faults.scripts import ScriptRun, kept, trained
from tests.support.commands import LOADED, Commands, commands
from tests.support.invariants import read_lines
from tests.support.processes import words_of
from tests.support.sabotaged_net import write_problem

FIT_TORCH = Path(__file__).parents[1] / "run" / "script" / "scripts" / "fit_torch.py"


class Loading:
    """Counts what is begun and ended in place of Ray."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended, self.free = 0, 0, PLENTY
        monkeypatch.setattr(spare_worker, "loading", self._begin)
        monkeypatch.setattr(spare_worker.ray, "kill", self._end)
        monkeypatch.setattr(spare_worker, "free_memory", lambda: self.free)

    def _begin(self, settings: Any, count: int) -> tuple[object, object]:
        self.begun += 1
        return object(), object()

    def _end(self, actor: object) -> None:
        self.ended += 1


def test_memory_decides_whether_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, spare = Loading(monkeypatch), SpareWorker()
    settings: Any = None
    spare.look(settings, 2, 1000.0)
    assert seen.begun == 0, "it is not due"
    spare.due = 1001.0
    seen.free = PLENTY - 1
    spare.look(settings, 2, 1002.0)
    assert seen.begun == 0
    seen.free = PLENTY
    spare.look(settings, 2, 1003.0)
    spare.look(settings, 2, 1004.0)
    assert (seen.begun, seen.ended) == (1, 0)
    seen.free = SHORT
    spare.look(settings, 2, 1005.0)
    assert seen.ended == 0
    seen.free = SHORT - 1
    spare.look(settings, 2, 1006.0)
    assert (seen.begun, seen.ended) == (1, 1)
    seen.free = PLENTY
    spare.look(settings, 2, 1007.0)
    spare.look(settings, 3, 1008.0)
    assert (seen.begun, seen.ended) == (3, 2), "with another number of workers come other threads"


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.caffe
def test_the_second_death_finds_a_worker_loaded_and_a_spare_that_is_killed_costs_nothing(
    tmp_path: Path,
) -> None:
    problem = write_problem(tmp_path / "problem", engine="caffe")
    with commands(tmp_path) as speedo:
        run = Run(speedo, problem, "easgd")
        run.has_begun()
        kill_one(run)
        spare = the_spare(run)
        kill_one(run)
        assert spare in run.workers().values()
        the_spare(run).kill()
        kill_one(run)
        run.stop_and_check()
        assert speedo.left() == []


@pytest.mark.ray
@pytest.mark.redis
def test_the_second_death_of_a_script_finds_a_python_loaded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with commands(tmp_path) as speedo:
        words = (str(FIT_TORCH), "8", "sgd", "deltas", "0.2")
        run = ScriptRun(speedo, "async", "--workers", "2", "--restarts", "9", *words)
        run.has_begun(2)
        assert kill_script(run) == "cold"
        rests(run, lambda: waiting(speedo))
        assert kill_script(run) == "loaded"
        rests(run, lambda: waiting(speedo))
        waiting(speedo)[0].kill()
        assert kill_script(run) == "cold"
        run.ends(0)
        lines = read_lines(run.dir / "metrics.jsonl")
        found = trained(kept(lines))
        assert set(found.values()) == {1}
        assert len(found) == 2 * 1190
        assert speedo.left() == []


def kill_script(run: ScriptRun) -> str:
    """Kill one that runs; how the one began that is in the run in its place."""
    before, there = {one.pid for one in running(run)}, len(run.lines("joined"))
    running(run)[0].kill()
    run.wait_for(lambda: len(run.lines("joined")) > there)
    (new,) = [one for one in running(run) if one.pid not in before]
    return "loaded" if LOADED in words_of(new) else "cold"


def running(run: ScriptRun) -> list[psutil.Process]:
    return run.speedo.scripts(FIT_TORCH)


def waiting(speedo: Commands) -> list[psutil.Process]:
    """Pythons that have loaded, or do so, and have no place."""
    those = {one.pid for one in speedo.scripts(FIT_TORCH)}
    return [one for one in speedo.named(LOADED) if one.pid not in those]


def kill_one(run: Run) -> None:
    """Kill a worker, and wait until another one is in the run in its place."""
    there = len(run.lines("joined"))
    run.workers()[0].kill()
    run.wait_for(lambda: len(run.lines("joined")) > there)


def the_spare(run: Run) -> psutil.Process:
    """The worker's process that has no place, once it has loaded."""

    def found() -> list[psutil.Process]:
        working = {one.pid for one in run.workers().values()}
        return [one for one in run.speedo.named("ray::WorkerActor") if one.pid not in working]

    return rests(run, found)


def rests(run: Watched, found: Callable[[], list[psutil.Process]]) -> psutil.Process:
    """The one process of these, once it computes no more."""

    def does() -> bool:
        computed = [sum(one.cpu_times()) for one in found()]
        time.sleep(1.0)
        return len(computed) == 1 and computed == [sum(one.cpu_times()) for one in found()]

    run.wait_for(does)
    return found()[0]
