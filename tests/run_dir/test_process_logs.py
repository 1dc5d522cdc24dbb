"""All logs of a run as one, in the order in which their lines were written."""

from __future__ import annotations

import os
import time
from pathlib import Path

from click.testing import CliRunner

from speedo.cli.main import main
from speedo.run_dir.process_logs import LogTimes, lines_of, logs_of
from tests.support.commands import wait_until


def folder_of_a_run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "metrics.jsonl").touch()
    return tmp_path


def append(log: Path, text: str) -> None:
    """Write, and wait until the time of it is noted."""
    times = log.with_name("times")
    with log.open("a") as file:
        file.write(text)
    size = f" {log.stat().st_size} {log.name}\n"
    wait_until(lambda: times.exists() and size in times.read_text())


def test_lines_of_several_processes_are_in_the_order_of_time(tmp_path: Path) -> None:
    run = folder_of_a_run(tmp_path)
    one, two = run / "logs" / "worker-0.log", run / "logs" / "master.log"
    with LogTimes(run / "logs"):
        append(one, "first\n")
        append(two, "second\nand third\n")
        append(one, "fourth\n")
        with two.open("a") as file:
            file.write("last, not whole")
    read = [(line.log.process, line.text) for line in lines_of(logs_of(run))]
    assert read == [
        ("worker 0", "first"),
        ("master", "second"),
        ("master", "and third"),
        ("worker 0", "fourth"),
        ("master", "last, not whole"),
    ]


def test_what_a_log_held_before_keeps_its_time(tmp_path: Path) -> None:
    run = folder_of_a_run(tmp_path)
    log = run / "logs" / "worker-0.log"
    log.write_text("of yesterday\n")
    yesterday = time.time() - 86_400
    os.utime(log, (yesterday, yesterday))
    with LogTimes(run / "logs"):
        time.sleep(0.3)
        append(log, "of today\n")
    old, new = (line.at for line in lines_of(logs_of(run)))
    assert abs(old - yesterday) < 1
    assert abs(new - time.time()) < 60


def test_of_a_long_log_that_was_brought_home_the_end_has_its_times(tmp_path: Path) -> None:
    run = folder_of_a_run(tmp_path)
    home = run / "hosts" / "B-2e"
    home.mkdir(parents=True)
    (home / "worker-1.log").write_text("tenth\neleventh\n")  # of 1015 bytes
    (home / "times").write_text(
        "100.0 1000 worker-1.log\n200.0 1006 worker-1.log\n300.0 1015 worker-1.log\n"
    )
    (log,) = logs_of(run)
    assert (log.process, log.host) == ("worker 1", "B-2e")
    assert [(line.at, line.text) for line in log.lines()] == [(200.0, "tenth"), (300.0, "eleventh")]
    assert log.until(250.0, 100) == "tenth\n"


def test_a_death_is_told_by_what_was_written_before_it(tmp_path: Path) -> None:
    run = folder_of_a_run(tmp_path)
    log = run / "logs" / "worker-1.log"
    with LogTimes(run / "logs"):
        append(log, "last words\n")
        died = time.time()
        time.sleep(0.1)
        append(log, "its successor begins\n")
    (found,) = logs_of(run)
    assert found.until(died, 1000) == "last words\n"


def test_the_command_prints_one_host_or_all_and_names_those_it_has(tmp_path: Path) -> None:
    run = folder_of_a_run(tmp_path)
    (run / "train.log").write_text(
        "2026-11-26 12:00:00+0000 waiting\n2026-11-26 12:00:02+0000 \x1b[31mred\n"
    )
    host = run / "hosts" / "B-2e"
    host.mkdir(parents=True)
    (host / "worker-1.log").write_text("far\n")
    (host / "worker.log").write_text("joined the master\n")
    printed = CliRunner().invoke(main, ["logs", str(run)])
    assert printed.exit_code == 0, printed.output
    assert [line.split(" ", 2)[2] for line in printed.stdout.splitlines()] == [
        "command: waiting",
        "command: \\x1b[31mred",
        "worker 1 on B-2e: far",
        "speedo worker on B-2e: joined the master",
    ]
    here = CliRunner().invoke(main, ["logs", str(run), "--host", "here"])
    assert here.stdout.count("\n") == 2
    none = CliRunner().invoke(main, ["logs", str(run), "--host", "C"])
    assert none.exit_code == 1
    assert "it has those of B-2e, here" in none.output


def test_following_a_run_that_is_over_ends(tmp_path: Path) -> None:
    run = folder_of_a_run(tmp_path)
    (run / "logs" / "master.log").write_text("one\ntwo, not whole")
    printed = CliRunner().invoke(main, ["logs", str(run), "--follow"])
    assert printed.exit_code == 0
    assert printed.stdout.count("master: one") == 1
