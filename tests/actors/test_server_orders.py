"""Which host has which server."""

from __future__ import annotations

import pytest

from speedo.actors.servers.ray_servers import places_of

HOSTS = {"a": 2, "b": 1, "c": 1}  # workers, in the order of joining


@pytest.mark.parametrize(
    ("wanted", "hosts", "expected"),
    [
        ("1", HOSTS, ["a"]),
        ("2", HOSTS, ["a", "b"]),
        ("5", HOSTS, ["a", "b", "c", "a", "b"]),
        ("auto", HOSTS, ["a", "b", "c"]),
        ("1", {"a": 2, "serves": 0}, ["serves"]),
        ("3", {"a": 2, "serves": 0}, ["serves", "a", "serves"]),
        ("auto", {"here": 2}, ["here"]),
    ],
)
def test_servers_go_around_the_hosts_those_without_workers_first(
    wanted: str, hosts: dict[str, int], expected: list[str]
) -> None:
    assert places_of(wanted, hosts) == expected
