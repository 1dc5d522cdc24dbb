"""Every mistake ends with one sentence that names culprit and remedy, and leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from speedo.storage.redis.server import PrivateRedis
from tests.cli.homes import write_homes
from tests.cli.mistakes import MISTAKES, Mistake
from tests.support.commands import commands, free_port, still_open
from tests.support.processes import lines_of

LIMIT_S = 90
LOOK_S = 0.3  # how often the ports that a command listens at are noted
NATIVE = ("Traceback", "*** Check failure", "Aborted", "Fatal Python error", "    @ ")


@dataclass(frozen=True)
class Ending:
    status: int
    out: str
    errors: str
    left: list[list[str]]
    listened: set[tuple[str, int]]
    folder: Path


class Desk:
    """Types commands, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self._folder = folder
        self._stack = ExitStack()
        taken = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.names = {
            "home": str(self.home),
            "taken": str(taken.getsockname()[1]),
            "free": str(free_port()),
        }
        self.home.mkdir()
        write_homes(self.home)

    def ending(self, mistake: Mistake) -> Ending:
        if pytest.mark.redis in mistake.marks and "redis" not in self.names:
            server = self._stack.enter_context(PrivateRedis())
            self.names["redis"] = urlsplit(server.url).netloc.rpartition("@")[2]
        folder = self._folder / mistake.name
        folder.mkdir()
        with commands(folder) as speedo:
            process = speedo.start(
                *mistake.command.format(**self.names).split(),
                environment={"SPEEDO_REDIS_PASSWORD": ""},
            )
            listened: set[tuple[str, int]] = set()
            for _ in range(round(LIMIT_S / LOOK_S)):
                try:
                    out, errors = process.communicate(timeout=LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    listened |= speedo.listening()
            else:
                pytest.fail(f"{mistake.name} did not end within {LIMIT_S} s")
            left = [] if speedo.all_gone_within(3) else lines_of(speedo.left())
        return Ending(process.returncode, out, errors, left, listened, folder)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("mistakes"))
    yield desk
    desk.close()


@pytest.mark.caffe
@pytest.mark.parametrize(
    "mistake", [pytest.param(one, id=one.name, marks=one.marks) for one in MISTAKES]
)
def test_a_mistake_is_told_in_a_sentence_and_leaves_nothing(desk: Desk, mistake: Mistake) -> None:
    ending = desk.ending(mistake)
    assert ending.status == mistake.status, ending.errors
    said = [line for line in ending.errors.splitlines() if line.startswith("speedo: ")]
    assert len(said) == 1, ending.errors
    assert mistake.culprit.format(**desk.names) in said[0]
    assert mistake.remedy in said[0]
    for native in NATIVE:
        assert native not in ending.errors + ending.out
    assert ending.left == []
    assert still_open(ending.listened) == []
    if mistake.trains:
        assert "(raylet)" not in ending.out
        return
    assert ending.out == ""
    assert len(ending.errors.splitlines()) <= 4, ending.errors
    # A second try in the same place must not find a run where none has been.
    assert [
        path for path in ending.folder.rglob("*") if path.name in ("metrics.jsonl", "result.json")
    ] == []
