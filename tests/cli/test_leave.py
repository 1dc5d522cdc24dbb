"""`speedo leave` where there is nobody to tell, or no time in what it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from speedo.actors.join.asked_to_leave import under_control
from speedo.actors.join.host_link import Offer
from speedo.cli.control import leave
from speedo.cli.units import parse_notice
from speedo.errors import ClusterError, ConfigError
from speedo.watch.control_socket import HOST_SUFFIX, running


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30.0), ("90", 90.0), ("2m", 120.0), ("0", 0.0), ("1.5 s", 1.5)]
)
def test_a_notice_is_seconds_or_minutes(text: str, seconds: float) -> None:
    assert parse_notice(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "1h", "30s30s", "nan"])
def test_another_notice_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="as in 30s, 90 or 2m"):
        parse_notice(text)


def test_a_machine_without_a_worker_says_what_to_name(runtime: Path) -> None:
    found = CliRunner().invoke(leave, [])
    assert isinstance(found.exception, ClusterError)
    assert "name the host that is to leave, as in `speedo leave node2`" in str(found.exception)


def test_a_worker_command_hears_how_much_time_is_left_and_is_no_run(runtime: Path) -> None:
    told: list[float] = []
    offer = Offer("10.0.0.5:56126", 2, Path("logs"), Path("data"))
    with under_control(offer, told, lambda text: pytest.fail(text)):
        assert running() == []
        found = CliRunner().invoke(leave, ["--in", "2m"])
        assert "2 workers of 10.0.0.5:56126: leaving, within 120 s" in found.output
        (socket,) = running(HOST_SUFFIX)
        for seconds in (True, -1, "30", None):
            with pytest.raises(ClusterError, match="no time to leave in"):
                socket.ask("leave", seconds=seconds)
        with pytest.raises(ClusterError, match="only knows `speedo leave`"):
            socket.ask("stop")
    assert told == [120.0]
    assert running(HOST_SUFFIX) == []
