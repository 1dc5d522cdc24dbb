"""Rows 10 and 14: messages that are lost, repeated or late; a clock that jumps."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path

import pytest

from speedo.master.plan import Plan
from tests.faults.rows import Finding, row
from tests.faults.running import Run
from tests.support.commands import Commands
from tests.support.sabotaged_net import order
from tests.support.schedules import Schedule
from tests.support.schedules import run as simulate
from tests.support.simulation.world import Faults
from tests.support.store_server import OwnRedis

SPEEDO = Path(__file__).parents[2] / "speedo"
RATES = (0.01, 0.05, 0.2)


@pytest.mark.slow
@row(10, "1 to 20 % of messages lost, repeated, late (simulator)", usual="async")
def test_the_center_is_that_of_the_accepted_results_whatever_happens_to_messages(
    mode: str, finding: Finding
) -> None:
    """The checker replays what was accepted, without faults, and compares each version bit by bit."""
    merged = faults = 0
    for seed in range(30):
        rate = RATES[seed % len(RATES)]
        checker = simulate(
            Schedule(
                {"mode": mode, "workers": 4},
                Plan(6, max_iter=120, workers=4),
                share=6,
                speeds=(0.5, 1.0, 3.0),
                latency_s=0.05,
                jitter=0.9,
                faults=Faults(lose=rate, repeat=rate, late=rate, return_s=0.3),
                script=(),
                momentum=0.9,
                seed=seed,
            )
        )
        merged += checker.counts["merged"]
        faults += checker.counts["late"]
    assert merged > 3000
    assert faults > 100
    finding.note = f"{merged} results merged, {faults} late or repeated ones refused, in 30 runs"


JUMPING = """
import time
_real, _real_ns = time.time, time.time_ns

def _jump():
    try:
        with open({file!r}) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0

time.time = lambda: _real() + _jump()
time.time_ns = lambda: _real_ns() + _jump() * 1_000_000_000
"""


def jump(file: Path, seconds: int, server: OwnRedis) -> None:
    """Move the wall clock of every Python; and let expire in Redis what it would by such a clock."""
    new = file.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(file)
    store = server.admin()
    for _ in range(20 if seconds > 0 else 0):
        for key in server.keys("payload"):
            if store.ttl(key) > 0:
                store.delete(key)


@row(14, "wall clock of every process jumps an hour on, then two back")
@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.caffe
def test_a_clock_that_jumps_has_no_effect(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """A payload in flight may be lost, for Redis reckons expiry by the wall clock; that is told, and blames nobody."""
    home, clock = speedo.folder / "home", speedo.folder / "clock"
    home.mkdir()
    (home / "sitecustomize.py").write_text(JUMPING.format(file=str(clock)))
    path = os.pathsep.join([str(home), *filter(None, [os.environ.get("PYTHONPATH")])])
    with OwnRedis() as server:
        run = Run(
            speedo, problem, mode, *server.options,
            environment={"PYTHONPATH": path, **server.environment},
        )  # fmt: skip
        run.has_begun()
        order(problem, "0 tell", "1 tell")
        for seconds in (3600, -3600):
            jump(clock, seconds, server)
            finding.recovered(run.recovery(time.monotonic()))
            seen = time.monotonic()
            while time.monotonic() < seen + 3:  # deadlines are looked at in between
                run.goes_on(5)
            told = [float(problem.with_name(f"clock-{worker}").read_text()) for worker in (0, 1)]
            assert all(abs(one - time.time() - seconds) < 600 for one in told), "it did not jump"
        lines = run.stop_and_check()
    assert not [line for line in lines if line["event"] in ("left", "set-aside", "store")]
    lost = [line["reason"] for line in lines if line.get("decision") == "refused"]
    told = (" is not in ", " while it was read", " lost chunks of ")
    assert all(any(part in reason for part in told) for reason in lost), lost
    assert max(line["time"] for line in lines) < 1800
    finding.note = f"no worker left; {len(lost)} payloads lost in Redis"


# What shows a time to people, or compares the clocks of two machines for them; and a file's age in seconds.
TELLS = {
    "actors/join/master_facts.py",
    "launch/commands.py",
    "watch/console.py",
    "watch/control_socket.py",
    "watch/first_failure.py",
    "watch/export/caffe_log.py",
    "watch/export/prometheus.py",
    "watch/export/tensorboard.py",
    "run/build.py",
    "run/exports.py",
    "run/prepare.py",
    "run_dir/process_logs.py",
    "run/run_facts.py",
    "watch/live/history.py",
    "study/comparison/sequential.py",
}
WALL = {"time", "time_ns", "now", "today", "utcnow", "localtime", "strftime"}


def wall_clocks(source: str) -> list[int]:
    """Lines that call a clock which may jump."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in ("time", "datetime", "date"):
                found += [node.lineno] if node.func.attr in WALL else []
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [node.lineno for name in node.names if name.name in WALL]
    return found


@pytest.mark.slow
def test_no_decision_is_made_by_a_clock_that_may_jump() -> None:
    assert wall_clocks("import time\nx = time.time()\nfrom time import time") == [3, 2]
    using = {
        str(file.relative_to(SPEEDO))
        for file in SPEEDO.rglob("*.py")
        if wall_clocks(file.read_text(encoding="utf-8"))
    }
    assert using <= TELLS, using - TELLS
