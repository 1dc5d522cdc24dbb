from __future__ import annotations

from pathlib import Path

from speedo.system.appended import MOST_BYTES, AppendedLines


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = AppendedLines(log)
    assert lines.new() == []  # there is none yet
    log.write_bytes(b"one\ntw")
    assert lines.new() == ["one"]
    with log.open("ab") as file:
        file.write(b"o\n\xff\n")
    assert lines.new() == ["two", "\ufffd"]
    assert lines.new() == []


def test_a_line_that_is_longer_than_what_is_read_at_once_comes_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    long = "x" * (3 * MOST_BYTES)
    log.write_text(f"before\n{long}\nlast\n")
    lines = AppendedLines(log, begin=len("before\n"))
    assert lines.new() == [long]
    assert lines.new() == ["last"]
