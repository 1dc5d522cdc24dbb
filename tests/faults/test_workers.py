"""Rows 1, 2, 9, 18: workers that are killed, hang, crawl or crash."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from speedo.actors.death_causes import SILENT
from speedo.actors.worker_process import STOPPED
from speedo.watch.first_failure import kept_failure
from tests.faults.rows import WITH_TORCH, Finding, Findings, row, scenario
from tests.faults.running import OVERLAP, OVERLAPPING, Run, stand_still
from tests.support.commands import Commands
from tests.support.invariants import check_too_few
from tests.support.sabotaged_net import order

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
NOTICED_S = 10.0
STRIKES = 3
CAUSES = {
    "check": "Check failed",
    "abort": "Aborted",
    "segfault": "SIGSEGV",
    "kill": SILENT,
}
COMPUTING = "worker killed while it computes"
PUSHING = "worker killed in the middle of a push"
PUSHED = "worker killed after the push, before the message"
ALL_KILLED = "all workers killed; their host starts them again"
POINTS = {COMPUTING: "worker-fetched", PUSHING: "worker-pushing", PUSHED: "worker-pushed"}
TURNS = 20  # of a worker until it is killed in the last of them


@scenario({**dict.fromkeys(POINTS, 1), ALL_KILLED: 2}, usual="async", torch=WITH_TORCH)
def test_workers_that_are_killed_come_back(
    speedo: Commands, problem: Path, mode: str, findings: Findings
) -> None:
    """Worker 1 is killed at each point of a turn, its successor at the next one; then both workers are."""
    run, done = killed_at(speedo, problem, mode, *POINTS.values())
    order(problem, "0 sleep 0.05")  # it need not compute all the time while the other comes back
    for times, (fault, file) in enumerate(zip(POINTS, done, strict=True), start=1):
        with findings.tries(fault) as finding:
            is_killed(run, file, times, finding)
    with findings.tries(ALL_KILLED) as finding:
        before = len(run.lines("left"))
        for worker in run.workers().values():
            worker.kill()
        since = time.monotonic()
        run.wait_for(lambda: len(run.lines("left")) == before + 2, NOTICED_S)
        finding.recovered(run.recovery(since, 30))
        run.wait_for(lambda: run.merged(0, 2) and run.merged(1, before + 2))
        finding.note = f"both back in {time.monotonic() - since:.1f} s"
        run.goes_on()
    run.stop_and_check()
    run.failed_first("worker 1", SILENT)


def killed_at(
    speedo: Commands, solver: Path, mode: str, *points: str, options: tuple[str, ...] = ()
) -> tuple[Run, list[Path]]:
    """A run whose worker 1 is killed at a point of its 20th turn, its successor at the next; the files that tell so."""
    done = [speedo.folder / "done", *(speedo.folder / f"done.{n}" for n in range(1, len(points)))]
    run = Run(
        speedo, solver, mode, "--restarts", "10", *options,
        environment={
            "SPEEDO_FAILPOINT": " ".join(f"{point}:1@{TURNS}" for point in points),
            "SPEEDO_FAILPOINT_DONE": str(done[0]),
        },
    )  # fmt: skip
    return run, done


def is_killed(run: Run, done: Path, incarnation: int, finding: Finding) -> None:
    run.wait_for(done.exists)
    since = time.monotonic()
    finding.recovered(run.recovery(since))
    run.wait_for(lambda: len(run.lines("left")) == incarnation, NOTICED_S)
    noticed = time.monotonic() - since
    run.wait_for(lambda: run.merged(1, incarnation + 1))
    finding.note = f"noticed in {noticed:.1f} s, back in {time.monotonic() - since:.1f} s"
    left = run.lines("left")[-1]
    assert (left["worker"], left["incarnation"]) == (1, incarnation)
    own = [line for line in run.lines("result") if line["worker"] == 1]
    # The turn that was cut short left nothing that anybody took for a result.
    assert len([line for line in own if line["incarnation"] == incarnation]) == TURNS - 1
    assert not [line for line in own if line["decision"] == "refused"]


@row(
    1,
    "worker killed in the middle of a push, with its next turn under way",
    OVERLAPPING,
    "easgd",
    torch=OVERLAPPING,
)
def test_a_worker_killed_between_two_turns_that_overlap(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """What it was computing is lost with what it was sending, and neither is merged."""
    run, (done,) = killed_at(speedo, problem, mode, POINTS[PUSHING], options=OVERLAP)
    is_killed(run, done, 1, finding)
    lines = run.stop_and_check()
    assert len([line for line in lines if line["event"] == "left"]) == 1
    run.failed_first("worker 1", SILENT)


@row(1, "worker killed while it waits", ("sync", "partial"), torch=("sync",))
def test_a_worker_killed_while_it_waits(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """Its mate sleeps, so it has no turn when it dies."""
    run = Run(speedo, problem, mode)
    run.has_begun()
    order(problem, "0 sleep 4")
    before = run.version
    run.wait_for(lambda: run.version > before, 10)  # what was under way has ended
    time.sleep(1.0)
    victim = run.workers()[1]
    order(problem)
    victim.kill()
    since = time.monotonic()
    run.wait_for(lambda: run.lines("left"), NOTICED_S)
    noticed = time.monotonic() - since
    finding.recovered(run.recovery(since))
    run.wait_for(lambda: run.merged(1, 2))
    finding.note = f"noticed in {noticed:.1f} s, back in {time.monotonic() - since:.1f} s"
    run.stop_and_check()


@row(2, "all workers killed, and none is started again")
def test_all_workers_killed_for_good(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode, "--restarts", "0")
    run.has_begun()
    for worker in run.workers().values():
        worker.kill()
    since = time.monotonic()
    said = run.ends(3)
    assert f"every worker died, the last: {SILENT}" in said
    assert "failed first: worker " in said
    assert [one.process for one in kept_failure(run.dir).followed][-1] == "the run"
    finding.note = (
        f"ended in {time.monotonic() - since:.1f} s, with a checkpoint of the last version"
    )
    lines = run.check()
    version = run.version
    kept = [line["version"] for line in lines if line["event"] == "checkpoint"]
    assert kept == [version]
    assert list((run.dir / "checkpoints").glob(f"*{version}.checkpoint"))


@row(
    9,
    "straggler: every turn takes far longer than the others'",
    usual="sync",
    torch=(*WITH_TORCH, "partial"),
)
def test_a_straggler_does_not_hold_the_others_up_more_than_its_mode_says(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """Counted, not timed: what the others merge while the straggler merges little."""
    backup = ("--mode", "backup_workers=1") if mode == "sync" else ()
    run = Run(speedo, problem, mode, "--workers", "3", *backup)
    run.has_begun(30)
    since = time.monotonic()
    order(problem, "2 sleep 1.5")
    finding.recovered(run.recovery(since))
    before = len(
        [line for line in run.results("merged", "late", "discarded") if line["worker"] == 2]
    )
    version = run.version

    def own() -> int:
        told = run.results("merged", "late", "discarded")
        return len([line for line in told if line["worker"] == 2]) - before

    run.wait_for(lambda: own() >= 4)
    turns, versions = own(), run.version - version
    order(problem)
    if mode == "partial":  # nobody is more than --max-advance turns ahead: 2, by default
        counts = [0, 0, 0]
        ahead = 0
        for line in run.merged():
            counts[line["worker"]] += 1
            ahead = max(ahead, max(counts) - min(counts))
        assert ahead <= 3, counts
        finding.note = f"at most {ahead} turns ahead"
    else:
        assert versions > 5 * turns
        finding.note = f"{versions} versions in {turns} turns of the straggler"
    lines = run.stop_and_check()
    assert not [line for line in lines if line["event"] == "left"]
    late = [line for line in lines if line.get("decision") in ("late", "discarded")]
    if mode in ("sync", "weed-out"):
        assert [line for line in late if line["worker"] == 2]


@row(9, "worker hangs (SIGSTOP)", torch=WITH_TORCH)
def test_a_hung_worker_is_evicted_and_started_again(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    run = Run(speedo, problem, mode)
    run.has_begun()
    victim = run.workers()[1]
    stand_still(victim)
    since = time.monotonic()
    run.wait_for(lambda: run.lines("left"), 60)
    finding.note = f"evicted after {time.monotonic() - since:.1f} s"
    finding.recovered(run.recovery(time.monotonic()) + (time.monotonic() - since))
    (left,) = run.lines("left")
    assert left["cause"] == STOPPED
    victim.wait(120)
    run.wait_for(lambda: run.merged(1, 2))
    run.stop_and_check()
    failed = run.failed_first("worker 1", STOPPED, "its process was stopped by a signal (SIGSTOP)")
    assert failed.pid == victim.pid


@row(18, "Caffe FATAL, segmentation fault or abort, again and again", usual="weed-out")
def test_a_worker_that_crashes_again_and_again_is_given_up_with_the_cause(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    how = {
        "sync": "check",
        "async": "abort",
        "partial": "segfault",
        "weed-out": "check",
        "easgd": "segfault",
    }[mode]
    given_up(speedo, problem, mode, how, finding)


@row(
    18,
    "segmentation fault, abort or SIGKILL, as for lack of memory, again and again",
    (),
    torch=("sync", "async", "easgd"),
)
def test_a_worker_of_pytorch_that_crashes_again_and_again_is_given_up_with_the_cause(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    how = {"sync": "abort", "async": "segfault", "easgd": "kill"}[mode]
    given_up(speedo, problem, mode, how, finding)


@row(2, "fewer workers left than --min-workers, once for a while and once for good", usual="sync")
def test_no_step_is_made_by_fewer_workers_than_needed(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    options = ("--restarts", "1", "--min-workers", "2", "--timeout", "join_timeout=10")
    run = Run(speedo, problem, mode, *options)
    run.has_begun()
    run.workers()[1].kill()
    finding.recovered(run.recovery(time.monotonic()))
    run.wait_for(lambda: run.merged(1, 2))
    run.workers()[1].kill()
    said = run.ends(3)
    assert "warning: the run waits for workers: 1 of at least 2 are there" in said
    assert "workers were left, 2 are needed" in said
    assert "go on with --resume" in said
    lines = run.check()
    waited = check_too_few(lines)
    assert waited == [False, True]
    assert [line["version"] for line in lines if line["event"] == "checkpoint"][-1] == run.version
    if mode == "sync":
        assert set(Counter(line["version"] for line in run.merged()).values()) == {2}


def given_up(speedo: Commands, problem: Path, mode: str, how: str, finding: Finding) -> None:
    """Worker 1 crashes in every turn; after two restarts its host starts it no more."""
    cause = CAUSES[how]
    run = Run(speedo, problem, mode, "--restarts", "2")
    run.has_begun()
    order(problem, f"1 {how}")
    since = time.monotonic()
    finding.recovered(run.recovery(since))
    run.wait_for(lambda: "gone, given up after 2 restarts" in run.log())
    finding.note = f"{how}: given up after 2 restarts, in {time.monotonic() - since:.0f} s"
    pauses = [f"restarting in {seconds} s" in run.log() for seconds in (1, 2)]
    assert pauses == [True, True]
    assert set(run.workers()) == {0}
    run.goes_on()
    lines = run.stop_and_check()
    causes = [line["cause"] for line in lines if line["event"] == "left"]
    assert len(causes) == 3
    assert all(cause in one for one in causes), causes
    assert cause in run.log()
    run.failed_first("worker 1", cause)


@row(
    18,
    "a layer fails, or finds no memory, again and again",
    (),
    torch=WITH_TORCH,
    usual_torch="sync",
)
def test_a_worker_whose_layer_fails_again_and_again_is_set_aside_with_the_cause(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """PyTorch raises where Caffe ends the process, so the worker can say what it was."""
    how, cause = {
        "sync": ("starve", "layer 'sig' (Sigmoid) found too little memory"),
        "async": ("raise", "layer 'sig' (Sigmoid) failed in PyTorch: shape"),
    }[mode]
    run = Run(speedo, problem, mode)
    run.has_begun()
    order(problem, f"1 {how}")
    since = time.monotonic()
    finding.recovered(run.recovery(since))
    run.wait_for(lambda: run.lines("set-aside"))
    finding.note = f"{how}: set aside in {time.monotonic() - since:.1f} s, after {STRIKES} refusals"
    run.wait_for(lambda: not run.workers().get(1))
    run.goes_on()
    lines = run.stop_and_check()
    refused = [line for line in lines if line.get("decision") == "refused"]
    assert [line["worker"] for line in refused] == [1] * STRIKES
    assert all(line["reason"].startswith(cause) for line in refused), refused
    (aside,) = [line for line in lines if line["event"] == "set-aside"]
    assert cause in aside["reason"]
    assert cause in run.log()
    run.failed_first("worker 1", cause)
