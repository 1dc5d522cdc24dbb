"""The file of the secret: whoever finds it finds all of it, however many make and read it at once."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from speedo.actors.token import load_token
from speedo.errors import ClusterError
from tests.support.commands import how_loaded


def read_until_there(file: Path) -> str:
    """As a worker waits for it: only that there is none yet is no reason to give up."""
    deadline = time.monotonic() + 120 * how_loaded()
    while True:
        try:
            return load_token(file)
        except ClusterError as error:
            if "there is no token" not in str(error) or time.monotonic() > deadline:
                raise


@pytest.mark.slow
def test_a_worker_that_waits_for_the_file_never_sees_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the opening of a file and its words lies a moment, which is made longer here."""
    file, real, opened = tmp_path / "token", os.fdopen, threading.Event()

    def slow(*arguments: object, **options: object) -> object:
        opened.set()
        time.sleep(0.2)
        return real(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "fdopen", slow)
    with ThreadPoolExecutor(2) as pool:
        made = pool.submit(load_token, file, create=True)
        assert opened.wait(120)
        read = pool.submit(read_until_there, file)
        assert read.result(20.0) == made.result(20.0)
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_of_several_that_make_it_at_once_all_have_the_same(tmp_path: Path) -> None:
    for number in range(50):
        file = tmp_path / str(number) / "token"
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda path: load_token(path, create=True), [file] * 8))
        assert len(set(found)) == 1
        assert list(file.parent.iterdir()) == [file]


def test_without_hard_links_it_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*unused: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    made = load_token(tmp_path / "token", create=True)
    assert load_token(tmp_path / "token") == made
    assert [one.name for one in tmp_path.iterdir()] == ["token"]
