"""One reader for events of threads and for lines of sockets."""

from __future__ import annotations

import socket
import threading

import pytest

from speedo.exchange.channel import EventQueue

WAIT_S = 10.0


def test_what_a_thread_puts_wakes_the_reader() -> None:
    events: EventQueue[int] = EventQueue()
    timer = threading.Timer(0.1, events.put, [5])
    timer.start()
    assert events.get(WAIT_S) == 5
    timer.join()


def test_nothing_comes_in_time() -> None:
    events: EventQueue[int] = EventQueue()
    assert events.get(0.01) is None
    assert events.get(0.0) is None
    events.put(1)
    assert events.get(0.0) == 1
    assert events.get(0.0) is None


def test_many_threads_lose_nothing_and_keep_their_order() -> None:
    events: EventQueue[tuple[int, int]] = EventQueue()
    threads = [
        threading.Thread(target=lambda who=who: [events.put((who, n)) for n in range(500)])
        for who in range(4)
    ]
    for thread in threads:
        thread.start()
    found = [events.get(WAIT_S) for _ in range(2000)]
    for who, thread in enumerate(threads):
        thread.join()
        assert [one[1] for one in found if one is not None and one[0] == who] == list(range(500))
    assert events.get(0.01) is None


def test_what_is_put_last_comes_behind_what_the_sockets_have_by_then() -> None:
    events: EventQueue[bytes] = EventQueue()
    ours, theirs = socket.socketpair()
    events.listen(ours, bytes)
    events.put(b"first")
    theirs.sendall(b"result\n")
    events.put_last(b"end")
    assert [events.get(WAIT_S) for _ in range(3)] == [b"first", b"result", b"end"]
    events.put_last(b"again")
    events.put(b"now")
    assert events.waiting(9) == [b"now", b"again"]
    assert events.get(0.01) is None
    theirs.close()


def test_lines_arrive_whole_however_they_are_cut() -> None:
    events: EventQueue[bytes] = EventQueue()
    ours, theirs = socket.socketpair()
    events.listen(ours, bytes)
    for piece in (b"on", b"e\ntwo\nth", b"ree\n"):
        theirs.sendall(piece)
    assert [events.get(WAIT_S) for _ in range(3)] == [b"one", b"two", b"three"]
    long = b"x" * 1_000_000
    sender = threading.Thread(target=theirs.sendall, args=(long + b"\n",))
    sender.start()
    assert events.get(WAIT_S) == long
    sender.join()
    theirs.close()
    assert events.get(0.05) is None
    assert ours.fileno() == -1


def test_a_line_that_can_not_be_read_ends_its_socket_and_no_other() -> None:
    events: EventQueue[int] = EventQueue()
    pairs = [socket.socketpair() for _ in range(2)]
    for ours, _ in pairs:
        events.listen(ours, int)
    pairs[0][1].sendall(b"1\nnonsense\n2\n")
    pairs[1][1].sendall(b"3\n")
    assert events.get(WAIT_S) == 3
    assert events.get(0.05) is None
    assert pairs[0][0].fileno() == -1
    assert pairs[1][0].fileno() != -1
    for pair in pairs:
        for end in pair:
            end.close()


def test_what_waits_is_taken_at_once_and_no_more_than_asked_for() -> None:
    events: EventQueue[bytes] = EventQueue()
    assert events.waiting(3) == []
    ours, theirs = socket.socketpair()
    events.listen(ours, bytes)
    events.put(b"zero")
    theirs.sendall(b"one\ntwo\nthree\nhalf")
    assert events.get(WAIT_S) == b"zero"
    assert events.waiting(2) == [b"one", b"two"]
    assert events.waiting(5) == [b"three"]
    assert events.waiting(5) == []
    theirs.close()


def cry(line: bytes) -> bytes:
    if line == b"bad":
        raise KeyError("no field of ours")
    return line


def test_a_socket_that_is_not_heard_any_more_is_told_with_its_cause() -> None:
    """One that sent nonsense was closed without a word, or ended the driver; its worker was waited for."""
    events: EventQueue[bytes] = EventQueue()
    told: list[str] = []
    pairs = [socket.socketpair() for _ in range(3)]
    for ours, _ in pairs:
        events.listen(ours, cry, told.append)
    pairs[0][1].sendall(b"good\n")
    assert events.get(WAIT_S) == b"good"
    pairs[0][1].sendall(b"bad\n")
    assert events.get(0.0) is None
    pairs[1][1].close()
    assert events.get(0.1) is None
    pairs[2][1].sendall(b"still heard\n")
    assert events.get(WAIT_S) == b"still heard"
    assert told == [
        "its channel sent what is no message: KeyError: 'no field of ours'",
        "its channel has ended",
    ]


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedo.exchange.channel.MOST_LINE_BYTES", 1000)
    events: EventQueue[bytes] = EventQueue()
    told: list[str] = []
    ours, theirs = socket.socketpair()
    events.listen(ours, bytes, told.append)
    theirs.sendall(b"x" * 1001)
    assert events.get(0.1) is None
    assert len(told) == 1
    assert "1,000 bytes" in told[0]
