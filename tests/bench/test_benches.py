from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bench import collective, ddp, startup, store_speed, update_rules
from bench.__main__ import arguments
from bench.processor import Thread, shares
from bench.startup import Memory, Started
from bench.support.bare_socket import bare_socket
from bench.support.figures import Measured, MeasureError
from bench.support.runs import free_running, iterations_for
from bench.support.throughput import Variant
from speedo.exchange.vector import Blob, Layout
from speedo.storage.memory_store import MemoryStore
from tests.support.bundled_nets import Bench


def measured(rate: float) -> Measured:
    return Measured(rate, {"turn": 10.0})


# ---------------------------------------------------------------- DistributedDataParallel


@pytest.mark.processes
def test_an_interpreter_without_pytorch_is_told_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="pip install --group peers"):
        ddp.torch_version(str(tmp_path / "no-python"))


def test_the_plain_script_is_there() -> None:
    assert ddp.TORCH.is_file()


def test_ours_is_held_against_the_peer_of_the_same_round() -> None:
    rows = ddp.rows_of(64, 2)
    caffe, torch = rows[0].name, rows[1].name
    rounds = [
        {
            caffe: measured(7000),
            torch: measured(8000),
            ddp.DDP: measured(6000),
            ddp.SYNC: measured(6300),
        },
        {
            caffe: measured(3500),
            torch: measured(4000),
            ddp.DDP: measured(3000),
            ddp.SYNC: measured(2850),
        },
        {
            caffe: measured(7000),
            torch: measured(8000),
            ddp.DDP: measured(6000),
            ddp.SYNC: measured(6600),
        },
    ]
    lines = ddp.rates(rows, rounds)
    assert lines[3] == [ddp.DDP, "6,000", "75.0%", "", ""]
    assert lines[4] == [ddp.SYNC, "6,300", "90.0%", "1.050", "0.950 to 1.100"]


# ---------------------------------------------------------------- collectives


def test_ours_is_held_against_gloo_of_the_same_round() -> None:
    rounds = [
        ((0.001, 0.001), (0.002, 0.003)),
        ((0.004, 0.001), (0.006, 0.002)),
        ((0.002, 0.001), (0.006, 0.001)),
    ]
    assert collective.row(2, 1.7, rounds) == [
        *("2", "1.7", "0.850", "0.283", "2.00", "1.50 to 3.00", "2.00")
    ]


# ---------------------------------------------------------------- start and memory


def test_a_worker_is_bound_by_plain_caffe_three_models_and_150_mb() -> None:
    assert startup.bound_mb(100.0, 244_000_000) == pytest.approx(982)


def test_starts_are_told_by_their_medians() -> None:
    plain = [Memory(100, 150), Memory(120, 150), Memory(100, 150)]
    starts = [Started(seconds, Memory(127.5, 204), Memory(90, 140)) for seconds in (6.0, 9.0, 7.0)]
    cells = startup.report("lenet", 1_666_667, plain, starts)
    assert cells == [
        "lenet", "7.00", "6.00 to 9.00", "1.7", "100 (150)", "128 (204)", "255 (305)", "50% (67%)", "90",
    ]  # fmt: skip


# ---------------------------------------------------------------- the store


def test_what_is_pushed_is_pulled_with_its_checksum_seen() -> None:
    layout = Layout((Blob("ip", (1000,)),))
    vector, into = store_speed.vectors(1000, 2)
    store = MemoryStore()
    store_speed.push(store, layout, vector)
    store_speed.pull(store, layout, into)
    assert np.array_equal(vector, into)


@pytest.mark.processes
def test_a_bare_connection_brings_back_what_was_sent() -> None:
    sent, back = bytearray(b"0123456789" * 100_000), bytearray(1_000_000)
    with bare_socket(len(sent)) as (push, pull):
        push(memoryview(sent))
        pull(memoryview(back))
    assert back == sent


