"""What `speedo status` writes of servers."""

from __future__ import annotations

from speedo.watch.status_text import table_of_servers


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
