"""The relay of a worker's channel: commands and answers pass in their order, and its end is that of the commands."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from speedo.exchange import channel_relay
from speedo.exchange.channel import WorkerChannel
from speedo.exchange.channel_relay import ChannelRelay
from speedo.messages import Kind, Refused, SaveState, StateSaved, Train
from tests.support.left_behind import short_folder


def train(ticket: int) -> Train:
    return Train(3, 2, ticket, ticket, 0, 1, 1, Kind.DELTA)


def test_commands_and_answers_pass_in_their_order_until_it_is_closed() -> None:
    heard = SimpleQueue[Any]()
    relay = ChannelRelay(Path(short_folder("relay-")), heard.put)
    with WorkerChannel(str(relay.folder), 3, 2) as channel:
        commands = channel.commands()
        sent = [train(1), SaveState(3, 2, 7), train(2)]
        for one in sent:
            relay.send(one)
        assert [next(commands) for _ in sent] == sent
        said = [Refused(3, 2, one, "no memory") for one in range(200)]
        for answer in said:
            channel.answer(answer)
        channel.answer(StateSaved(3, 2, 7, problem="none"))
        assert [heard.get(timeout=30) for _ in said] == said
        assert heard.get(timeout=30) == StateSaved(3, 2, 7, problem="none")
        relay.close()
        assert list(commands) == []
        channel.answer(said[0])  # the present command is still answered
        assert heard.get(timeout=30) == said[0]


def test_a_command_to_a_worker_that_is_gone_is_lost_quietly() -> None:
    relay = ChannelRelay(Path(short_folder("relay-")), print)
    with WorkerChannel(str(relay.folder), 3, 2):
        relay.send(train(1))
    for ticket in range(2, 5):
        relay.send(train(ticket))
    relay.close()


@pytest.mark.slow
def test_a_worker_that_takes_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is stopped; its commands are lost, and the end of the relay does not wait for them."""
    monkeypatch.setattr(channel_relay, "SEND_S", 0.2)
    relay = ChannelRelay(Path(short_folder("relay-")), print)
    with WorkerChannel(str(relay.folder), 3, 2):
        large = replace(train(1), records=((1, 2, 3),) * 200_000)
        call = threading.Thread(target=lambda: (relay.send(large), relay.close()), daemon=True)
        call.start()
        call.join(30)
        assert not call.is_alive()


def test_a_worker_that_connects_after_the_end_gets_no_command() -> None:
    relay = ChannelRelay(Path(short_folder("relay-")), print)
    relay.close()
    with WorkerChannel(str(relay.folder), 3, 2) as channel:
        assert list(channel.commands()) == []
