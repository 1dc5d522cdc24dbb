"""A Caffe that dies is told in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from speedo.engines.native_failures import (
    capture_stderr,
    describe_death,
    describe_exception,
    describe_exit,
    fatal_line,
    last_words,
    signal_hint,
)
from speedo.engines.net_trial import check_in_subprocess
from speedo.engines.solver import read_solver, solver_for_tester, solver_for_worker
from speedo.errors import EngineError, SolverError
from tests.support.nets import net_text, write_lmdb, write_solver
from tests.support.own_stderr import restore_stderr

GLOG = """WARNING: Logging before InitGoogleLogging() is written to STDERR
F20261121 12:00:00.123456  4711 net.cpp:88] Check failed: a == b (1 vs. 2) Sizes differ
 and so do names
*** Check failure stack trace: ***
    @     0x7f  google::LogMessage::Fail()
"""


@pytest.mark.parametrize("date", ["20261121", "1121"])
def test_the_fatal_line_is_taken_out_of_the_log(date: str) -> None:
    text = GLOG.replace("20261121", date)
    assert fatal_line(text) == (
        "Caffe stopped at net.cpp:88: Check failed: a == b (1 vs. 2) Sizes differ and so do names"
    )


def test_the_last_of_several_fatal_lines_counts() -> None:
    assert str(fatal_line(GLOG + GLOG.replace("net.cpp:88", "db.cpp:9"))).startswith(
        "Caffe stopped at db.cpp:9:"
    )


def test_an_image_that_cannot_be_decoded_is_what_caffes_words_on_its_height_are_about() -> None:
    text = (
        "libpng error: PNG input buffer is incomplete\n"
        "E20261127 20:40:29.307092  6989 io.cpp:172] Could not decode datum \n"
        "F20261127 20:40:29.307106  6989 data_transformer.cpp:240] Check failed: height <= img_height (64 vs. 0) \n"
    )
    assert fatal_line(text) == (
        "Caffe stopped at data_transformer.cpp:240: Check failed: height <= img_height (64 vs. 0) (an image cannot be "
        "decoded; of a database `speedo data check` names it)"
    )


def test_warnings_and_errors_are_not_fatal() -> None:
    assert fatal_line("E1121 12:00:00.1 4711 net.cpp:88] no\nFrom a file: F1 nothing\n") is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "killed by SIGKILL (possible causes: "),
        (-11, "segmentation fault"),
        (3, "status 3"),
    ],
)
def test_an_exit_is_described(code: int, words: str) -> None:
    assert words in describe_exit(code)


def test_a_death_without_a_fatal_line_gives_signal_and_last_words() -> None:
    assert describe_death("one\nlast\n\n", -9).endswith("its last line was: last")
    assert describe_death("", None) == "ended without a message"


def test_an_exception_is_told_with_its_place() -> None:
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        described = describe_exception(error)
    assert described.startswith("ValueError: no such thing (")
    assert "test_fatal.py:" in described


RAISED = """Traceback (most recent call last):
  File "/a/train.py", line 3, in <module>
    main()
    ^^^^^^
  File "/a/train.py", line 9, in main
    read()
KeyError: 'image'
"""
CRASHED = """fine
Fatal Python error: Bus error

Current thread 0x00007f (most recent call first):
  File "/a/layer.py", line 7 in forward
  File "/a/train.py", line 9 in main
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GLOG, "Caffe stopped at net.cpp:88: Check failed: a == b (1 vs. 2) Sizes differ and so do names"),
        (RAISED, "KeyError: 'image' (/a/train.py:9, in main)"),
        (RAISED + RAISED.replace("KeyError: 'image'", "caffe.Error"), "caffe.Error (/a/train.py:9, in main)"),
        (CRASHED, f"SIGBUS ({signal_hint('SIGBUS')}) (/a/layer.py:7, in forward)"),
        ("one\nlast\n" + CRASHED[CRASHED.index("Current"):], "last"),
        ("\n \n", ""),
    ],
    ids=["fatal", "exception", "its cause", "signal", "stack asked for", "nothing"],
)  # fmt: skip
def test_the_last_words_of_a_process_say_why_it_ended(text: str, words: str) -> None:
    assert last_words(text) == words


