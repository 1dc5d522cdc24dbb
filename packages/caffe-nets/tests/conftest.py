"""What the tests of the package share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffenets.command import main

Command = Callable[..., tuple[int, str, str]]


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
