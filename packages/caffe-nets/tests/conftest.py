"""What the tests of the package share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffenets import host_program
from caffenets.command import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a program around the package, whatever other tests of this process have imported."""
    monkeypatch.setattr(host_program, "_schema", host_program.own_schema)
    monkeypatch.setattr(host_program, "_remedy", host_program._take_out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `caffenets` with these words: its status, and what it printed to both outputs."""

    def command(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return command