def test_stderr_goes_to_a_file_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "stderr"
    former = capture_stderr(file)
    try:
        os.write(2, b"native words\n")
    finally:
        restore_stderr(former)
    os.write(2, b"not these\n")
    assert file.read_text() == "native words\n"


ABORT = """
import sys
from pathlib import Path
from speedo.engines.native_failures import capture_stderr
from speedo.engines.caffe_import import load_caffe
capture_stderr(Path(sys.argv[1]))
load_caffe().get_solver(sys.argv[2])
"""


@pytest.mark.caffe
def test_a_real_abort_of_caffe_leaves_its_fatal_line_in_the_file(home: Path) -> None:
    solver = home / "bad.prototxt"
    solver.write_text('net: "missing.prototxt" base_lr: 1 lr_policy: "fixed"')
    words = home / "stderr"
    child = subprocess.run(
        [sys.executable, "-c", ABORT, str(words), str(solver)], check=False, timeout=60
    )
    assert child.returncode == -6
    sentence = describe_death(words.read_text(), child.returncode)
    assert sentence.startswith("Caffe stopped at ")
    assert "missing.prototxt" in sentence


@pytest.mark.caffe
def test_check_tells_what_the_nets_are(home: Path) -> None:
    spec = read_solver(write_solver(home, net_text()))
    facts = check_in_subprocess(
        solver_for_worker(spec, rank=1, count=2, batch_size=4),
        solver_for_tester(spec),
        rank=1,
        count=2,
        folder=spec.folder,
        step=True,
    )
    assert facts.parameters == 280
    assert facts.nbytes == 1120
    assert facts.blobs == 4
    assert facts.samples_per_step == 4
    assert facts.outputs == ("accuracy", "loss")
    assert facts.loss is not None
    assert 1 < facts.loss < 3


@pytest.mark.caffe
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_output: 6", "num_output: 0", "num_output"),
        ("kernel_size: 3", "kernel_size: 30", "Check failed"),
        (
            "inner_product_param { num_output: 4",
            "inner_product_param { axis: 9 num_output: 4",
            "axis",
        ),
    ],
)
def test_check_survives_what_aborts_caffe(home: Path, old: str, new: str, words: str) -> None:
    spec = read_solver(write_solver(home, net_text().replace(old, new)))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=4)
    with pytest.raises(SolverError, match="Caffe stopped at") as caught:
        check_in_subprocess(text)
    assert words in str(caught.value)


@pytest.mark.caffe
def test_a_test_net_with_other_shapes_is_told_before_the_run(home: Path) -> None:
    """Its tester would die at the first test, and the run wait for it."""
    write_lmdb(home / "larger", np.zeros((4, 1, 12, 12), np.uint8), np.zeros(4, int))
    spec = read_solver(write_solver(home, net_text(test="larger")))
    with pytest.raises(SolverError, match=r"train and test net must have .* same shapes.*'ip'"):
        check_in_subprocess(
            solver_for_worker(spec, rank=0, count=1, batch_size=4), solver_for_tester(spec)
        )


@pytest.mark.caffe
def test_check_tells_the_exception_of_a_python_layer(home: Path) -> None:
    (home / "broken.py").write_text("raise RuntimeError('not today')\n")
    net = net_text() + (
        'layer { name: "p" type: "Python" bottom: "ip" top: "p" '
        'python_param { module: "broken" layer: "P" } }'
    )
    spec = read_solver(write_solver(home, net))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=4)
    with pytest.raises(SolverError, match=r"RuntimeError: not today \(.*broken.py:1\)"):
        check_in_subprocess(text, folder=spec.folder)


@pytest.mark.caffe
def test_check_does_not_wait_for_ever(home: Path) -> None:
    (home / "slow.py").write_text("import time\ntime.sleep(60)\n")
    net = net_text() + (
        'layer { name: "p" type: "Python" bottom: "ip" top: "p" '
        'python_param { module: "slow" layer: "P" } }'
    )
    spec = read_solver(write_solver(home, net))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=4)
    with pytest.raises(EngineError, match="within 2 seconds"):
        check_in_subprocess(text, folder=spec.folder, timeout=2)
