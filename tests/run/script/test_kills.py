"""Scripts of a run that are killed, added and taken away: each record is trained once, and the run ends well."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.rows import Finding, row
from tests.faults.scripts import (
    EACH_ONCE,
    EPOCHS,
    RECORDS,
    SCRIPT_MODES,
    options_of,
    trained,
)
from tests.faults.scripts import FIT as SCRIPT
from tests.run.script.test_run_command import WAIT_S, run, script_of
from tests.support.commands import Commands, how_loaded, wait_until
from tests.support.invariants import read_lines

pytestmark = [pytest.mark.ray, pytest.mark.redis]


def merged(folder: Path) -> int:
    """How many positions of all epochs are in the center."""
    log = folder / "run" / "metrics.jsonl"
    if not log.exists():
        return 0
    whole = [json.loads(line) for line in log.read_text().split("\n")[:-1]]
    return trained(whole).total()


def pauses_after_deaths(lines: list[dict[str, object]]) -> list[float]:
    """Seconds from each death to the next result that was merged."""
    times = [(line["event"], line.get("decision"), float(str(line["time"]))) for line in lines]
    found = []
    for place, (event, _, when) in enumerate(times):
        after = (at for what, how, at in times[place:] if what == "result" and how == "merged")
        if event == "left" and (then := next(after, None)) is not None:
            found.append(then - when)
    return found


@row(1, "a user's script killed three times", SCRIPT_MODES, usual="sync")
def test_each_record_is_trained_once_whichever_script_is_killed(
    speedo: Commands, tmp_path: Path, mode: str, finding: Finding
) -> None:
    each_record_is_trained_once(speedo, tmp_path, mode, 3, 0.25, finding)


@row(15, "users' scripts killed, added and taken away, 20 times", SCRIPT_MODES)
def test_each_record_is_trained_once_whoever_dies_joins_or_leaves(
    speedo: Commands, tmp_path: Path, mode: str, finding: Finding
) -> None:
    each_record_is_trained_once(speedo, tmp_path, mode, 20, 1.2, finding)


def each_record_is_trained_once(
    speedo: Commands, tmp_path: Path, mode: str, events: int, pause: float, finding: Finding
) -> None:
    chance = random.Random(f"{mode} {events}")
    process = speedo.start(
        *("run", "--run-dir", "run", "--workers", "4", "--restarts", "100"),
        *(*options_of(mode), str(SCRIPT), "none", str(pause * how_loaded())),
    )
    happened, wanted = list[str](), 4
    deadline = time.monotonic() + 2 * WAIT_S * how_loaded()
    while len(happened) < events and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        done = merged(tmp_path) / (RECORDS * EPOCHS)
        if done < 0.9 * (len(happened) + 1) / (events + 1):
            continue
        what = chance.choice(["kill", "kill", "scale"]) if events > 3 else "kill"
        if what == "kill" and (there := speedo.scripts(SCRIPT)):
            with suppress(psutil.Error):
                chance.choice(there).kill()
        elif what == "scale":
            wanted = chance.choice([count for count in (2, 3, 4, 5) if count != wanted])
            speedo.start("scale", str(wanted))
        happened.append(what)
    _, errors = process.communicate(timeout=2 * WAIT_S)
    print(mode, happened, errors[-3000:])
    assert process.returncode == 0
    assert len(happened) == events
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    for seconds in pauses_after_deaths(lines):
        finding.recovered(seconds)
    assert trained(lines) == EACH_ONCE
    assert speedo.left() == []


@pytest.mark.parametrize("overlap", ["none", pytest.param("all", marks=pytest.mark.matrix)])
def test_the_last_records_of_workers_set_aside_or_dead_are_trained_by_those_that_wait_for_them(
    speedo: Commands, tmp_path: Path, overlap: str
) -> None:
    """Worker 1 hangs in its last batch, worker 2 gets NaN in its own; worker 3 loads for longer than the run takes."""
    process = speedo.start(
        *("run", "--run-dir", "run", "--workers", "3", "--restarts", "0"),
        *("--mode", "async", "--overlap", overlap, str(SCRIPT), "ends-badly"),
    )
    wait_until(lambda: merged(tmp_path) == RECORDS * EPOCHS - 16, WAIT_S)
    speedo.start("scale", "4")
    wait_until(lambda: len(speedo.scripts(SCRIPT)) == 4, WAIT_S)
    time.sleep(1.0)  # worker 0 waits by now
    assert merged(tmp_path) == RECORDS * EPOCHS - 16, "worker 0 has what others hold"

    (tmp_path / "go").touch()
    # They were lost: worker 0 took the worker set aside for one that waits, as worker 1 does, for ever.
    wait_until(lambda: merged(tmp_path) == RECORDS * EPOCHS - 8, WAIT_S)

    script_of(speedo, 1).kill()
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, f"the run waited for a worker that is not started: {errors}"
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert trained(lines) == EACH_ONCE
    assert {line["worker"] for line in lines if line["event"] == "set-aside"} <= {2}
    finish = next(line for line in lines if line["event"] == "finish")
    assert finish["complete"]
    assert finish["reason"] == "every record of every epoch is trained"


def test_a_script_that_is_killed_when_all_is_trained_ends_the_run_well(
    speedo: Commands, tmp_path: Path
) -> None:
    """The only worker, between its last step and the end of its part."""
    status, _, errors = run(speedo, "--workers", "1", "--mode", "easgd", str(SCRIPT), "dies-at-end")
    assert status == 0, errors
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert trained(lines) == EACH_ONCE
    finish = next(line for line in lines if line["event"] == "finish")
    assert finish["reason"] == "every record of every epoch is trained"
