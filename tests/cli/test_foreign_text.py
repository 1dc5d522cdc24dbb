"""Whatever hosts, workers, files and logs contain: nothing dies of it, and a terminal only prints it.

SPEEDO_FUZZ=20000 tries so many inputs of each kind instead of 2,000.
"""

from __future__ import annotations

import io
import json
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from rich.console import Console

from speedo import messages
from speedo.cli.main import main
from speedo.cli.say import say
from speedo.launch.cluster import HostAccess
from speedo.launch.commands import LaunchPlan
from speedo.launch.connection import Connection
from speedo.launch.held_hosts import HeldHosts, _Group
from speedo.launch.hosts import Command, RemoteHost, failures, greeting_problem
from speedo.launch.launcher import Launcher
from speedo.launch.picture import HostsPicture
from speedo.launch.protocol import EventError, event, read_event
from speedo.launch.read_cluster import cluster_of
from speedo.master.reasons import AT_MAX_ITER
from speedo.messages import Finish, Left
from speedo.run_dir.directory import METRICS
from speedo.run_dir.events import EventReader
from speedo.system.foreign_text import MOST_TEXT, clean_lines, clean_text, clean_values
from speedo.version import VERSION
from speedo.watch.console import ConsoleProgress
from speedo.watch.export.caffe_log import CaffeLog
from speedo.watch.live.history import LogReader
from speedo.watch.live.live_run import LiveRun
from speedo.watch.live.terminal import one_line, view
from speedo.watch.report.run_history import RunHistory, _Reader
from speedo.watch.status import StatusBoard, WorkerStatus
from speedo.watch.status_text import lines_of
from tests.support.foreign import INPUTS, Foreign, is_clean
from tests.watch.live.test_history import status

HELLO = {"speedo": VERSION, "python": "3.11", "pid": 7, "launcher": "10.0.0.1", "address": "10.0.0.2"}  # fmt: skip
CHECK = {"name": "pycaffe", "level": "fail", "text": "it is not there", "remedy": "install it"}
EVENTS: tuple[dict[str, Any], ...] = (
    {"hello": HELLO},
    {"started": "worker", "folder": "/tmp/x"},
    {"line": "joined the master at 10.0.0.1", "of": "worker", "stream": "err"},
    {"line": "iteration 5/10, loss 1.0000", "of": "master", "stream": "err"},
    {"line": json.dumps({"checks": [CHECK]}), "of": "doctor", "stream": "out"},
    {"line": '{"facts": {}}', "of": "doctor", "stream": "out"},
    {"ended": "doctor", "status": 1},
    {"ended": "worker", "status": -9},
    {"file": "logs/a.log", "of": "worker", "data": "eA=="},
    {"filed": "worker"},
)
LINES: tuple[dict[str, Any], ...] = (
    {"time": 0.0, "event": "joined", "worker": 0, "incarnation": 1, "host": "alpha"},
    {"time": 1.0, "event": "result", "worker": 0, "decision": "merged", "iteration": 1, "version": 1, "samples": 10,
     "staleness": 0, "loss": 0.5, "losses": [0.5], "timings": {"fetch": 0.1, "merge": 0.1}},
    {"time": 1.1, "event": "result", "worker": 0, "decision": "late", "reason": "it is late"},
    {"time": 2.0, "event": "test", "version": 1, "iteration": 1, "metrics": {"accuracy": 0.5, "loss": 1.0}},
    {"time": 3.0, "event": "left", "worker": 0, "incarnation": 1, "cause": "it was killed"},
    {"time": 4.0, "event": "resumed", "epoch": 2, "version": 1, "iteration": 1, "samples": 10},
    {"time": 9.0, "event": "finish", "complete": True, "reason": "reached max_iter 10"},
)  # fmt: skip
TEXTS = ("host", "reason", "cause", "decision")


class Fake:
    """A connection that keeps why its host was rejected."""

    name, key, access, rejected, own_address = "node1", "node1", HostAccess(), "", None

    def send(self, **values: Any) -> None:
        json.dumps(values)

    def reject(self, why: str) -> None:
        assert is_clean(why)
        self.rejected = why

    def close(self) -> None:
        """Nothing is open."""

    kill = close


def remote() -> RemoteHost:
    made = RemoteHost(cast(Connection, Fake()))
    made.commands = {role: Command() for role in ("doctor", "master", "worker")}
    return made


def taken_of(line: bytes) -> tuple[Any, str]:
    """The event, or why there is none."""
    try:
        return read_event(line), ""
    except EventError as error:
        return None, str(error)


# ---------------------------------------------------------------- the one place


