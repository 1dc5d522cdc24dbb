"""What holds for the script of each library: by itself it trains as without us, and so it does in other modes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.scripts import trained
from tests.run.script.test_run_command import run
from tests.support.commands import Commands
from tests.support.invariants import read_lines

SCRIPTS = Path(__file__).parent / "scripts"
RIGHT = {
    "accelerate": {"accumulates": 2, "rest": 0.5},
    "hugging_face": {"accumulates": 2},
    "lightning": {"decay": 0.5},
    "skorch": {},
}
OFTEN = "accelerate"  # in the default suite: it is imported soonest
pytestmark = [pytest.mark.torch, pytest.mark.libraries]
libraries = pytest.mark.parametrize(
    "library",
    [pytest.param(one, marks=() if one == OFTEN else pytest.mark.matrix) for one in RIGHT],
)


@pytest.mark.processes
@libraries
def test_a_script_by_itself_trains_as_without_us(tmp_path: Path, library: str) -> None:
    import torch

    from tests.integrations.one_process import BATCH, EPOCHS, RECORDS, WORKERS, one_process

    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{library}_script.py"), str(BATCH * WORKERS), "RANK.pt"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Counter(re.findall(r"record (\d+)\n", done.stdout)).total() == EPOCHS * RECORDS
    torch.testing.assert_close(
        torch.load(tmp_path / "0.pt"), one_process(**RIGHT[library]), rtol=0, atol=1e-5
    )


@pytest.mark.matrix
@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("mode", ["weed-out", "easgd"])
@pytest.mark.parametrize("library", RIGHT)
def test_other_modes_train_each_record_once(
    speedo: Commands, tmp_path: Path, library: str, mode: str
) -> None:
    """Also if a library ends its epochs by the length of its loader, and workers are not equally fast."""
    from tests.integrations.one_process import EACH_ONCE

    words = ("--workers", "2", "--mode", mode, "--local-steps", "2")
    script = SCRIPTS / f"{library}_script.py"
    status, _, errors = run(speedo, *words, str(script), "4", str(tmp_path / "RANK.pt"))
    assert status == 0, errors
    assert trained(read_lines(tmp_path / "run" / "metrics.jsonl")) == EACH_ONCE


@pytest.mark.matrix
@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("library", RIGHT)
def test_a_worker_that_is_started_again_goes_on_with_the_rate_of_the_others(
    speedo: Commands, tmp_path: Path, library: str
) -> None:
    script = SCRIPTS / f"{library}_script.py"
    status, _, errors = run(
        speedo, "--workers", "2", str(script), "4", str(tmp_path / "RANK.pt"), "0.4"
    )
    assert status == 0, errors
    logs = [(tmp_path / "run" / "logs" / f"worker-{rank}.log").read_text() for rank in (0, 1)]
    stayed, again = (re.findall(r"^rate (.*)", log, re.MULTILINE) for log in logs)
    events = [line["event"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert events.count("joined") == 3
    assert float(stayed[-1]) < 0.5 * float(stayed[0])
    assert again[-2:] == stayed[-2:]
