"""What failed first, of runs that are written down here; tests/faults has it of real ones."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from speedo.actors.death_causes import SILENT
from speedo.cli.main import main
from speedo.errors import (
    NOT_FINITE,
    CheckpointError,
    ClusterError,
    EngineError,
    FencedError,
    SpeedoError,
    StoreError,
)
from speedo.master.reasons import heard_again, not_heard, too_few_joined, too_few_left, turn_overdue
from speedo.run_dir.process_logs import STAMP
from speedo.watch.first_failure import (
    first_failure,
    first_failure_told,
    keep_failure,
    kept_failure,
)

BEGAN = 1_700_000_000.0
ALL_DIED = "every worker died, the last: "
CAFFE = """I1121 12:00:00.1 47 net.cpp:8] fine
F1121 12:00:00.2 47 math_functions.cu:26] Check failed: error == cudaSuccess (2 vs. 0) out of memory
*** Check failure stack trace: ***
    @ 0x7f google::LogMessage::Fail()
"""
SEGFAULT = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/net/layer.py", line 12 in forward
  File "/site/speedo/engines/pycaffe.py", line 80 in step
"""
RAISED = """Traceback (most recent call last):
  File "/home/me/train.py", line 31, in <module>
    main()
  File "/home/me/train.py", line 12, in main
    batch["image"]
KeyError: 'image'
"""
STACKS = """Thread 0x00007f (most recent call first):
  File "/site/speedo/exchange/channel.py", line 12 in get
"""
MISSING = "SpeeDO cannot be imported by the Python of Ray there (ModuleNotFoundError: No module named 'caffe'): install"
OTHER_NET = (
    "worker 1 has a net that differs from the master's: run the same SpeeDO and Caffe on every node"
)


@dataclass
class Told:
    """A run as its log tells it: events as (seconds, event, fields); notes and logs; and what must be named."""

    events: list[tuple[float, str, dict[str, Any]]]
    process: str
    cause: str
    words: str = ""
    host: str = ""
    followed: tuple[str, ...] = ()
    error: BaseException | None = None
    logs: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[float, str]] = field(default_factory=list)
    last: float = 60.0  # when its log ends


def joined(
    worker: int, host: str = "here", incarnation: int = 1
) -> tuple[float, str, dict[str, Any]]:
    fields = {"worker": worker, "incarnation": incarnation, "host": host, "process": 4711 + worker}
    return (1.0 + worker, "joined", fields)


def left(at: float, worker: int, cause: str) -> tuple[float, str, dict[str, Any]]:
    return (at, "left", {"worker": worker, "incarnation": 1, "cause": cause})


def refused(
    at: float, worker: int, reason: str, decision: str = "refused"
) -> tuple[float, str, dict[str, Any]]:
    return (at, "result", {"decision": decision, "worker": worker, "reason": reason})


def end(at: float, reason: str) -> tuple[float, str, dict[str, Any]]:
    return (at, "finish", {"complete": False, "reason": reason})


