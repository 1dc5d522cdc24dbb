"""The host's end of a launch, without ssh: it obeys its input, sends back output and logs, and ends with its input."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from speedo.launch.host_files import HostFiles
from speedo.launch.protocol import order, own_speedo, read_event
from speedo.version import VERSION
from tests.support.commands import how_loaded
from tests.support.processes import words_of


class End:
    """The process and its events."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            own_speedo("launch-host"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = read_event(line)
            assert found is not None, line
            self._events.put(dict(found))

    def close(self) -> None:
        self.process.kill()
        with suppress(BrokenPipeError), self.process:  # closes its pipes
            self._reading.join(30)

    def send(self, **values: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order(**values))
        self.process.stdin.flush()

    def next(self, key: str) -> dict[str, Any]:
        while True:
            found = self._events.get(timeout=30)
            if key in found or not key:
                return found

    def child(self) -> psutil.Process:
        """The command that it runs."""
        deadline = time.monotonic() + 120 * how_loaded()
        while time.monotonic() < deadline:
            for one in psutil.Process(self.process.pid).children():
                if "worker" in words_of(one):
                    return one
            time.sleep(0.05)
        raise AssertionError("no command")

    def wait_for_a_master(self, folder: Path) -> psutil.Process:
        """Start a worker that will wait for its master for ever."""
        words = ["worker", "--master", "127.0.0.1:9", "--timeout", "1000"]
        env = {"SPEEDO_TOKEN": "t" * 20}
        self.send(start="worker", argv=words, env=env, directory=str(folder), log_option="--logs")
        assert "waiting" in self.next("line")["line"]
        return self.child()


@pytest.fixture
def made() -> Iterator[Callable[[], End]]:
    """Makes them, and ends what it has made."""
    all_made: list[End] = []

    def make() -> End:
        all_made.append(End())
        return all_made[-1]

    yield make
    for one in all_made:
        one.close()


@pytest.fixture
def end(made: Callable[[], End]) -> End:
    return made()


def gone_within(process: psutil.Process, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except psutil.TimeoutExpired:
        return False
    return True


@pytest.mark.processes
def test_it_greets_with_its_version_and_sends_output_and_status(end: End, tmp_path: Path) -> None:
    assert end.next("hello")["hello"]["speedo"] == VERSION
    end.send(start="a", argv=["--version"], directory=str(tmp_path))
    assert end.next("line") == {"line": f"speedo {VERSION}", "of": "a", "stream": "out"}
    assert end.next("ended") == {"ended": "a", "status": 0}
    assert end.next("filed") == {"filed": "a"}


@pytest.mark.processes
def test_files_that_a_command_leaves_are_sent_with_their_paths(end: End, tmp_path: Path) -> None:
    (tmp_path / "logs" / "deep").mkdir(parents=True)
    (tmp_path / "logs" / "deep" / "one.log").write_bytes(b"\xff" * 100_000)
    (tmp_path / "logs" / "link").symlink_to("/etc/passwd")
    end.send(start="a", argv=["--version"], directory=str(tmp_path), collect=["logs", "absent"])
    files = HostFiles(tmp_path / "run", "node1")
    while "filed" not in (found := end.next("")):
        if "file" in found:
            files.part(found)
    sent = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert sent == [tmp_path / "run" / "hosts" / "node1" / "a" / "logs" / "deep" / "one.log"]
    assert sent[0].read_bytes() == b"\xff" * 100_000


@pytest.mark.ray
def test_the_end_of_the_input_ends_the_command(end: End, tmp_path: Path) -> None:
    child = end.wait_for_a_master(tmp_path)
    assert end.process.stdin is not None
    end.process.stdin.close()
    assert gone_within(child, 20)
    assert end.process.wait(120) == 0


@pytest.mark.ray
def test_a_command_that_ignores_sigterm_is_ended_at_once_after_hard(
    end: End, tmp_path: Path
) -> None:
    child = end.wait_for_a_master(tmp_path)
    child.suspend()  # deaf to everything but SIGKILL
    end.send(hard=True)
    assert end.process.stdin is not None
    end.process.stdin.close()
    assert gone_within(child, 10)


@pytest.mark.ray
def test_a_killed_end_takes_its_command_with_it(end: End, tmp_path: Path) -> None:
    child = end.wait_for_a_master(tmp_path)
    os.kill(end.process.pid, signal.SIGKILL)
    assert gone_within(child, 20)


@pytest.mark.processes
def test_a_command_that_cannot_start_is_told_with_the_cause(end: End, tmp_path: Path) -> None:
    end.send(start="a", argv=["--version"], directory=str(tmp_path / "absent"))
    assert "No such file or directory" in end.next("line")["line"]
    assert end.next("ended")["status"] == 1


@pytest.mark.parametrize("line", [b"Welcome!\n", b"{}\n", b"\x1b[1m[1]\n", b"\n"])
def test_what_a_login_shell_prints_is_no_event(line: bytes) -> None:
    assert read_event(line) is None
    assert read_event(b"motd\x1e" + json.dumps({"filed": "worker"}).encode()) == {"filed": "worker"}


def log_folders(folder: Path) -> list[Path]:
    return list(folder.glob("speedo-launch-*"))


@pytest.mark.processes
def test_logs_stay_on_the_host_until_the_launcher_has_them(
    made: Callable[[], End], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on its way to an ssh that was killed is lost; the next connection fetches it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for number, gets in enumerate((False, True)):
        end = made()
        end.send(start="a", argv=["doctor"], directory=str(tmp_path), log_option="--absent")
        folder = Path(end.next("started")["folder"])
        (folder / "logs").mkdir()
        (folder / "logs" / "host.log").write_text("told")
        end.next("filed")
        assert folder.is_dir()
        if gets:
            end.send(got="a")
        assert end.process.stdin is not None
        end.process.stdin.close()
        assert end.process.wait(120) == 0
        assert len(log_folders(tmp_path)) == 1, f"round {number}: the first stays, the second goes"
    again = made()
    again.send(fetch="a", folder=str(log_folders(tmp_path)[0]), directory=str(tmp_path), collect=[])
    while "filed" not in (found := again.next("")):
        assert "file" not in found or found["file"] == "logs/host.log"
    again.send(got="a")
    assert again.process.stdin is not None
    again.process.stdin.close()
    assert again.process.wait(120) == 0
    assert log_folders(tmp_path) == []
