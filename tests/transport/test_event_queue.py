"""One reader for events of threads and for lines of sockets."""

from __future__ import annotations

import socket
import threading

from speedo.transport.event_queue import Inbox

WAIT_S = 10.0


def test_what_a_thread_puts_wakes_the_reader() -> None:
    inbox: Inbox[int] = Inbox()
    timer = threading.Timer(0.1, inbox.put, [5])
    timer.start()
    assert inbox.get(WAIT_S) == 5
    timer.join()


def test_nothing_comes_in_time() -> None:
    inbox: Inbox[int] = Inbox()
    assert inbox.get(0.01) is None
    assert inbox.get(0.0) is None
    inbox.put(1)
    assert inbox.get(0.0) == 1
    assert inbox.get(0.0) is None


def test_many_threads_lose_nothing_and_keep_their_order() -> None:
    inbox: Inbox[tuple[int, int]] = Inbox()
    threads = [
        threading.Thread(target=lambda who=who: [inbox.put((who, n)) for n in range(500)])
        for who in range(4)
    ]
    for thread in threads:
        thread.start()
    found = [inbox.get(WAIT_S) for _ in range(2000)]
    for who, thread in enumerate(threads):
        thread.join()
        assert [one[1] for one in found if one is not None and one[0] == who] == list(range(500))
    assert inbox.get(0.01) is None


def test_lines_arrive_whole_however_they_are_cut() -> None:
    inbox: Inbox[bytes] = Inbox()
    ours, theirs = socket.socketpair()
    inbox.listen(ours, bytes)
    for piece in (b"on", b"e\ntwo\nth", b"ree\n"):
        theirs.sendall(piece)
    assert [inbox.get(WAIT_S) for _ in range(3)] == [b"one", b"two", b"three"]
    long = b"x" * 1_000_000
    sender = threading.Thread(target=theirs.sendall, args=(long + b"\n",))
    sender.start()
    assert inbox.get(WAIT_S) == long
    sender.join()
    theirs.close()
    assert inbox.get(0.05) is None
    assert ours.fileno() == -1


def test_a_line_that_can_not_be_read_ends_its_socket_and_no_other() -> None:
    inbox: Inbox[int] = Inbox()
    pairs = [socket.socketpair() for _ in range(2)]
    for ours, _ in pairs:
        inbox.listen(ours, int)
    pairs[0][1].sendall(b"1\nnonsense\n2\n")
    pairs[1][1].sendall(b"3\n")
    assert inbox.get(WAIT_S) == 3
    assert inbox.get(0.05) is None
    assert pairs[0][0].fileno() == -1
    assert pairs[1][0].fileno() != -1
    for pair in pairs:
        for end in pair:
            end.close()