TWO = [joined(0), joined(1)]
FAR = [joined(0, "A:1f"), joined(1, "B:2e")]
CASES = {
    "out of memory": Told(
        [*TWO, left(30, 1, "killed by the kernel because memory ran out: use a smaller batch, or fewer workers"),
         refused(29.9, 0, "worker 1 has left the team")],
        "worker 1", "memory ran out", followed=("worker 0",),
    ),
    "a GPU out of memory, in Caffe": Told(
        [*TWO, left(30, 1, "Caffe stopped at math_functions.cu:26: Check failed: error == cudaSuccess")],
        "worker 1", "math_functions.cu:26", "out of memory", logs={"worker-1": CAFFE},
    ),
    "full disk on one host": Told(
        [*FAR, left(30, 1, "died without a message, because /l/worker-1.log cannot be written (No space left on "
                    "device): make room there")],
        "worker 1", "No space left", host="B:2e",
    ),
    "bad record": Told(
        [*TWO, end(30, "layer 'data' reads the record '00012' of /data/train, which is 3x28x28: create it again")],
        "the data", "record '00012'",
    ),
    "NaN on one worker": Told(
        [*TWO, *(refused(at, 1, NOT_FINITE) for at in (30, 31, 32)),
         refused(32, 0, "worker 1 of its team", "discarded"),
         (32, "set-aside", {"worker": 1, "reason": f"3 results in a row were refused, the last: {NOT_FINITE}"})],
        "worker 1", "not finite", followed=("worker 0",),
    ),
    "bad payload": Told(
        [*TWO, *(refused(at, 1, "the checksum of its payload is wrong") for at in (30, 31, 32)),
         (32, "set-aside", {"worker": 1, "reason": "3 results in a row were refused, the last: a checksum"})],
        "worker 1", "checksum",
    ),
    "Redis killed for good": Told(
        [*TWO, (30, "store", {"problem": "Redis at 10.0.0.1:6379 cannot be reached: connection refused"})],
        "the store", "10.0.0.1:6379", followed=("the run",),
        error=StoreError("Redis at 10.0.0.1:6379 cannot be reached for 120 s; iteration 40 is kept"),
    ),
    "Redis killed under workers that are lost with it": Told(
        [*TWO, left(30.2, 1, "ConnectionError: the store does not answer"),
         (30, "store", {"problem": "Redis at 10.0.0.1:6379 cannot be reached"}), end(31, ALL_DIED + "no store")],
        "the store", "cannot be reached", followed=("worker 1", "the run"),
    ),
    "link down": Told(
        [*FAR, left(45, 1, turn_overdue(14)), refused(46, 0, "its team lost worker 1", "discarded")],
        "host B:2e", "nothing was heard", host="B:2e", followed=("worker 1", "worker 0"),
        notes=[(36.0, "warning: " + not_heard("B:2e", 5.0))],
    ),
    "a host gone": Told(
        [*FAR, left(30, 1, "its process died")], "host B:2e", "its Ray node", host="B:2e", followed=("worker 1",),
        notes=[(33.0, "B:2e: the node is gone")],
    ),
    "hung NFS under the run directory": Told(
        [*TWO], "the disk", "has not answered for 31 s",
        error=CheckpointError("/nfs/run has not answered for 31 s: its disk hangs; look at the disk"),
    ),
    "library missing on one host": Told(
        [joined(0, "A:1f"), end(130, too_few_joined(1, 2, 120))], "host B:2e", "No module named 'caffe'", host="B:2e",
        followed=("the run",), notes=[(5.0, f"node B:2e is not used: {MISSING}")],
    ),
    "wrong prototxt on one host": Told(
        [joined(0, "A:1f")], "host B:2e", "a net that differs", host="B:2e", followed=("the run",),
        error=SpeedoError(f"nothing was trained: {too_few_joined(1, 2, 120)}"),
        notes=[(5.0, f"node B:2e is not used: {OTHER_NET}")],
    ),
    "segmentation fault": Told(
        [*TWO, left(30, 1, "native code failed: SIGSEGV (a segmentation fault in native code)"),
         left(30.3, 0, SILENT)],
        "worker 1", "SIGSEGV", "/net/layer.py:12, in forward", followed=("worker 0",), logs={"worker-1": SEGFAULT},
    ),
    "worker killed (SIGKILL)": Told(
        [*TWO, left(30, 1, SILENT), end(31, too_few_left(1, 2, 60))], "worker 1", "SIGKILL", "fetching",
        followed=("the run",), logs={"worker-1": "reading\nfetching\n" + STACKS},
    ),
    "master killed (SIGKILL)": Told(
        [*TWO], "the master", "killed", "[1234] merging",
        error=EngineError("the master's process died: killed; see /r/logs/master.log; continue with --resume /r"),
        logs={"master": "[1234] merging\n"},
    ),
    "master killed, and another went on": Told(
        [*TWO, (40, "resumed", {"epoch": 1, "version": 3, "iteration": 3, "samples": 9}), left(41, 1, SILENT)],
        "the master", "another master went on", followed=("worker 1",),
    ),
    "Ray's raylet killed": Told(
        [*TWO, left(30, 0, "its process died"), left(30.1, 1, SILENT)], "Ray's raylet", "raylet",
        error=EngineError("Ray's raylet process on this machine died; continue with --resume /r"),
        followed=("worker 0", "worker 1"), last=33.0,
    ),
    "member of a team hangs (SIGSTOP)": Told(
        [*FAR, refused(36, 0, "worker 1 does not come within 5 s"), left(45, 1, turn_overdue(15))],
        "worker 1", "no result for 15 s", "stopped by a signal", host="B:2e", followed=("worker 0",),
        logs={"hosts/B/worker-1": f"{STACKS}speedo: ended by its host: {turn_overdue(15)}; its process was "
              "stopped by a signal\nthe next one begins\n"},
    ),
    "tester dies": Told(
        [*TWO, (30, "finish", {"complete": True, "reason": "reached max_iter 9"}),
         (33, "test", {"version": 9, "problem": "The actor died: its process died"})],
        "the tester", "died", "math_functions.cu:26", logs={"tester": CAFFE},
    ),
    "script raises": Told(
        [*TWO, left(30, 1, "its script ended with status 1: KeyError: 'image'"),
         left(30.5, 0, "worker 1 has left the team: it raised")],
        "worker 1", "KeyError", "/home/me/train.py:12, in main", followed=("worker 0",), logs={"worker-1": RAISED},
    ),
    "script calls sys.exit": Told(
        [*TWO, left(30, 1, "its script ended with status 7: bye")], "worker 1", "status 7", logs={"worker-1": "bye\n"},
    ),
    "port taken": Told(
        [*TWO], "the run", "port 6379", error=ClusterError("port 6379 of 10.0.0.1 is in use: give another --port"),
    ),
    "a server lost": Told(
        [*FAR, left(31, 1, "server 0 is at another host now")], "server 0", "no answer for 5 s", host="B:2e",
        error=StoreError("server 0 at B:2e is lost (no answer for 5 s), and no host started it again within 60 s"),
        followed=("worker 1",), last=33.0,
    ),
    "a callback raises": Told(
        [*TWO, end(30, "stopped by an exception in on_test: ValueError: no")], "the callback on_test", "ValueError",
    ),
    "a worker that crashes again and again": Told(
        [*TWO, *(left(at, 1, "Caffe stopped at net.cpp:1: Check failed") for at in (30, 50, 90)),
         end(91, ALL_DIED + "x")],
        "worker 1", "net.cpp:1", followed=("the run",),
    ),
}  # fmt: skip


