"""Why a process died is told from what it left and what the kernel says, and never guessed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from speedo.actors import death_causes as deaths
from speedo.actors.death_causes import (
    SILENT,
    cause_in,
    died_natively,
    memory_kills,
    silent_death,
)
from speedo.engines.layer_notes import FILE, noted
from tests.support.disks import fill, small_disk

PREPARED = """
import faulthandler, os, signal, sys
from pathlib import Path
from speedo.engines.native_failures import capture_stderr
capture_stderr(Path(sys.argv[1]))
faulthandler.enable()
"""
MAPPED = """
import mmap
file = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 1 << 20)
memory = mmap.mmap(file, 1 << 20)
for place in range(0, 1 << 20, 4096):
    memory[place] = 1
"""
FAULTY = """
import ctypes
import torch
from google.protobuf import text_format
from speedo.actors.death_causes import died_natively
from caffenets.caffe_schema import caffe_pb2
from speedo.engines.layer_notes import note_layers
from caffenets.layers import LAYERS
from speedo.engines.pytorch.leaving import backward_of
from speedo.engines.pytorch.net import Net

class Fault(torch.autograd.Function):
    forward = staticmethod(lambda context, x: ctypes.string_at(8) if sys.argv[3] == "forward" else x + 1)
    backward = staticmethod(lambda context, gradient: ctypes.string_at(8))

LAYERS["Power"].forward = lambda self, bottoms, blobs: [Fault.apply(bottoms[0])]
if died_natively(Path(sys.argv[1])):
    note_layers(Path(sys.argv[2]))
net = Net(text_format.Parse('''
  layer { name: "data" type: "DummyData" top: "data" dummy_data_param { shape { dim: 2 dim: 3 } } }
  layer { name: "first" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
  layer { name: "faulty" type: "Power" bottom: "ip" top: "ip" }
  layer { name: "same" type: "Split" bottom: "ip" top: "a" top: "b" }
  layer { name: "last" type: "Reduction" bottom: "a" top: "loss" loss_weight: 1 }
''', caffe_pb2.NetParameter()), "TRAIN")
loss, _ = net.forward()
backward_of(loss)
"""
REFUSED = """
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    pass
print("no disk takes this", file=sys.stderr, flush=True)
os.write(2, b"F1121 12:00:00.123456  4711 io.cpp:68] Check failed: proto.SerializeToOstream(&output)\\n\\n")
os.abort()
"""


def died(log: Path, program: str, *arguments: object) -> int:
    return subprocess.run(
        [sys.executable, "-c", PREPARED + program, str(log), *map(str, arguments)],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
        check=False,
    ).returncode


@pytest.mark.processes
def test_a_mapped_file_on_a_full_disk_is_told_by_its_signal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with small_disk(tmp_path / "disk", "64k"):
        assert died(log, MAPPED, tmp_path / "disk" / "mapped") == -7
    cause = cause_in(log)
    assert cause is not None
    assert cause.startswith("native code failed: SIGBUS (a bus error; possible causes: a full disk")
    assert "memory ran out" not in cause


@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.usefixtures("forked_python")
def test_a_process_that_dies_natively_once_more_names_the_layer_and_its_pass(
    tmp_path: Path,
) -> None:
    """As a worker that is restarted: the first death is in the log, so those that follow note their layers."""
    log, note = tmp_path / "log", tmp_path / FILE
    assert not died_natively(log)
    assert died(log, FAULTY, note, "forward") == -11
    assert died_natively(log)
    for direction in ("forward", "backward"):
        assert died(log, FAULTY, note, direction) == -11
        assert died_natively(log)
        assert (cause_in(log, 0, noted(note)) or "").startswith(
            f"native code failed in the {direction} pass of layer 'faulty' (Power): SIGSEGV ("
        ), direction


@pytest.mark.processes
def test_last_words_have_room_on_a_disk_that_became_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "256k"):
        log = disk / "log"
        child = subprocess.Popen(
            [sys.executable, "-c", PREPARED + REFUSED, str(log), str(tmp_path / "go")],
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.stdout.close()
        fill(disk)
        (tmp_path / "go").touch()
        assert child.wait(120) == -6
        assert cause_in(log) == (
            "Caffe stopped at io.cpp:68: Check failed: proto.SerializeToOstream(&output)"
        )


@pytest.mark.processes
def test_a_log_that_takes_no_words_is_no_sign_of_sigkill(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "64k"):
        log = disk / "log"
        log.touch()
        taken = fill(disk)
        cause = silent_death(memory_kills(), log)
        assert cause == (
            f"died without a message, because {log} cannot be written (No space left on device): make room there"
        )
        taken.unlink()
        assert silent_death(memory_kills(), log) == SILENT
        assert log.read_bytes() == b""


def test_memory_is_named_as_the_cause_only_where_the_kernel_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 3\noom_kill 2\n")
    monkeypatch.setattr(deaths, "_counters", lambda: (counter, tmp_path / "missing"))
    before = memory_kills()
    assert before == 2
    said = silent_death(before, tmp_path / "log")
    assert said == SILENT
    assert "possible causes: " in said
    counter.write_text("low 0\noom 4\noom_kill 3\n")
    assert silent_death(before, tmp_path / "log").startswith(
        "killed by the kernel because memory ran out"
    )


def test_the_kernels_counters_are_there() -> None:
    assert any(path.exists() for path in deaths._counters())


@pytest.mark.processes
def test_a_log_that_cannot_be_opened_does_not_end_its_process(tmp_path: Path) -> None:
    assert died(tmp_path / "missing" / "log", "print('on', file=sys.stderr)") == 0
