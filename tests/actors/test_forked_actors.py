"""The actors that most tests of whole runs have instead of Ray's: their callers see what callers of Ray's see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked.commands import ROOT, ForkedProcess

SEEN = {
    "answers in order": [1, 2, 3, 4],
    "a named actor": 5,
    "an unknown name": "ValueError",
    "an error of ours": "task: StoreError: no room and of the store",
    "another error": "task: KeyError: 'odd'",
    "error of a future": [True, True],
    "late": True,
    "not ready": [0, 1],
    "ready": [1, 1],
    "an answer asked twice": ["slept", "slept"],
    "called back": True,
    "two threads meet": [0, 1],
    "one actor asks another": 7,
    "it knows itself": True,
    "processes of their own": True,
    "an actor handed on": [8],
    "it ends with its owner": True,
    "killed under a call": "actor",
    "called when gone": "actor",
    "its process is gone": True,
    "never made": "actor",
}

ON_RAY = """
from speedo.actors.ray_node import session
with session.head("t" * 32, "127.0.0.1", None, print) as head, head.connected():
    from tests.support.forked.contract import main  # it imports Ray, which has its settings now
    main()
"""


@pytest.mark.ray
def test_what_callers_see_on_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_RAY],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert _seen(done.stdout) == SEEN


@pytest.mark.processes
def test_what_callers_see_on_forks(tmp_path: Path) -> None:
    process = ForkedProcess(
        "tests.support.forked.contract:main", (), [], tmp_path, os.environ, tmp_path
    )
    said, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert _seen(said) == SEEN


def _seen(said: str) -> Any:
    return json.loads(said.splitlines()[-1])
