"""The socket between the master and a worker on its machine."""

from __future__ import annotations

import json
import math
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from speedo.errors import EngineError, MissingKeyError, StoreUnavailableError
from speedo.exchange.channel import (
    SOCKET,
    Channels,
    EventQueue,
    Message,
    WorkerChannel,
    pack,
    refusal,
    unpack,
)
from speedo.exchange.core_affinity import DriverThread
from speedo.messages import (
    NO_RESULTS,
    NO_TUNING,
    Kind,
    OwnResults,
    Refused,
    SaveState,
    StateSaved,
    Team,
    Train,
    Trained,
    Tuning,
)

WAIT_S = 10.0
TRAIN = Train(3, 2, 17, 5, 400, 10, 2, Kind.DELTA, 0.1 + 0.2, True, OwnResults(15, 16, 0.5))
TRAINED = Trained(3, 2, 17, 1 / 3, 640, {"fetch": 1e-9, "compute": 0.1})


class Master:
    def __init__(self, folder: Path) -> None:
        self.heard: EventQueue[Message] = EventQueue()
        self.channels = Channels(folder, self.heard)


@pytest.fixture
def master(tmp_path: Path) -> Master:
    return Master(tmp_path)


def serve(folder: Path, worker: int, answers: list[Trained | Refused | StateSaved]) -> list[object]:
    """What a worker was told; it answers each with the next of `answers`."""
    told: list[object] = []
    with WorkerChannel(str(folder), worker, 1) as channel:
        for answer, command in zip(answers, channel.commands(), strict=False):
            told.append(command)
            channel.answer(answer)
    return told


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_json_has_no_word_for_arrives_as_none_that_is_finite(loss: float) -> None:
    arrived = unpack(pack(Trained(3, 2, 17, loss, 640)))
    assert isinstance(arrived, Trained)
    assert math.isnan(arrived.loss)


@pytest.mark.parametrize(
    "message",
    [
        Refused(3, 2, 17, "the file no \udcff here is not UTF-8", blame=False),
        TRAIN,
        Train(0, 1, 1, 0, 0, 1, 1, Kind.GRADIENT),
        SaveState(1, 2, 3),
        TRAINED,
        Refused(1, 2, 3, 'a "cause"\nin two lines', False),
        StateSaved(1, 2, 3, 4, 5, 6, 7, "no room"),
        DriverThread(100, 101, [0, 3]),
    ],
)
def test_a_message_arrives_as_it_was(message: Message) -> None:
    line = pack(message)
    assert line.count(b"\n") == 1
    assert unpack(line) == message


def test_a_loss_that_is_no_number_arrives_as_such() -> None:
    loss = unpack(pack(Trained(0, 1, 1, float("nan"), 8))).loss  # type: ignore[union-attr]
    assert loss != loss


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[1]", b'["Joined", 1]', b'["Train", 1]', b"[[]]", b"[]"]
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        unpack(line)


COUNTS = st.integers(0, 2**53)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
RECORDS = st.lists(st.tuples(COUNTS, COUNTS, COUNTS)).map(tuple)
TEAMS = st.builds(
    Team,
    COUNTS,
    RECORDS,
    rounds=COUNTS,
    rate=NUMBERS,
    patience_s=NUMBERS,
    spread=st.lists(st.lists(COUNTS).map(tuple)).map(tuple),
)
OWN = st.builds(OwnResults, COUNTS, COUNTS, NUMBERS)
TUNING = st.builds(Tuning, st.none() | NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS, COUNTS)
TRAINS = st.builds(
    Train,
    *[COUNTS] * 7,
    st.sampled_from(Kind),
    st.none() | NUMBERS,
    st.booleans(),
    st.just(NO_RESULTS) | OWN,
    st.none() | TEAMS,
    st.just(NO_TUNING) | TUNING,
    NUMBERS,
    COUNTS,
)
RESULTS = st.builds(
    Trained,
    *[COUNTS] * 3,
    NUMBERS,
    COUNTS,
    st.dictionaries(st.text(), NUMBERS),
    st.lists(NUMBERS).map(tuple),
    st.booleans(),
    st.booleans(),
    RECORDS,
    st.booleans(),
)


@given(st.one_of(TRAINS, RESULTS, st.builds(Refused, *[COUNTS] * 3, st.text(), st.booleans())))
def test_any_message_arrives_as_it_was(message: Message) -> None:
    line = pack(message)
    assert line.index(b"\n") == len(line) - 1
    assert unpack(line) == message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**63) | NUMBERS | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=9,
)
NAMES = st.sampled_from(["Train", "Trained", "Refused", "SaveState", "StateSaved", "Pause"])


@given(
    JSON | st.tuples(NAMES).flatmap(lambda name: st.lists(JSON, max_size=16).map([*name].__add__))
)
@example(["Train", *[0] * 7, 1, None, False, None, {}, None, 0.0, 1])
@example(["Train", *[0] * 7, 1, None, False, 5, None, None, 0.0, 1])
def test_what_comes_from_anybody_is_a_message_or_refused(values: object) -> None:
    """Else the thread that hears it would end, and nobody would notice."""
    with suppress(ValueError, TypeError):
        unpack(json.dumps(values).encode())