def written(folder: Path, told: Told) -> Path:
    """The run's directory."""
    (folder / "logs").mkdir()
    clock = {"at": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(BEGAN))}
    events = [(0.0, "clock", clock), *told.events, (told.last, "result", {"decision": "merged"})]
    lines = [
        json.dumps({"time": at, "event": event, **more}, separators=(",", ":"))
        for at, event, more in events
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    notes = [
        f"{time.strftime(STAMP, time.localtime(BEGAN + at))} {text}" for at, text in told.notes
    ]
    (folder / "train.log").write_text("\n".join([*notes, ""]))
    for name, text in told.logs.items():
        log = folder / f"{name}.log" if "/" in name else folder / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text)
    return folder


@pytest.mark.parametrize("told", CASES.values(), ids=CASES.keys())
def test_who_failed_first_and_why_and_who_followed(tmp_path: Path, told: Told) -> None:
    found = first_failure(written(tmp_path, told), told.error)
    assert found is not None
    assert (found.process, found.host) == (told.process, told.host), found
    assert told.cause in found.cause
    assert told.words in found.last_words
    assert bool(told.words) == bool(found.last_words)
    assert tuple(one.process for one in found.followed) == told.followed
    assert found.at
    assert found.lines()[0].startswith(f"failed first: {told.process}")


def test_a_process_that_hangs_failed_when_it_began_to(tmp_path: Path) -> None:
    found = first_failure(written(tmp_path, CASES["member of a team hangs (SIGSTOP)"]))
    assert found is not None
    assert found.seconds == 30.0
    assert [round(one.after_s, 1) for one in found.followed] == [6.0]


@pytest.mark.parametrize(
    "cause",
    ["its script has ended", "fewer workers are wanted", "takes a new shard: 1 of 2", "its host was stopped by X"],
)  # fmt: skip
def test_who_was_asked_to_go_has_not_failed(tmp_path: Path, cause: str) -> None:
    told = Told([*TWO, left(30, 1, cause)], "", "")
    assert first_failure(written(tmp_path, told)) is None


@pytest.mark.parametrize("reason", ["stopped by Ctrl-C", "stopped by `speedo stop`"])
def test_a_run_that_is_stopped_has_not_failed(tmp_path: Path, reason: str) -> None:
    assert first_failure(written(tmp_path, Told([*TWO, end(30, reason)], "", ""))) is None


def test_the_latest_of_several_failures_is_told_and_the_others_are_counted(tmp_path: Path) -> None:
    events = [
        *TWO,
        left(10, 0, "Caffe stopped at a"),
        left(300, 1, SILENT),
        end(301, ALL_DIED + SILENT),
    ]
    found = first_failure(written(tmp_path, Told(events, "", "")))
    assert found is not None
    assert (found.process, found.earlier, found.ended) == ("worker 1", 1, True)


def test_a_store_that_was_back_before_explains_no_death(tmp_path: Path) -> None:
    events = [
        *TWO,
        (20.0, "store", {"problem": "full"}),
        (22.0, "store", {"problem": None}),
        left(30, 1, SILENT),
    ]
    found = first_failure(written(tmp_path, Told(events, "", "")))
    assert found is not None
    assert found.process == "worker 1"


