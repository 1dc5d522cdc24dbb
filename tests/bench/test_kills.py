"""What bench.kills makes of what it saw."""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
from pathlib import Path
from time import monotonic as now

import pytest

from bench.kills import RECORDS, by_workers, draw, lost, simulated, told, total
from bench.support.fault_books import Kill, Seen
from bench.support.fault_cluster import Cluster, cluster
from bench.support.runs import result_of
from bench.support.timed import Follower
from speedo.run_dir.directory import METRICS
from speedo.system.json_lines import line_of
from tests.support.commands import wait_until

WAIT_S = 120.0

SEEN = Seen(
    seconds=60.0,
    records=4000,
    kills=[
        Kill("worker", 10.0, 1000, 0.5, back_s=1.0, missing_s=1.5),
        Kill("master", 20.0, 1700, 3.0, back_s=4.0),
        Kill("worker", 22.0, 1700, None),  # in the pause of the one before
    ],
    present_s={4: 40.0, 3: 20.0},
    merged=Counter({4: 3600, 3: 400}),
)


def test_what_a_kill_has_lost_is_counted_up_to_the_next_one() -> None:
    assert lost(SEEN.kills, SEEN, 100.0) == [3.0, 2.0, 15.0]
    assert list(told("sync", SEEN, 100.0)) == [
        ["sync, all", "3", "20.0", "6.7", "0.5", "1.8", "3.0", "3.0", "2.5", "4.0"],
        ["sync, master", "1", "2.0", "2.0", "0.0", "3.0", "3.0", "3.0", "4.0", "4.0"],
        ["sync, worker", "2", "18.0", "9.0", "0.8", "0.5", "0.5", "0.5", "1.0", "1.0"],
    ]


def test_the_speed_by_the_number_of_workers() -> None:
    assert list(by_workers("sync", SEEN, 100.0)) == [
        ["sync, 4", "66.7%", "90", "90.0%"],
        ["sync, 3", "33.3%", "20", "20.0%"],
    ]


