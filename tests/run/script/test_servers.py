"""`speedo run --servers` and `--overlap`: the center of a script is divided once worker 0 has brought its model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.rows import row
from tests.faults.scripts import kept, trained
from tests.support.commands import Commands, wait_for_line

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.usefixtures("forked_python")]
SCRIPT = Path(__file__).parent / "scripts" / "fit_wide.py"
RECORDS, EPOCHS, WAIT_S = 320, 3, 240
EACH_ONCE = Counter((epoch, position) for epoch in range(EPOCHS) for position in range(RECORDS))


def run(speedo: Commands, *words: str, **more: Any) -> subprocess.Popen[str]:
    return speedo.start("run", "--run-dir", "run", "--servers", "2", "--workers", "2", *words, **more)  # fmt: skip


def ended(process: subprocess.Popen[str], folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Log and standard error of a run that is over well; each record was trained once."""
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    assert trained(kept(lines)) == EACH_ONCE
    model = np.load(folder / "run" / "model.npz")["w"]
    for rank in (0, 1):  # both have what the run came to
        assert np.array_equal(np.load(folder / f"w{rank}.npy"), model)
    return lines, errors


@row(20, "a server of the center killed in a merge, a user's script", ("sync",), usual="sync")
def test_a_run_whose_server_is_killed_begins_again_and_the_model_is_one_processs(
    speedo: Commands, tmp_path: Path, mode: str
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    subprocess.run([sys.executable, str(SCRIPT), "32"], cwd=alone, check=True, timeout=60)
    process = run(
        *(speedo, "--mode", mode, "--checkpoint-interval", "0.001", str(SCRIPT), "16"),
        environment={
            "SPEEDO_FAILPOINT": "server-merging:1@10",
            "SPEEDO_FAILPOINT_DONE": str(tmp_path / "done"),
        },
    )
    _, errors = ended(process, tmp_path)
    assert (
        errors.count("is lost: its process died: the run begins again from the newest checkpoint")
        == 1
    )
    whole = np.load(alone / "w0.npy")
    assert abs(np.load(tmp_path / "w0.npy") - whole).max() < 1e-6 * abs(whole).max()


def test_every_mode_trains_each_record_once_also_what_is_compressed(
    speedo: Commands, tmp_path: Path
) -> None:
    phases = [
        word
        for mode in ("sync", "async", "partial", "weed-out", "easgd")
        for word in ("--phase", f"{mode}:12")
    ]
    _, errors = ended(
        run(speedo, "--mode", "hybrid", *phases, "--compress", "int8", str(SCRIPT), "16"), tmp_path
    )
    assert "warning" not in errors
    assert speedo.left() == []


@pytest.mark.matrix
def test_turns_that_overlap_train_each_record_once_and_all_are_merged(
    speedo: Commands, tmp_path: Path
) -> None:
    words = ("--mode", "easgd", "--local-steps", "3", "--overlap", "all", str(SCRIPT), "16", "0.05")
    lines, _ = ended(run(speedo, *words), tmp_path)
    results = [line for line in lines if line["event"] == "result"]
    # A worker's next turn is given out before its last one is merged.
    assert max(Counter(one["staleness"] for one in results)) > 1
    assert {line["decision"] for line in results} == {"merged"}


@pytest.mark.matrix
@pytest.mark.parametrize("overlap", ["none", "all"])
def test_a_script_that_is_started_again_is_let_in_by_the_servers(
    speedo: Commands, tmp_path: Path, overlap: str
) -> None:
    process = run(speedo, "--mode", "async", "--overlap", overlap, str(SCRIPT), "16", "1")
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":6,', WAIT_S)
    speedo.scripts(SCRIPT)[0].kill()
    asked = speedo.start("status", "--json")
    (told,) = json.loads(asked.communicate(timeout=WAIT_S)[0])["runs"]
    assert [(one["server"], one["state"]) for one in told["servers"]] == [(0, "serving"), (1, "serving")]  # fmt: skip
    lines, _ = ended(process, tmp_path)
    causes = [line["cause"] for line in lines if line["event"] == "left"]
    assert sum("killed by SIGKILL" in cause for cause in causes) == 1, causes