def test_a_worker_answers_each_command_and_refuses_a_turn_that_raised(
    master: Master, tmp_path: Path
) -> None:
    def turn(command: Train) -> Trained:
        if command.ticket == 1:
            raise EngineError("the net has no such blob")
        return Trained(0, 1, command.ticket, 0.5, 8)

    def save(command: SaveState) -> StateSaved:
        return StateSaved(0, 1, command.version)

    def work() -> None:
        with WorkerChannel(str(tmp_path), 0, 1) as channel:
            channel.serve(turn, save)

    worker = threading.Thread(target=work)
    worker.start()
    assert master.channels.wait_for(0, 1, WAIT_S)
    commands = [Train(0, 1, n, n, n, 1, 1, Kind.DELTA) for n in (1, 2)]
    for command in (*commands, SaveState(0, 1, 7)):
        assert master.channels.send(command)
    heard = [master.heard.get(timeout=WAIT_S) for _ in range(3)]
    assert heard == [
        Refused(0, 1, 1, "the net has no such blob", blame=True),
        Trained(0, 1, 2, 0.5, 8),
        StateSaved(0, 1, 7),
    ]
    master.channels.close(0, 1)
    worker.join(WAIT_S)
    assert not worker.is_alive()


def test_commands_and_answers_of_two_workers_do_not_mix(master: Master, tmp_path: Path) -> None:
    told: dict[int, list[object]] = {}
    threads = [
        threading.Thread(
            target=lambda worker=worker: told.update(
                {worker: serve(tmp_path, worker, [Trained(worker, 1, n, 0.5, 8) for n in range(3)])}
            )
        )
        for worker in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for worker in (0, 1):
        assert master.channels.wait_for(worker, 1, WAIT_S)
    commands = {w: [Train(w, 1, n, n, n, 1, 1, Kind.DELTA) for n in range(3)] for w in (0, 1)}
    for pair in zip(*commands.values(), strict=True):
        for command in pair:
            assert master.channels.send(command)
    heard = [master.heard.get(timeout=WAIT_S) for _ in range(6)]
    for thread in threads:
        thread.join(WAIT_S)
    assert told == commands
    for worker in (0, 1):
        own = [one for one in heard if isinstance(one, Trained) and one.worker == worker]
        assert [one.ticket for one in own] == [0, 1, 2]


def test_after_the_end_of_commands_the_turn_under_way_is_still_answered(
    master: Master, tmp_path: Path
) -> None:
    with WorkerChannel(str(tmp_path), 3, 2) as channel:
        assert master.channels.wait_for(3, 2, WAIT_S)
        assert master.channels.send(TRAIN)
        commands = channel.commands()
        assert next(commands) == TRAIN
        master.channels.close(3, 2)
        assert not master.channels.send(TRAIN)
        channel.answer(TRAINED)
        assert master.heard.get(timeout=WAIT_S) == TRAINED
        assert list(commands) == []


def test_a_worker_that_is_gone_is_waited_for_no_longer(master: Master) -> None:
    gone, opened = threading.Event(), []
    waiting = threading.Thread(
        target=lambda: opened.append(master.channels.wait_for(0, 1, 60.0, gone=gone.is_set)),
        daemon=True,
    )
    waiting.start()
    gone.set()
    master.channels.look_again()
    waiting.join(WAIT_S)
    assert opened == [False]


def test_a_worker_without_a_channel_is_known(master: Master) -> None:
    assert not master.channels.wait_for(0, 1, 0.01)
    assert not master.channels.send(TRAIN)


def test_a_command_to_a_worker_that_died_is_lost_and_raises_nothing(
    master: Master, tmp_path: Path
) -> None:
    with WorkerChannel(str(tmp_path), 3, 2):
        assert master.channels.wait_for(3, 2, WAIT_S)
    for _ in range(3):
        assert master.channels.send(TRAIN)


@pytest.mark.slow
@pytest.mark.parametrize("words", [b"", b"nonsense\n", b"[1]\n", b"[0, 1]\nnonsense\n"])
def test_nonsense_from_a_caller_harms_nobody(master: Master, tmp_path: Path, words: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(WAIT_S)
        caller.connect(f"{tmp_path}/{SOCKET}")
        caller.sendall(words)
        caller.shutdown(socket.SHUT_WR)
        assert master.heard.get(timeout=0.5) is None
        assert caller.recv(1) == b"", "it was answered"
    with WorkerChannel(str(tmp_path), 3, 2) as channel:
        assert master.channels.wait_for(3, 2, WAIT_S)
        channel.answer(TRAINED)
        assert master.heard.get(timeout=WAIT_S) == TRAINED


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (EngineError("bad"), True),
        (StoreUnavailableError("away"), False),
        (MissingKeyError("gone"), False),
    ],
)
def test_a_worker_is_not_blamed_for_the_store(error: Exception, blame: bool) -> None:
    assert refusal(TRAIN, error) == Refused(3, 2, 17, str(error), blame)


@pytest.mark.slow
def test_the_end_of_a_channel_is_told_with_its_worker(tmp_path: Path) -> None:
    heard: EventQueue[Message] = EventQueue()
    told: list[tuple[int, int, str]] = []
    channels = Channels(tmp_path, heard, lambda *ended: told.append(ended))
    with WorkerChannel(str(tmp_path), 3, 2) as channel:
        assert channels.wait_for(3, 2, WAIT_S)
        channel._socket.sendall(b'{"message": "Train"}\n')
        assert heard.get(1.0) is None
    ((worker, incarnation, cause),) = told
    assert (worker, incarnation) == (3, 2)
    assert cause.startswith("its channel sent what is no message")


@pytest.mark.slow
def test_a_master_without_free_files_hears_those_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that takes new channels ended, and every later worker was waited for."""
    failing = [OSError(24, "Too many open files"), OSError(24, "Too many open files")]
    accept = socket.socket.accept

    def fail(listener: socket.socket) -> object:
        if failing:
            raise failing.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail)
    channels = Channels(tmp_path, EventQueue())
    with WorkerChannel(str(tmp_path), 3, 2):
        assert channels.wait_for(3, 2, WAIT_S)
