from __future__ import annotations

from pathlib import Path

from speedo.system.appended import AppendedLines


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
