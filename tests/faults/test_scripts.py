"""Rows of users' scripts (`speedo run`, `speedo master --own`); more are in tests/run/script and tests/hosts."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest

from speedo.actors.worker_process import STOPPED
from tests.faults.rows import Finding, row
from tests.faults.running import BY_REDIS, HANG_S, STEPS_OF_THE_END, stand_still
from tests.faults.scripts import FIT, SCRIPT_MODES, ScriptRun
from tests.support.commands import Commands, free_port
from tests.support.disks import fill, small_disk
from tests.support.processes import environment_of

pytestmark = [pytest.mark.ray, pytest.mark.redis]
BEGUN = 3  # versions; in rounds of all workers a run has but 15
RIGHT = [1.0, -2.0, 3.0]
OFTEN = ("--checkpoint-interval", "0.5")


@row(3, "`speedo master --own` killed in mid-epoch and resumed, a user's script", SCRIPT_MODES)
def test_hosts_of_scripts_join_a_resumed_master_and_one_more_comes(
    speedo: Commands, mode: str, finding: Finding
) -> None:
    port = str(free_port())
    run = ScriptRun(speedo, mode, *OFTEN, "--own", "--port", port, "--workers", "2", command="master")  # fmt: skip
    at = ("worker", "--master", f"127.0.0.1:{port}")
    hosts = [speedo.start(*at, "--workers", "2", "--", "python", str(FIT), "none", "0.4")]
    run.has_begun(BEGUN)
    run.wait_for(lambda: run.lines("checkpoint"))
    run.process.kill()
    run.process.communicate()
    since = time.monotonic()
    run.resume("--own", "--port", port, "--workers", "3", command="master")
    hosts.append(speedo.start(*at, "--workers", "1", "--", "python", str(FIT), "none", "0.4"))
    run.wait_for(lambda: run.lines("resumed"))
    (resumed,) = run.lines("resumed")
    run.wait_for(lambda: run.merged_after(resumed))
    finding.recovered(time.monotonic() - since)
    run.ends(0)
    for host in hosts:
        _, errors = host.communicate(timeout=HANG_S)
        assert host.returncode == 0, errors
    lines = run.check()
    after = lines[lines.index(resumed) :]
    assert {line["worker"] for line in after if line["event"] == "result"} == {0, 1, 2}
    finding.note = f"with 3 workers after 2, from record {resumed['samples']} of 720"


@row(3, "the master of a user's scripts killed twice; another one goes on with them", SCRIPT_MODES)
def test_another_master_goes_on_with_the_same_scripts(
    speedo: Commands, mode: str, finding: Finding
) -> None:
    run = ScriptRun(speedo, mode, "--workers", "2", str(FIT), "none", "0.4")
    run.has_begun(BEGUN)
    for times in (1, 2):
        run.the("ray::MasterActor").kill()
        since = time.monotonic()
        run.wait_for(lambda times=times: len(run.lines("resumed")) == times)  # type: ignore[misc]
        resumed = run.lines("resumed")[-1]
        assert "the master's process died" in resumed["cause"]
        run.wait_for(lambda resumed=resumed: run.merged_after(resumed))  # type: ignore[misc]
        finding.recovered(time.monotonic() - since)
    run.ends(0)
    run.check()
    assert {line["incarnation"] for line in run.merged()} == {1}, "scripts were started again"
    result = json.loads((run.dir / "result.json").read_text())
    assert len(result["master_restarts"]) == 2
    assert result["merges_undone"] == 0


@row(
    3,
    "the master of `speedo run` killed at every step between the last merge and the end",
    SCRIPT_MODES,
)
def test_scripts_whose_master_dies_at_every_step_of_the_end_have_their_result(
    speedo: Commands, mode: str, finding: Finding
) -> None:
    environment = {
        "SPEEDO_FAILPOINT": " ".join(STEPS_OF_THE_END),
        "SPEEDO_FAILPOINT_DONE": str(speedo.folder / "done"),
    }
    run = ScriptRun(
        *(
            speedo,
            mode,
            *OFTEN,
            "--workers",
            "2",
            str(FIT),
            "none",
            "0.1",
        ),
        environment=environment,
    )
    run.ends(0)
    run.check()
    result = json.loads((run.dir / "result.json").read_text())
    assert result["complete"], result
    assert len(result["master_restarts"]) == len(STEPS_OF_THE_END)
    finding.note = "each record is in the model once"


@row(5, "the run's own Redis killed, a user's script", SCRIPT_MODES)
def test_scripts_wait_for_a_redis_that_comes_back_empty(
    speedo: Commands, mode: str, finding: Finding
) -> None:
    run = ScriptRun(speedo, mode, *BY_REDIS, "--workers", "3", str(FIT), "none", "0.5")
    run.has_begun(BEGUN)
    (server,) = [one for one in speedo.named("redis-server") if one.name() == "redis-server"]
    server.kill()
    finding.recovered(run.recovery(time.monotonic()))
    run.ends(0)
    causes = {line["cause"] for line in run.check() if line["event"] == "left"}
    assert causes == {"its script has ended"}


@row(9, "a user's script waits for something that never comes", SCRIPT_MODES, "sync")
def test_a_script_that_hangs_leaves_its_stack_and_is_started_again(
    speedo: Commands, mode: str, finding: Finding
) -> None:
    run = ScriptRun(speedo, mode, "--workers", "3", "--timeout", "8", str(FIT), "hangs", "0.3")
    run.wait_for(lambda: run.lines("left"))
    (left,) = run.lines("left")
    finding.recovered(run.recovery(time.monotonic()))
    run.ends(0)
    run.check()
    log = (run.dir / "logs" / "worker-1.log").read_text()
    assert re.search(r'fit\.py", line \d+ in waits_for_ever\n', log)
    assert f"speedo: ended by its host: {left['cause']}; its process was waiting" in log
    run.failed_first("worker 1", "no result for", ", in waits_for_ever)")


@row(9, "a user's script is stopped (SIGSTOP)", SCRIPT_MODES)
def test_a_script_that_is_stopped_is_killed_and_started_again(
    speedo: Commands, mode: str, finding: Finding
) -> None:
    run = ScriptRun(speedo, mode, "--workers", "3", str(FIT), "none", "0.7")
    run.has_begun(8)
    stand_still(
        next(
            one
            for one in speedo.scripts(FIT)
            if ".1.1" in environment_of(one).get("SPEEDO_WORKER", "")
        )
    )
    since = time.monotonic()
    run.wait_for(lambda: run.lines("left"))
    finding.note = f"its worker was given up after {time.monotonic() - since:.1f} s"
    finding.recovered(run.recovery(since))
    run.ends(0)
    run.check()
    run.failed_first("worker 1", STOPPED)


@row(11, "NaN in the weights of a user's script", SCRIPT_MODES)
def test_nan_of_a_script_is_refused_and_the_others_train_on(
    speedo: Commands, mode: str, finding: Finding
) -> None:
    # Started again on a fast machine, it would be set aside once more.
    run = ScriptRun(speedo, mode, "--workers", "3", "--restarts", "0", str(FIT), "nan", "0.1")
    said = run.ends(3)
    assert "the run ended early: every script has ended; worker 1 was set aside" in said
    assert "failed first: worker 1 on " in said
    lines = run.check()
    refused = [line for line in lines if line.get("decision") == "refused"]
    assert [line["worker"] for line in refused] == [1, 1, 1]
    assert all("not finite" in line["reason"] for line in refused)
    np.testing.assert_allclose(np.load(run.dir / "model.npz")["w"], RIGHT, atol=0.1)
    (aside,) = (line for line in lines if line["event"] == "set-aside")
    finding.note = f"set aside, {len(refused)} refusals"
    finding.recovered(
        next(
            line["time"]
            for line in lines
            if line.get("decision") == "merged" and line["time"] > aside["time"]
        )
        - aside["time"]
    )


@row(13, "checkpoint on a full disk, a user's script", SCRIPT_MODES)
def test_a_full_disk_costs_a_script_its_checkpoint_and_not_its_run(
    speedo: Commands, mode: str, finding: Finding
) -> None:
    folder = speedo.folder / "run" / "checkpoints"
    with small_disk(folder, "64k"):
        run = ScriptRun(speedo, mode, *OFTEN, "--workers", "2", str(FIT), "none", "0.4")
        run.has_begun(1)
        taken = fill(folder)
        run.wait_for(lambda: any(line["problem"] for line in run.lines("checkpoint")))
        finding.recovered(run.recovery(time.monotonic()))
        taken.unlink()
        run.wait_for(lambda: run.lines("checkpoint")[-1]["problem"] is None)
        run.ends(0)
        told = [line["problem"] for line in run.check() if line["event"] == "checkpoint"]
        assert any("No space left" in (one or "") for one in told)
    finding.note = "reported; training continued; written when there was room"


@row(13, "run directory on a disk that stays full, a user's script", SCRIPT_MODES)
def test_a_disk_that_stays_full_costs_a_script_no_model(
    speedo: Commands, mode: str, finding: Finding
) -> None:
    disk, home = speedo.folder / "disk", speedo.folder / "home"
    home.mkdir()
    with small_disk(disk, "64m"):
        run = ScriptRun(
            *(speedo, mode, "--workers", "2", str(FIT), "none", "0.2"),
            name="disk/run",
            environment={"HOME": str(home)},
        )
        run.has_begun(BEGUN)
        fill(disk)
        assert f"kept in {home}" in run.ends(4)
        (folder,) = home.glob("speedo-*")
        run.check(folder / "metrics.jsonl")
        np.testing.assert_allclose(np.load(folder / "model.npz")["w"], RIGHT, atol=0.1)
        result = json.loads((folder / "result.json").read_text())
        assert (result["samples"], result["log_lines_lost"]) == (720, 0)
    finding.note = "model, result and the last lines of the log kept in the home folder; status 4"
