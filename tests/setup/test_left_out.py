"""Without PyTorch the tests of its engine are left out, and the last lines say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HIDES = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "torch" else real(name, *more)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.caffe
def test_what_was_left_out_is_said_last_with_the_way_to_have_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDES, "-p", "no:cacheprovider", "-k", "layer", "tests/engines/test_make.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    *_, told, summary = done.stdout.strip().splitlines()
    assert told == (
        "1 tests were left out: PyTorch is not installed; `TORCH=1 make test` installs what they need"
    )
    assert "1 skipped" in summary
