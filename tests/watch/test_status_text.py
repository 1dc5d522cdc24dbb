"""What `speedo status` writes of servers, and of a master that was restarted."""

from __future__ import annotations

from speedo.system.json_lines import plain
from speedo.watch.status import StatusBoard
from speedo.watch.status_text import lines_of, table_of_servers


def test_servers_have_a_row_each_with_the_size_of_their_range() -> None:
    servers = [
        {"server": 0, "host": "north:1a", "bytes": 862_160, "state": "serving"},
        {"server": 1, "host": "south:2b", "bytes": 12_000_000, "state": "waiting: no answer"},
    ]
    assert table_of_servers(servers) == [
        "server  host        MB  state",
        "     0  north:1a   0.9  serving",
        "     1  south:2b  12.0  waiting: no answer",
    ]


def test_restarts_of_the_master_are_counted_and_the_last_one_is_explained() -> None:
    board = StatusBoard("sync", 100, 8)
    known = {
        "run": "1a2b",
        "run_dir": "runs/1",
        "address": None,
        "remaining_s": None,
        "expected_workers": 2,
    }

    def written() -> list[str]:
        return [
            line for line in lines_of({**known, **plain(board.status(1.0))}) if "master" in line
        ]

    assert written() == []
    board.master_restarts = ("it did not answer", "Ray's raylet process on this machine died")
    assert written() == [
        "  master     restarted twice, the last time: Ray's raylet process on this machine died"
    ]
