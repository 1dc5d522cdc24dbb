"""What the master says of a store that it waits for, from its first call to it on."""

from __future__ import annotations

import threading

import pytest

from speedo.actors.master_actor import MasterActor
from speedo.watch.status import StatusBoard


def master() -> MasterActor:
    """One that has not read its run yet."""
    made = object.__new__(MasterActor)
    made._troubles, made._troubling, made._training = {}, threading.Lock(), None
    return made


def test_a_master_that_begins_says_what_it_waits_for(capfd: pytest.CaptureFixture[str]) -> None:
    """It has no status yet, and must not die of that: it takes a run over at a store that answers late."""
    begins = master()
    begins._store_trouble("no Redis answers")
    begins._trouble_of("users", "no Redis answers")
    begins._store_trouble(None)
    begins._trouble_of("users", None)
    said = capfd.readouterr().err.splitlines()
    assert said == ["waiting: no Redis answers"] * 2 + ["the store is back"] * 2
    begins._board = StatusBoard("sync", 10, 8, None)
    begins._store_trouble("away")
    assert begins._board.store_trouble == "away"


class Servers:
    """Takes any trouble."""

    def trouble_of(self, index: int, problem: str) -> None:
        pass


def test_the_trouble_of_a_server_is_told_until_it_is_over() -> None:
    one = master()
    one._board, one._servers = StatusBoard("sync", 10, 8, None), Servers()  # type: ignore[assignment]
    one.trouble_of_server(1, "no Redis answers")
    assert one._board.store_trouble == "server 1: no Redis answers"
    one.trouble_of_server(1, "")
    assert one._board.store_trouble == ""
