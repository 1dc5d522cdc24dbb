"""What a host sends for `hosts/HOST/`: a host is another machine, and may send anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.launch import host_files
from speedo.launch.host_files import HostFiles
from tests.support.fuzz import files_outside, randoms, text, value


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    return HostFiles(tmp_path / "below" / "run", "node1")


@pytest.mark.parametrize(
    ("of", "name"),
    [
        ("worker", "../x"),
        ("worker", "/etc/x"),
        ("worker", "logs/../../../x"),
        ("worker", ""),
        ("..", "x"),
        ("../../..", "x"),
        ("", "x"),
        ("/tmp/of-a-host", "x"),
        ("worker", "a\nb"),
        ("worker", "a\x1b[2J"),
        ("worker", "a" * 300),
        ("worker", "a/" * 100 + "b"),
    ],
)
def test_a_host_cannot_write_outside_its_folder(
    of: str, name: str, files: HostFiles, tmp_path: Path
) -> None:
    files.part({"file": name, "of": of, "data": "eA=="})
    assert "it sent a file with the name" in files.problem
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not Path("/tmp/of-a-host").exists()


@pytest.mark.parametrize("of", ["../x", "/tmp/of-a-host", "a\0b", ""])
def test_a_line_of_a_command_with_another_name_is_refused(
    of: str, files: HostFiles, tmp_path: Path
) -> None:
    files.line({"of": of, "line": "x"})
    outside = files_outside(tmp_path, files.folder)
    assert outside == []
    assert not Path("/tmp/of-a-host.log").exists()


@pytest.mark.parametrize("name", ["logs/x", "link"])
def test_a_link_in_the_folder_is_not_followed(name: str, files: HostFiles, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (files.folder / "worker").mkdir()
    (files.folder / "worker" / "logs").symlink_to(elsewhere)
    (files.folder / "worker" / "link").symlink_to(elsewhere / "new")
    files.part({"file": name, "of": "worker", "data": "eA=="})
    files.part({"file": name, "of": "worker", "data": "eA=="})
    assert list(elsewhere.iterdir()) == []


def test_files_beyond_a_number_and_a_size_are_dropped_and_said(
    files: HostFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "MOST_FILES", 3)
    for number in range(5):
        files.part({"file": f"{number}.log", "of": "worker", "data": "eA=="})
    assert files.problem == "it has more than 3 log files"
    assert len(list((files.folder / "worker").iterdir())) == 3


def test_data_that_is_not_base64_is_said(files: HostFiles) -> None:
    files.part({"file": "a.log", "of": "worker", "data": "eA"})
    assert files.problem == "a part of its file 'a.log' is damaged"


def test_whatever_a_host_sends_stays_in_its_folder(files: HostFiles, tmp_path: Path) -> None:
    for chance in randoms():
        sent = {"of": value(chance), "file": value(chance), "line": value(chance), "data": "eA=="}
        if chance.random() < 0.2:
            sent["data"] = value(chance)
        if chance.random() < 0.2:
            del sent[chance.choice(("of", "file", "line", "data"))]
        files.part(sent)
        files.line(sent)
        if chance.random() < 0.01:
            files.begin_again()
        files.text("ssh.log", [text(chance)])
    assert files_outside(tmp_path, files.folder) == []
    assert files.problem