def test_every_merge_is_measured_against_a_copy() -> None:
    lines = store_speed.measure_merges(0.1, 3)
    assert [line[0] for line in lines[1:]] == [store_speed.MEMCPY, *store_speed.MERGES]
    assert lines[1][3] == ""
    assert all(line[3].endswith("%") for line in lines[2:])


def test_an_exchange_is_measured_in_its_parts(tmp_path: Path) -> None:
    lines = store_speed.measure_exchange(tmp_path, 0.1, 2)
    assert [line[0] for line in lines[1:-2]] == list(store_speed.PARTS)
    assert all(float(line[1]) > 0.0 for line in lines[1:])
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- solver updates


@pytest.mark.caffe
def test_every_solver_update_is_measured_with_and_without_clipping(tmp_path: Path) -> None:
    net = Bench.one_layer("one_layer", tmp_path, inputs=500, outputs=100)
    for clip in (False, True):
        for kind in ("SGD", "AdaGrad", "Adam"):
            megabytes, row = update_rules.measure(net, kind, clip, 1)
            assert megabytes == pytest.approx(0.2)
            assert row[0] == kind
            assert len(row) == 1 + len(update_rules.HEADING)
            assert float(row[3]) > 0


# ---------------------------------------------------------------- runs


def test_a_run_is_long_enough_for_its_turns_and_for_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.support.runs.cores", lambda: 2)
    assert iterations_for(5.0, 2560.0, 64, 4, 1) == 400
    assert iterations_for(5.0, 20.0, 16, 2, 10, turns=6) == 120


@pytest.mark.processes
def test_plain_processes_begin_at_once_and_tell_when_their_steps_ended(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text(
        "import json, sys, time\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "ends = []\n"
        "for _ in range(60):\n"
        "    time.sleep(0.01)\n"
        "    ends.append(time.monotonic())\n"
        "print(json.dumps({'ends': ends, 'core': 0.5}))\n"
    )
    both = free_running([[sys.executable, str(program)]] * 2, (64, 32), 1.0, tmp_path)
    assert both.core == 0.5
    assert 0 < both.images_per_s <= 96 / 0.01


@pytest.mark.processes
def test_a_plain_process_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="no such net"):
        free_running([[sys.executable, "-c", "raise SystemExit('no such net')"]], (1,), 1, tmp_path)


# ---------------------------------------------------------------- options


def test_a_variant_is_a_name_and_options_of_speedo_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--variant", "redis=--redis same_node=redis"])
    assert arguments().variant == [Variant("redis", ("--redis", "same_node=redis"))]


def test_a_variant_without_a_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--variant", "--redis same_node=redis"])
    with pytest.raises(SystemExit):
        arguments()
    assert "use NAME=OPTIONS" in capsys.readouterr().err


def test_the_cores_of_a_run_are_told_by_part() -> None:
    """A master's driver is the busiest thread behind its first; a thread that began meanwhile is left out."""
    used = [  # process, thread, part; seconds and sleeps meanwhile
        (10, 10, "worker", 9.0, 10),
        (10, 11, "worker", 0.1, 10),
        (20, 20, "worker", 9.5, 10),
        (30, 30, "master", 0.2, 1000),
        (30, 31, "master", 0.01, 0),
        (30, 32, "master", 0.1, 50),
        (40, 40, "redis", 0.0, 20),
    ]
    before = [Thread(*who, 5.0, 7) for *who, _, _ in used]
    after = [Thread(*who, 5.0 + busy, 7 + sleeps) for *who, busy, sleeps in used]
    after.append(Thread(40, 41, "redis", 9.0, 20))
    found = shares(before, after, 10.0)
    assert found["workers: Caffe"] == (pytest.approx(185.0), 2.0)
    assert found["workers: all else"] == (pytest.approx(1.0), 1.0)
    assert found["master: Ray's loop"] == (pytest.approx(2.0), 100.0)
    assert found["master: the driver"] == (pytest.approx(1.0), 5.0)
    assert found["master: all else"] == (pytest.approx(0.1), 0.0)
    assert found["redis"] == (0.0, 2.0)
    assert len(found) == 6
