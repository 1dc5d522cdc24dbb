"""What bench.kills makes of what it saw."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bench.kills import RECORDS, Kill, Seen, by_workers, lost, records_not_once, told
from bench.support.timed import Follower
from speedo.run_dir.directory import METRICS
from speedo.system.json_lines import line_of

SEEN = Seen(
    seconds=60.0,
    records=4000,
    kills=[
        Kill("worker", 10.0, 1000, 0.5, back_s=1.0),
        Kill("master", 20.0, 1700, 3.0, back_s=4.0),
        Kill("worker", 22.0, 1700, None),  # in the pause of the one before
    ],
    present_s={4: 40.0, 3: 20.0},
    merged=Counter({4: 3600, 3: 400}),
)


def test_what_a_kill_has_lost_is_counted_up_to_the_next_one() -> None:
    assert lost(SEEN.kills, SEEN, 100.0) == [3.0, 2.0, 15.0]
    assert list(told("sync", SEEN, 100.0)) == [
        ["sync, all", "3", "20.0", "6.7", "1.8", "3.0", "3.0", "2.5", "4.0"],
        ["sync, master", "1", "2.0", "2.0", "3.0", "3.0", "3.0", "4.0", "4.0"],
        ["sync, worker", "2", "18.0", "9.0", "0.5", "0.5", "0.5", "1.0", "1.0"],
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
    for now, here in ((1.1, 4), (1.5, 3), (3.0, 4)):
        seen.look(now, here, 4)
    seen.kills.append(Kill("redis", 5.0, 0))
    seen.look(6.0, 4, 4)
    assert [one.back_s for one in seen.kills] == [2.0, None]


def test_results_that_were_not_merged_are_counted_but_not_those_of_the_end() -> None:
    seen = Seen()
    drops = (("late", "its ticket is not outstanding"), ("discarded", "the run is over"))
    lines = [{"event": "result", "decision": name, "reason": why} for name, why in drops]
    seen.count(
        [
            *lines,
            {"event": "result", "decision": "merged"},
            {"event": "finish", "left_out": 3, "trained_again": 4},
        ]
    )
    assert (+seen.unmerged, seen.left_out, seen.again) == (Counter(late=1), 3, 4)


def test_each_record_of_an_epoch_that_is_over_counts_once_and_what_was_undone_not_at_all() -> None:
    def merged(version: int, *records: tuple[int, int, int]) -> dict[str, object]:
        return {"event": "result", "decision": "merged", "version": version, "records": records}

    whole = [merged(1, (0, 0, RECORDS)), merged(2, (1, 0, 64)), merged(3, (2, 0, 64))]
    assert list(records_not_once(whole)) == []
    again = [whole[0], {"event": "resumed", "epoch": 1, "version": 0}, *whole]
    assert list(records_not_once(again)) == []
    (problem,) = records_not_once([merged(1, (0, 1, RECORDS), (0, 2, 4)), *whole[1:]])
    assert problem == f"epoch 0: 1 of {RECORDS} records are not trained, 2 twice or more"
