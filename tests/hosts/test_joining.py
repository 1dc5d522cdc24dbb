"""The line to paste on each node: complete, and without the secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.actors.token import how_to_join

ADDRESS = "10.0.0.5:56126"


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPEEDO_TOKEN", "SPEEDO_TOKEN_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ann")


def test_the_usual_file_is_copied_to_its_usual_place() -> None:
    assert how_to_join(ADDRESS) == (
        "on each node, once /home/ann/.config/speedo/token is copied there (mode 0600): "
        "speedo worker --master 10.0.0.5:56126"
    )


def test_another_file_is_named_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    line = (
        "on each node, once /my keys/run is copied there (mode 0600): "
        "speedo worker --master 10.0.0.5:56126 --token-file '/my keys/run'"
    )
    assert how_to_join(ADDRESS, Path("/my keys/run")) == line
    monkeypatch.setenv("SPEEDO_TOKEN_FILE", "/my keys/run")
    assert how_to_join(ADDRESS) == line


def test_a_secret_from_the_environment_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEEDO_TOKEN", "0123456789abcdef" * 4)
    assert how_to_join(ADDRESS) == (
        "on each node, with SPEEDO_TOKEN set as here: speedo worker --master 10.0.0.5:56126"
    )
