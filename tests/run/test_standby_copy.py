"""A standby has each file of the run as the master has it, whatever happens on the way."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from speedo.errors import ConfigError, StoreError, StoreTimeoutError
from speedo.run import standby_copy, standby_mirror
from speedo.run.standby_copy import GONE_S, RunFollower, files_of, read_follower
from speedo.run.standby_mirror import STUCK_S, RunMirror
from speedo.storage import keys
from speedo.storage.memory_store import MemoryStore

RUN = "0123456789ab"
HERE = "10.0.0.7:56126"


class Pair:
    """A master's run directory and its standby's, over a store with a clock of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.store = MemoryStore(clock=lambda: self.now)
        self.there, self.here = folder / "master", folder / "standby"
        for one in (self.there, self.here):
            (one / "logs").mkdir(parents=True)
        self.said: list[str] = []
        self.told: list[tuple[str, bool]] = []
        self.mirror = RunMirror(
            *(self.store, RUN, self.there, self.said.append),
            lambda *address_and_may_come: self.told.append(address_and_may_come),
            lambda: self.now,
        )
        self.standby = self.another()

    def another(self) -> RunFollower:
        return RunFollower(self.store, RUN, self.here, HERE, lambda: self.now)

    def go_on(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            self.standby.follow()
            self.mirror.step()
            self.now += 1.0

    def files(self, folder: Path) -> dict[str, bytes]:
        return {name: path.read_bytes() for name, path in files_of(folder)}

    def parcels(self) -> list[str]:
        return [key for key in self.store.keys(keys.prefix(RUN)) if ":parcel:" in key]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_what_was_there_before_and_what_comes_after_is_all_there(pair: Pair) -> None:
    (pair.there / "config.yaml").write_text("mode: sync\n")
    (pair.there / "metrics.jsonl").write_text('{"time":1}\n')
    (pair.there / "empty").touch()
    pair.go_on()
    with (pair.there / "metrics.jsonl").open("a") as file:
        file.write('{"time":2}\n')
    (pair.there / "checkpoints").mkdir()
    (pair.there / "checkpoints" / "000000-000000000007.checkpoint").write_bytes(b"\0" * 5000)
    pair.go_on()
    assert pair.files(pair.here) == pair.files(pair.there)
    assert pair.parcels() == []
    assert pair.said == [f"a standby at {HERE} follows this run"]
    assert set(pair.told) == {(HERE, True)}


def test_a_line_that_is_being_written_comes_once_it_is_whole(pair: Pair) -> None:
    log = pair.there / "train.log"
    log.write_text("one\ntw")
    pair.go_on()
    assert (pair.here / "train.log").read_text() == "one\n"
    log.write_text("one\ntwo\n")
    pair.go_on()
    assert (pair.here / "train.log").read_text() == "one\ntwo\n"


def test_each_machine_has_its_own_lock_and_epoch_and_no_half_written_file(pair: Pair) -> None:
    for name in ("lock", "epoch", ".config.yaml.7.part"):
        (pair.there / name).write_text("7\n")
    pair.go_on()
    assert pair.files(pair.here) == {}
    assert not list(pair.here.glob(".*"))


def test_a_checkpoint_that_newer_ones_replace_goes_here_too(pair: Pair) -> None:
    (pair.there / "old.checkpoint").write_bytes(b"old")
    pair.go_on()
    (pair.there / "old.checkpoint").unlink()
    (pair.there / "new.checkpoint").write_bytes(b"new")
    pair.go_on()
    assert pair.files(pair.here) == {"new.checkpoint": b"new"}


def test_a_large_file_comes_in_pieces_and_the_log_goes_on_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_mirror, "PIECE_BYTES", 100)
    monkeypatch.setattr(standby_mirror, "WINDOW_BYTES", 300)
    content = random.Random(1).randbytes(1950)
    (pair.there / "model").write_bytes(content)
    log = pair.there / "train.log"
    seen_before_the_file = False
    for number in range(40):
        with log.open("a") as file:
            file.write(f"{number}\n")
        pair.go_on(1)
        on_way = sum(len(pair.store._find(key)[1]) for key in pair.parcels())
        assert on_way <= 300, "not more than that waits in Redis"
        whole = (pair.here / "model").exists()
        seen_before_the_file |= (pair.here / "train.log").exists() and not whole
        assert not whole or (pair.here / "model").read_bytes() == content
    pair.go_on()
    assert seen_before_the_file
    assert pair.files(pair.here) == pair.files(pair.there)


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_a_parcel_whose_answer_was_lost_is_sent_again_as_it_was(
    pair: Pair, seed: int, carried_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby may have taken it, so another content under its number would be left out."""
    monkeypatch.setattr(standby_mirror, "PIECE_BYTES", 100)
    chance, write = random.Random(seed), pair.store.write
    pair.go_on()

    def lost(key: str, *arguments: Any, **options: Any) -> None:
        fails = ":parcel:" in key and chance.random() < 0.4
        if carried_out or not fails:
            write(key, *arguments, **options)
        if fails:
            raise StoreTimeoutError("no answer")

    monkeypatch.setattr(pair.store, "write", lost)
    for number in range(60):
        with (pair.there / "train.log").open("a") as file:
            file.write(f"{number} " * chance.randrange(20) + "\n")
        if number % 10 == 0:
            (pair.there / "model").write_bytes(chance.randbytes(chance.randrange(350)))
        with suppress(StoreError):
            pair.mirror.step()
        if chance.random() < 0.7:
            pair.standby.follow()
        pair.now += 0.2
    monkeypatch.setattr(pair.store, "write", write)
    pair.go_on()
    assert pair.files(pair.here) == pair.files(pair.there)


def test_a_standby_that_takes_little_is_not_left_behind(pair: Pair) -> None:
    """As over a link where each answer takes a second, while the log grows five times a second."""
    log = pair.there / "train.log"
    pair.go_on()
    for number in range(200):
        with log.open("a") as file:
            file.write(f"{number}\n")
        pair.mirror.step()
        if number % 5 == 0:
            pair.standby._beat()
            pair.standby._take()
        pair.now += 0.2
        assert len(pair.parcels()) <= 16
    pair.standby.take_rest()
    behind = 200 - len((pair.here / "train.log").read_text().splitlines())
    assert behind <= 80, "lines that are not on the way"


def test_a_standby_that_is_gone_is_told_and_what_waited_for_it_is_removed(pair: Pair) -> None:
    (pair.there / "train.log").write_text("one\n")
    pair.standby.follow()
    pair.mirror.step()
    assert pair.parcels()
    pair.now += GONE_S + 1
    pair.mirror.step()
    assert pair.parcels() == []
    assert "has not been heard of" in pair.said[-1]
    assert pair.told[-1] == ("", True), "it may be alive, and come"
    mirror, may_come = pair.mirror, pair.mirror._may_come
    mirror.close()
    pair.mirror = RunMirror(
        *(pair.store, RUN, pair.there, pair.said.append, mirror._tell, lambda: pair.now),
        may_come=may_come,
    )
    pair.mirror.step()
    assert pair.told[-1] == ("", True), "also by another attempt at the run"
    pair.standby = pair.another()
    pair.go_on()
    assert pair.files(pair.here) == pair.files(pair.there), "another one may come"


def test_a_standby_that_leaves_is_no_warning(pair: Pair) -> None:
    pair.go_on()
    pair.standby.leave()
    pair.mirror.step()
    assert pair.said[-1] == f"the standby at {HERE} has left; the run goes on without one"
    pair.now += 1.0
    pair.mirror.step()
    assert pair.told[-1] == ("", False)
    pair.another().follow()  # it may come at once


def test_a_run_has_one_standby(pair: Pair) -> None:
    pair.go_on()
    with pytest.raises(ConfigError, match=r"another standby, at 10\.0\.0\.7:56126, follows"):
        pair.another().follow()
    assert read_follower(pair.store, RUN) is not None


def test_what_a_restarted_redis_has_lost_comes_again(pair: Pair) -> None:
    (pair.there / "train.log").write_text("one\n")
    pair.standby.follow()
    pair.mirror.step()
    pair.store.delete(*pair.parcels())
    for _ in range(int(STUCK_S) + 3):
        pair.go_on(1)
    assert pair.files(pair.here) == {"train.log": b"one\n"}


def test_a_log_that_was_replaced_by_a_shorter_one_comes_anew(pair: Pair) -> None:
    log = pair.there / "metrics.jsonl"
    log.write_text("1\n2\n3\n")
    pair.go_on()
    log.write_text("1\n")
    pair.go_on()
    assert (pair.here / "metrics.jsonl").read_text() == "1\n"


def test_no_file_leaves_the_run_directory(pair: Pair) -> None:
    for name in ("../stolen", "/tmp/stolen", ""):
        with pytest.raises(StoreError, match="no part of a run"):
            standby_copy._inside(name)


@pytest.mark.parametrize("seed", range(20))
def test_random_writes_and_losses_leave_both_the_same(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(60):
        match chance.randrange(7):
            case 0 | 1:
                with (pair.there / "metrics.jsonl").open("a") as file:
                    file.write(f"{number} " * chance.randrange(40) + "\n")
            case 2:
                with (pair.there / "logs" / "master.log").open("a") as file:
                    file.write(f"half {number}")
            case 3:
                (pair.there / f"{chance.randrange(3)}.checkpoint").write_bytes(
                    chance.randbytes(chance.randrange(400))
                )
            case 4:
                (pair.there / f"{chance.randrange(3)}.checkpoint").unlink(missing_ok=True)
            case 5:
                pair.store.delete(*pair.parcels())
            case 6:
                pair.now += chance.choice((1.0, GONE_S + 1))
        if chance.random() < 0.7:
            pair.mirror.step()
        if chance.random() < 0.7:
            pair.standby.follow()
        pair.now += chance.random()
    with (pair.there / "logs" / "master.log").open("a") as file:
        file.write("\n")
    for _ in range(12):
        pair.go_on(1)
    assert pair.files(pair.here) == pair.files(pair.there)
