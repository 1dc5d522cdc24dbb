"""Which run a command means, and how a run is shown; the runs are sockets without training behind them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from speedo.cli.main import main
from speedo.errors import ClusterError
from speedo.watch.control_socket import Asked, ControlServer

WORKER = {
    "worker": 0, "host": "node-a:1f2e", "state": "training", "merged": 1200, "dropped": 3, "loss": 0.5,
    "images_per_s": 1712.4, "away": False, "process": 4711, "threads": 2, "cores": "0-1",
}  # fmt: skip
GONE = {
    **WORKER, "worker": 11, "state": "gone: it was killed", "images_per_s": None, "away": True, "process": 0,
    "threads": 0, "cores": "",
}  # fmt: skip


def state(run: str, folder: Path) -> dict[str, Any]:
    return {
        "run": run, "run_dir": str(folder), "address": "10.0.0.5:56126", "pid": 2**22 + 1, "speedo": "0.1.0",
        "solver": "s", "expected_workers": 2, "min_workers": 1, "remaining_s": 200.0, "state": "training",
        "mode": "easgd", "iteration": 1200, "max_iter": 10000, "epoch": 1.28, "version": 1203, "loss": 0.5123,
        "images_per_s": 3421.7, "seconds": 30.0, "tested_iteration": 1000, "metrics": {"accuracy": 0.84},
        "workers": [WORKER, GONE], "over": False, "wanted": 2, "dropped": {"late": 2, "refused": 1},
        "checkpoint_iteration": 1100, "checkpoint_problem": "", "store_trouble": "Redis does not answer",
    }  # fmt: skip


@pytest.fixture
def two_runs(runtime: Path, tmp_path: Path) -> Iterator[None]:
    with ExitStack() as stack:
        for name in ("1a2b3c", "1a9f00"):
            folder = tmp_path / name
            folder.mkdir()
            answer = state(name, folder)

            def answered(asked: Asked, answer: dict[str, Any] = answer) -> Any:
                if asked["ask"] == "scale":
                    raise ClusterError("no host has joined: start one")
                return answer

            stack.enter_context(ControlServer(name, answered))
        yield


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_several_runs_are_all_shown(two_runs: None) -> None:
    shown = typed("status")
    assert shown.exit_code == 0
    assert "run 1a2b3c, mode easgd: training" in shown.output
    assert "run 1a9f00, mode easgd: training" in shown.output


def test_a_run_is_shown_in_lines_that_people_read(two_runs: None, tmp_path: Path) -> None:
    told = typed("status", "1a2").output
    assert typed("status", "1a2").output == typed("status", str(tmp_path / "1a2b3c")).output == told
    assert told.splitlines() == [
        "run 1a2b3c, mode easgd: training",
        f"  directory  {tmp_path / '1a2b3c'}",
        "  address    10.0.0.5:56126",
        "  iteration  1200 of 10000, epoch 1.28; about 3 min left",
        "  training   version 1203, loss 0.5123, 3,422 images/s",
        "  last test  at 1000: accuracy 0.8400",
        "  dropped    2 late, 1 refused",
        "  checkpoint at 1100",
        "  trouble    Redis does not answer",
        "  workers    1 of 2",
        "    worker  host         process  threads  cores  merged  dropped  images/s  state",
        "         0  node-a:1f2e     4711        2  0-1      1200        3     1,712  training",
        "        11  node-a:1f2e                             1200        3         0  gone: it was killed",
    ]


def test_json_is_one_object_with_every_run(two_runs: None) -> None:
    answer = json.loads(typed("status", "--json").output)
    assert [run["run"] for run in answer["runs"]] == ["1a2b3c", "1a9f00"]
    assert answer["runs"][0]["workers"][0]["merged"] == 1200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stop",), "you have several runs (1a2b3c, 1a9f00): name one, `speedo status` shows them"),
        (("scale", "3"), "you have several runs"),
        (("status", "1a"), "1a matches several runs (1a2b3c, 1a9f00)"),
        (("status", "77"), "77 is no running run"),
        (("scale", "3", "1a9"), "no host has joined: start one"),
    ],
)
def test_what_is_not_clear_is_asked_back(
    two_runs: None, arguments: tuple[str, ...], words: str
) -> None:
    answer = typed(*arguments)
    assert answer.exit_code == 1
    assert words in answer.output
    assert answer.output.startswith("speedo: ")


def test_a_run_is_found_by_its_directory_and_a_finished_one_is_told(
    two_runs: None, tmp_path: Path
) -> None:
    assert "run 1a9f00" in typed("status", str(tmp_path / "1a9f00")).output
    done = tmp_path / "done"
    done.mkdir()
    (done / "result.json").write_text(
        '{"iteration": 40, "reason": "all work was done", "accuracy": 0.5, "model": "m"}'
    )
    answer = typed("stop", str(done))
    assert answer.exit_code == 1
    assert "is over: it ended at iteration 40 (all work was done), test accuracy 0.5000" in (
        answer.output
    )


def test_without_a_run_each_command_says_so(runtime: Path) -> None:
    for arguments in (("status",), ("stop",), ("scale", "2"), ("status", "--watch")):
        answer = typed(*arguments)
        assert answer.exit_code == 1
        assert "you have no run on this machine" in answer.output
    answer = typed("status", "--json")
    assert (answer.exit_code, json.loads(answer.output)) == (1, {"runs": []})


@pytest.mark.slow
def test_watching_ends_with_the_run_and_its_result(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(
        '{"iteration": 40, "reason": "all work was done", "accuracy": null, "model": "m"}'
    )
    with ControlServer("one", lambda asked: state("one", tmp_path)) as server:
        closing = threading.Timer(0.6, server.__exit__, (None, None, None))
        closing.start()
        shown = typed("status", "--watch", "--interval", "0.1")
        closing.join()
    assert shown.exit_code == 0
    assert shown.output.count("run one, mode easgd: training") >= 2
    assert shown.output.endswith("it ended at iteration 40 (all work was done)\nm\n")


@pytest.mark.slow
def test_a_stop_that_takes_too_long_says_so_and_a_told_run_is_not_waited_for(
    runtime: Path, tmp_path: Path
) -> None:
    with ControlServer("one", lambda asked: state("one", tmp_path)):
        late = typed("stop", "--timeout", "0.3")
        assert (late.exit_code, "run one did not end within 0 s" in late.output) == (1, True)
        told = typed("stop", "--no-wait")
        assert told.exit_code == 0
        assert f"run one is stopping; it leaves its model in {tmp_path}" in told.output