def test_a_clean_text_is_one_line_in_which_nothing_steers_a_terminal() -> None:
    assert clean_text("a\x1b[31m\n\r\x00\x9b\u202e\ud800") == r"a\x1b[31m\n\r\x00\x9b\u202e\ud800"
    assert clean_text("日本\u3000é\tx") == "日本\u3000é x"
    assert clean_text(Path("[/x]")) == "[/x]"
    assert clean_text(10**5000) == "a int beyond words"
    assert clean_text("x" * 10_000, 10) == "xxxxxxx..."
    assert clean_text("\x1b" * 10_000, 10) == r"\x1b\x1..."
    assert clean_lines("a\x1b\nb") == "a\\x1b\nb"
    assert clean_values({"a\n": ["\x9b", 1, None]}) == {"a\\n": ["\\x9b", 1, None]}


def test_any_text_becomes_clean_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    foreign = Foreign(1)
    for _ in range(INPUTS):
        text, limit = foreign.text(), foreign.random.choice((0, 1, 3, 10, MOST_TEXT))
        made = clean_text(text, limit)
        assert is_clean(made), text
        assert len(made) <= limit
        say(text, err=True)
        told = capsys.readouterr().err
        assert is_clean(told, lines=True), text
        assert max(map(len, told.split("\n"))) <= MOST_TEXT