def test_who_is_in_the_run_is_read_from_its_log(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    def says(event: str, **fields: object) -> set[int]:
        with (tmp_path / METRICS).open("ab") as log:
            log.write(line_of({"time": 1.0, "event": event, **fields}))
        follower.read()
        return follower.here

    assert says("joined", worker=0, host="a") == {0}
    assert says("joined", worker=1, host="a") == {0, 1}
    assert says("left", worker=0, cause="killed") == {1}
    assert says("resumed", epoch=1, version=3, iteration=3, samples=12) == set()
    assert (follower.samples, says("joined", worker=0, host="b")) == (12, {0})


def test_a_fault_is_over_once_all_workers_are_back() -> None:
    seen = Seen(kills=[Kill("worker", 1.0, 0)])
    for at, here in ((1.1, 4), (1.5, 3), (3.0, 5)):
        seen.look(at, here, 4, 0.5)
    seen.kills.append(Kill("redis", 5.0, 0))
    seen.look(6.0, 2, 4, 0.5)
    assert [one.back_s for one in seen.kills] == [2.0, None]
    assert [one.missing_s for one in seen.kills] == [0.5, 1.0]


def test_of_more_workers_than_wanted_only_their_share_counts() -> None:
    seen = Seen(seconds=10.0, merged=Counter({4: 400, 8: 400, 2: 100, 0: -10}))
    assert seen.goodput(4, 100.0) == pytest.approx((400 + 200 + 100 - 10) / 1000)


@pytest.mark.parametrize("mode", ["async", "easgd", "sync"])
def test_the_simulator_lacks_the_time_of_whom_a_fault_hits(mode: str) -> None:
    """Half of the workers for 10 of 100 s, then all of them for 10 s; a round goes on without those that it lost."""
    kills = [Kill("host", 20.0, 0, 1.0, back_s=10.0), Kill("command", 60.0, 0, 10.0)]
    seen = Seen(100.0, kills=[*kills, Kill("redis", 80.0, 0, 0.0)])
    assert simulated(mode, 4, 2, seen, 1000.0) == pytest.approx(0.85, abs=0.01)


def test_the_last_accuracy_stands_beside_those_of_the_undisturbed_runs() -> None:
    calm = [Seen(10.0, 1000, accuracy=accuracy) for accuracy in (0.91, 0.89, 0.9)]
    seen = Seen(10.0, 900, present_s={4: 10.0}, merged=Counter({4: 900}), lost=1, accuracy=0.88)
    assert total("solver sync", 4, seen, calm, 0.92) == [
        *("solver sync", "90.0%", "92.0%", "90 of 100", "0", "100.0%", "1", "0", "0", "0.8800"),
        "0.8900 to 0.9100",
    ]


def test_results_that_were_not_merged_are_counted_but_not_those_of_the_end() -> None:
    seen = Seen()
    drops = (("late", "its ticket is not outstanding"), ("discarded", "the run is over"))
    lines = [{"event": "result", "decision": name, "reason": why} for name, why in drops]
    seen.count([*lines, {"event": "result", "decision": "merged", "version": 1}], 10)
    assert +seen.unmerged == Counter(late=1)


def test_each_record_of_an_epoch_that_is_over_counts_once_and_what_was_undone_not_at_all() -> None:
    records = RECORDS[True]

    def merged(version: int, *ranges: tuple[int, int, int]) -> dict[str, object]:
        return {"event": "result", "decision": "merged", "version": version, "records": ranges}

    def counted(lines: list[dict[str, object]]) -> Seen:
        seen = Seen()
        seen.count(lines, records)
        return seen

    whole = [merged(1, (0, 0, records)), merged(2, (1, 0, 64)), merged(3, (2, 0, 64))]
    assert counted(whole).problems == []
    resumed = {"event": "resumed", "epoch": 1, "version": 0}
    again = counted([whole[0], resumed, *whole])
    assert (again.problems, again.restarts) == ([], 1)
    bad = counted([merged(1, (0, 1, records), (0, 2, 4)), *whole[1:]])
    assert (bad.lost, bad.repeated) == (1, 2)
    assert bad.problems == [f"epoch 0: 1 of {records} records are not trained, 2 twice or more"]


@pytest.mark.slow
def test_workers_speed_and_faults_are_drawn(tmp_path: Path) -> None:
    points = [(float(second), 4, 100 * second) for second in range(60)]
    kills = [*SEEN.kills, Kill("GCS", 30.0, 0)]
    runs = {"solver sync": Seen(60.0, 6000, kills, points=points)}
    draw(tmp_path / "kills.png", 4, {**runs, "script sync": runs["solver sync"]})
    assert (tmp_path / "kills.png").read_bytes().startswith(b"\x89PNG")


def loses_its_master(there: Cluster, times: int) -> None:
    """The machine of the master is gone once the standby is known to all; it trains."""
    wait_until(lambda: there.look(now()) or there.can_lose_the_command(now()), WAIT_S)
    former = there.chief
    former.kill_all()
    wait_until(lambda: there.look(now()), WAIT_S)
    assert there.chief is not former
    follower = Follower(there.run_dir)
    follower.wait(there.master, lambda: follower.resumptions == times, WAIT_S)
    before = follower.samples
    follower.wait(there.master, lambda: follower.samples > before, WAIT_S)


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.caffe
def test_the_machine_of_the_master_may_be_lost_twice(tmp_path: Path) -> None:
    """Another standby starts on the machine that is free."""
    words = {"script": False, "standby": True, "workers": 2, "hosts": 2, "step_ms": 20.0}
    asked = Namespace(**words, servers="0", checkpoint_interval=1.0)
    with cluster(asked, "async", 1, tmp_path, os.urandom(8).hex()) as there:
        loses_its_master(there, 1)
        loses_its_master(there, 2)
        there.end()
    result = result_of(there.run_dir)
    assert result["reason"] == "stopped by Ctrl-C"
    assert result["accuracy"] > 0