def test_it_is_kept_beside_the_run_until_the_run_is_well_again(tmp_path: Path) -> None:
    run = written(tmp_path, CASES["master killed (SIGKILL)"])
    kept = keep_failure(run, "alpha", CASES["master killed (SIGKILL)"].error)
    assert kept is not None
    assert kept.host == "alpha"
    assert kept_failure(run) == kept
    assert json.loads((run / "failure.json").read_text())["process"] == "the master"
    assert keep_failure(run, "alpha", FencedError("another master")) is None
    assert kept_failure(run) == kept
    assert keep_failure(run, "alpha") is None
    assert not (run / "failure.json").exists()
    assert kept_failure(run) is None


def test_of_a_master_that_was_replaced_is_kept_what_ended_it(tmp_path: Path) -> None:
    run = written(tmp_path, CASES["Ray's raylet killed"])
    keep_failure(run, "alpha", CASES["Ray's raylet killed"].error)
    resumed = {
        "time": 34.0,
        "event": "resumed",
        "epoch": 1,
        "version": 3,
        "iteration": 3,
        "samples": 9,
    }
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(resumed) + "\n")
    found = keep_failure(run, "alpha")
    assert found is not None
    assert (found.process, found.ended) == ("Ray's raylet", False)


def test_an_edited_log_raises_nothing(tmp_path: Path) -> None:
    run = written(tmp_path, CASES["segmentation fault"])
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(
            b'[]\n{"time": "x"}\nnull\n{"time": 9, "event": "left"}\n\xff\n{"time": 1e99, "event": "clock"}\n'
        )
    (run / "failure.json").write_text('{"process": 1}')
    found = kept_failure(run)
    assert found is not None
    assert found.process == "worker 1"


def test_a_host_that_was_heard_again_before_explains_no_death(tmp_path: Path) -> None:
    notes = [(15.0, "warning: " + not_heard("B:2e", 6.0)), (20.0, heard_again("B:2e"))]
    told = Told([*FAR, left(30, 1, SILENT)], "", "", notes=notes)
    found = first_failure(written(tmp_path, told))
    assert found is not None
    assert found.process == "worker 1"


def test_the_end_says_it_and_a_disk_that_hangs_takes_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = written(tmp_path, CASES["Ray's raylet killed"]), list[str]()
    error = CASES["Ray's raylet killed"].error
    assert error is not None
    with pytest.raises(EngineError), first_failure_told(run, "alpha", said.append):
        raise error
    assert said[0].startswith("failed first: Ray's raylet on alpha, 33.0 s into the run")
    assert sum(line.startswith("  followed: worker") for line in said) == 2
    said.clear()
    monkeypatch.setattr("speedo.watch.first_failure.DISK_S", 0.2)
    monkeypatch.setattr("speedo.watch.first_failure.keep_failure", lambda *_: time.sleep(60))
    with pytest.raises(EngineError), first_failure_told(run, "alpha", said.append):
        raise error
    assert said[0].startswith("failed first: Ray's raylet on alpha, ")
    monkeypatch.setattr("speedo.watch.first_failure.keep_failure", lambda *_: 1 / 0)
    with pytest.raises(EngineError), first_failure_told(run, "alpha", said.append):
        raise error
    assert "could not be found (ZeroDivisionError" in said.pop()
    monkeypatch.setattr("speedo.watch.first_failure.keep_failure", lambda *_: None)
    with first_failure_told(run, "alpha", said.append):  # what went well is not told
        pass
    with pytest.raises(KeyboardInterrupt), first_failure_told(run, "alpha", said.append):
        raise KeyboardInterrupt
    assert len(said) == 2


def test_who_asks_for_a_run_that_failed_is_told(tmp_path: Path, runtime: Path) -> None:
    run = written(tmp_path, CASES["segmentation fault"])
    keep_failure(run, "alpha", EngineError("the master's process died: killed"))
    asked = CliRunner().invoke(main, ["status", str(run)])
    assert asked.exit_code == 1
    assert "is over: the run has ended without a result" in asked.output
    assert "failed first: the master on alpha" in asked.output


def test_the_report_of_a_run_names_it(tmp_path: Path) -> None:
    merged = {
        "decision": "merged",
        "worker": 0,
        "loss": 0.5,
        "samples": 8,
        "staleness": 0,
        "timings": {},
    }
    results = [(4.0 + n, "result", {**merged, "iteration": n, "version": n}) for n in (1, 2, 3)]
    told = CASES["segmentation fault"]
    run = written(tmp_path, replace(told, events=[*told.events[:2], *results, *told.events[2:]]))
    lines = (run / "metrics.jsonl").read_text().splitlines()[:-1]
    (run / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    made = CliRunner().invoke(main, ["report", str(run)])
    assert made.exit_code == 0, made.output
    page = (run / "report.html").read_text()
    assert "first failure" in page
    assert "failed first: worker 1 (process 4712), 30.0 s into the run" in page