@pytest.mark.parametrize(
    "command", ["report", "watch", pytest.param("train", marks=pytest.mark.processes)]
)
def test_the_name_of_a_file_steers_no_terminal_and_is_no_line_of_ours(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEEDO_RUNTIME_DIR", str(tmp_path / "runtime"))
    name = tmp_path / "[|x]\x1b[2J\u202e\nspeedo: all is well"
    done = CliRunner().invoke(main, [command, str(name)])
    assert done.exit_code not in (0, 70)
    assert is_clean(done.output, lines=True)
    assert "[|x]" in done.output
    assert sum(line.startswith("speedo: ") for line in done.output.splitlines()) <= 1


# ---------------------------------------------------------------- hosts


def test_any_event_of_a_host_is_taken_or_ends_that_host(tmp_path: Path) -> None:
    """Both ways to run on hosts take every event."""
    foreign, shown = Foreign(2), io.StringIO()
    plan = LaunchPlan(cluster_of("node1", {}), None, (), None, None, "run", None, None)
    picture = HostsPicture(Console(file=shown, width=200, color_system=None))
    picture.host("node1", "1 worker")
    launcher = Launcher(plan, picture, lambda line: None)
    held = HeldHosts(cluster_of("node1", {}), None, None)
    group = _Group(remote(), (0,), None, None)
    held._groups["node1"] = group
    taken = 0
    try:
        for number in range(INPUTS):
            if number % 20 == 0:  # a new host
                launcher._remotes["node1"] = shown_host = remote()
                group.remote = remote()
                held._hosts.remotes["node1"] = group.remote
            values = foreign.random.choice(EVENTS)
            if foreign.random.random() < 0.5:
                values = foreign.texts_in(values, "line", "folder", "file")
                line = event(**values)
            else:
                line = b"\x1e" + foreign.line(values)
            found, problem = taken_of(line)
            assert is_clean(problem), line
            if found is None:
                continue
            taken += 1
            launcher._hosts.take("node1", found)
            held._hosts.take("node1", found)
            told = failures(shown_host.commands["doctor"])
            for text in (greeting_problem(shown_host, "3.11"), *told):
                assert is_clean(text), line
            launcher._hosts.check()
            held._hosts.check()
    finally:
        held._hosts.remotes.clear()
        held.close()
    assert INPUTS / 4 < taken < INPUTS
    console = Console(file=shown, width=200, color_system=None)
    console.print(picture._drawn())
    assert is_clean(shown.getvalue(), lines=True)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- messages of workers, to the terminal


def test_any_message_of_a_worker_is_only_printed(tmp_path: Path) -> None:
    foreign, shown = Foreign(3), io.StringIO()
    console = Console(file=shown, width=150, color_system=None)
    board = StatusBoard("sync", 10, 10, 100)
    log = CaffeLog(tmp_path / "caffe.log", foreign.text(), 1, lambda iteration: 0.1, "fixed")
    with ConsoleProgress(console) as progress:
        progress.begin(tmp_path)
        for number in range(INPUTS // 10):
            board.name_host(0, foreign.text())
            told = (
                Left(0, 1, foreign.text()),
                messages.Tested(1, {foreign.text(): 0.5}, foreign.text() if number % 2 else ""),
                Finish(complete=False, reason=foreign.text()),
            )
            for one in told:
                log.take(one, 1.0)
            for one in told[:2]:
                board.saw(one, 1.0)
            board.notice(foreign.text())
            board.trouble_with_store(foreign.text())
            now = board.status(2.0)
            worker = WorkerStatus(
                0, foreign.text(), foreign.text(), 0, 0, math.nan, 0.0, 7, 1, foreign.text(), None, foreign.text()
            )  # fmt: skip
            progress._next_line = 0.0
            progress.show(replace(now, workers=(*now.workers, worker), state=foreign.text()))
            progress.note(foreign.text())
    log.close()
    assert is_clean(shown.getvalue(), lines=True)
    assert is_clean((tmp_path / "train.log").read_text(), lines=True)
    written = (tmp_path / "caffe.log").read_text()
    assert is_clean(written, lines=True)
    assert all("solver.cpp:1] " in line for line in written.splitlines())


def test_the_live_view_takes_any_text(tmp_path: Path) -> None:
    foreign = Foreign(4)
    for _ in range(INPUTS // 100):
        shown = io.StringIO()
        board = StatusBoard("sync", 10, 10, 100)
        board.name_host(0, foreign.text())
        board.saw(Left(0, 1, foreign.text()), 1.0)
        console = Console(file=shown, width=150, force_terminal=True)
        with ConsoleProgress(console) as progress:
            progress.show(board.status(2.0))
            progress.note(foreign.text())
        # Rich's own sequences: colours, the cursor, lines that are cleared.
        assert not {*"\x00\x07\x9b\u202e\u2066\ud800"} & {*shown.getvalue()}


def test_any_answer_of_a_run_is_only_printed(tmp_path: Path) -> None:
    foreign = Foreign(5)
    whole = status(tmp_path)
    worker = {**whole["workers"][0], "host": "alpha"}
    for number in range(INPUTS // 4):
        answer = {
            **whole,
            "workers": [foreign.texts_in(worker, "host", "state", "cores", "device")],
            "notices": [foreign.text()],
            "metrics": {foreign.text(): 0.5},
            foreign.text(): foreign.text(),
        }
        answer = answer if number % 2 else foreign.mutated(answer)
        for line in lines_of(answer):
            assert is_clean(line), answer


# ---------------------------------------------------------------- logs of runs


@pytest.fixture(scope="module")
def logs() -> list[list[bytes]]:
    """Logs of a hundred lines: half of their texts are any, and every tenth line is any."""
    foreign, made = Foreign(6), []
    for _ in range(INPUTS // 100):
        lines = []
        for number in range(100):
            values = dict(foreign.random.choice(LINES), time=number / 10)
            if foreign.random.random() < 0.1:
                lines.append(foreign.line(values))
                continue
            if foreign.random.random() < 0.5:
                values = foreign.texts_in(values, *TEXTS)
                values |= {"metrics": {foreign.text(): 0.5}} if "metrics" in values else {}
            lines.append(json.dumps(values).encode())
        made.append(lines)
    return made


def test_any_log_can_be_watched(logs: list[list[bytes]], tmp_path: Path) -> None:
    for lines in logs:
        (tmp_path / METRICS).write_bytes(b"\n".join(lines))
        live = LiveRun(tmp_path)
        while live.look():
            pass
        assert is_clean(one_line(live.now()))
        json.dumps(live.now())
        shown = io.StringIO()
        Console(file=shown, width=150, color_system=None).print(view(live, 150))
        assert is_clean(shown.getvalue(), lines=True)
    history = LogReader(tmp_path)
    history.read()
    assert history.history.time > 0


def test_any_log_can_be_read_for_a_report(logs: list[list[bytes]], tmp_path: Path) -> None:
    for lines in logs:
        run = RunHistory("run", tmp_path)
        reader, events = _Reader(run), EventReader(tmp_path)
        for line in lines:
            with suppress(ValueError, RecursionError):  # what is told with the number of the line
                values = json.loads(line)
                if isinstance(values, dict):
                    reader.take(events.event(values))
        reader.close()
        texts = [run.reason, *(one.cause for one in run.lives)]
        texts += [text for one in run.refused for text in (one.decision, one.reason)]
        texts += [name for one in run.tests for name in one.metrics]
        assert all(map(is_clean, texts))


def test_the_page_and_the_picture_of_hostile_texts_show_them_as_text(tmp_path: Path) -> None:
    run = tmp_path / "_[/x]$\\frac{$<script>alert(1)</script>\x1b[2J".replace("/", "|")
    run.mkdir()
    foreign = Foreign(7)
    lines = [foreign.texts_in(one, "host", "cause") for one in LINES]
    lines[3]["metrics"] = {"accuracy<script>": 0.5, "loss\x1b[31m": 1.0}
    lines[2]["reason"] = "<img src=x onerror=alert(1)>\x1b]0;owned\x07"
    lines[-1]["reason"] = f"{AT_MAX_ITER}\n\u202e"
    (run / METRICS).write_text("".join(f"{json.dumps(one)}\n" for one in lines * 2))
    (run / "config.yaml").write_text('mode: "[/b]$x^{$\\e]0;<script>"\nworkers: 1\n')
    done = CliRunner().invoke(main, ["report", str(run), "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert is_clean(done.output, lines=True)
    page = (tmp_path / "page.html").read_text()
    assert "<img src=x" not in page
    assert page.count("<script>") == page.count("</script>") - page.count('<script type="')
    assert not {*"\x1b\x07\u202e"} & {*page}
    assert (tmp_path / "page.png").stat().st_size > 10_000
