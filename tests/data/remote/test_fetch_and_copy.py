"""Files at URIs, on real servers on loopback: an S3-compatible one, sshd's own SFTP, HTTP, WebHDFS refused."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import threading
import time
from pathlib import Path

import pytest

from speedo.data.remote.fetch import fetch
from speedo.data.remote.run_copy import LONGEST_WAIT_S, RunCopy, check_writable, send
from speedo.data.remote.uris import open_remote, problem_with, uri_of
from speedo.errors import ConfigError, DataError
from tests.support.commands import wait_until
from tests.support.stores import S3, Http, Sftp, Site

pytestmark = pytest.mark.processes  # servers, and keys of ssh-keygen

FILES = {"a.bin": b"x" * 1_200_000, "below/b.txt": b"two\n", "empty": b""}


def put(folder: Path, files: dict[str, bytes] = FILES) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def put_at(uri: str, files: dict[str, bytes] = FILES) -> None:
    for name, content in files.items():
        send(open_remote(f"{uri}/{name}"), io.BytesIO(content).read)


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name[0] != "."
    }


@pytest.fixture(params=["s3", "sftp"])
def store(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(request.param)
    return found


# ------------------------------------------------------------ URIs


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        (Path("s3://bucket/a/b"), "s3://bucket/a/b"),
        (Path("sftp://me@host:2222/a"), "sftp://me@host:2222/a"),
        ("data/s3", None),
        ("/s3:/x", None),
        ("c:/data", None),
        ("s3:", None),
        ("s3:///x", None),
        (None, None),
    ],
)
def test_what_is_a_uri(text: str | Path | None, uri: str | None) -> None:
    assert uri_of(text) == uri


def test_a_password_in_a_uri_is_refused_without_being_said() -> None:
    problem = problem_with("sftp://me:secret@host/a")
    assert problem is not None
    assert "password" in problem
    assert "secret" not in problem


def test_a_store_without_its_package_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(
        ConfigError, match=r"gs://b/x needs the Python package gcsfs: .*speedo\[gcs\]"
    ):
        open_remote("gs://b/x")


# ------------------------------------------------------------ fetching


def test_a_folder_comes_whole_and_only_what_has_changed_comes_again(
    store: Site, tmp_path: Path
) -> None:
    put_at(store.uri)
    seen: list[int] = []
    first = fetch(
        store.uri, tmp_path / "here", progress=lambda done, total, name: seen.append(done)
    )
    assert read(tmp_path / "here") == FILES
    assert {one.name: one.sha256 for one in first} == {
        name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()
    }
    assert seen == sorted(seen)
    assert seen[-1] == sum(map(len, FILES.values()))
    before = (tmp_path / "here" / "a.bin").stat().st_ino
    put_at(store.uri, {"below/b.txt": b"three\n"})
    fetch(store.uri, tmp_path / "here")
    assert read(tmp_path / "here") == {**FILES, "below/b.txt": b"three\n"}
    assert (tmp_path / "here" / "a.bin").stat().st_ino == before


def test_one_file_gets_its_name_or_the_one_that_is_given(store: Site, tmp_path: Path) -> None:
    put_at(store.uri)
    here = tmp_path / "here"
    fetch(f"{store.uri}/below/b.txt", here)
    fetch(f"{store.uri}/below/b.txt", here, name="c.txt")
    fetch(f"{store.uri}/below", here, name="d")
    assert read(here) == {"b.txt": b"two\n", "c.txt": b"two\n", "d/b.txt": b"two\n"}


def test_a_file_with_another_checksum_is_not_left(store: Site, tmp_path: Path) -> None:
    put_at(store.uri)
    with pytest.raises(DataError, match="is damaged or another file"):
        fetch(f"{store.uri}/a.bin", tmp_path / "here", sha256="0" * 64)
    assert read(tmp_path / "here") == {}


def test_the_sums_that_a_folder_publishes_are_checked(store: Site, tmp_path: Path) -> None:
    sums = "".join(f"{hashlib.sha256(c).hexdigest()}  {n}\n" for n, c in FILES.items())
    put_at(store.uri, {**FILES, "SHA256SUMS": sums.encode()})
    fetch(store.uri, tmp_path / "good")
    put_at(store.uri, {"empty": b"not"})
    with pytest.raises(DataError, match="empty is damaged or another file"):
        fetch(store.uri, tmp_path / "bad")
    assert "empty" not in read(tmp_path / "bad")


def test_what_is_not_there_is_named(store: Site, tmp_path: Path) -> None:
    put_at(store.uri)
    with pytest.raises(DataError, match=r"nothing\.txt cannot be read: nothing is there"):
        fetch(f"{store.uri}/nothing.txt", tmp_path)


def test_a_web_server_is_read(http: Http, tmp_path: Path) -> None:
    put(http.folder)
    fetch(
        f"{http.uri}/a.bin",
        tmp_path / "here",
        sha256=hashlib.sha256(FILES["a.bin"]).hexdigest(),
    )
    assert read(tmp_path / "here") == {"a.bin": FILES["a.bin"]}
    with pytest.raises(DataError, match="cannot be written"):
        check_writable(http.uri)


def test_a_host_whose_key_is_not_known_is_refused(
    sftp: Sftp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    shutil.copy(sftp.home / ".ssh" / "id_ed25519", tmp_path / ".ssh")
    with pytest.raises(DataError, match="not found in known_hosts"):
        fetch(sftp.uri, tmp_path)


def test_a_store_that_does_not_answer_is_told_soon(s3: S3, tmp_path: Path) -> None:
    s3.stop()
    began = time.monotonic()
    with pytest.raises(DataError, match="cannot be"):
        fetch(s3.uri, tmp_path)
    assert time.monotonic() - began < 60


# ------------------------------------------------------------ copies of a run


class Told:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._more:
            self.lines.append(line)
            self._more.notify_all()

    def wait_for(self, text: str, seconds: float = 60) -> None:
        with self._more:
            assert self._more.wait_for(lambda: text in "\n".join(self.lines), seconds), self.lines


def copy_of(store: Site, tmp_path: Path, number: int = 0) -> dict[str, bytes]:
    target = tmp_path / f"back-{number}"
    try:
        fetch(store.uri, target)
    except DataError:
        return {}
    return read(target)


def test_a_run_is_copied_at_each_checkpoint_and_at_the_end(store: Site, tmp_path: Path) -> None:
    run, told = tmp_path / "run", Told()
    put(run, {"config.yaml": b"x", "lock": b"", "checkpoints/1.ck": b"1" * 1000, ".part": b"no"})
    copy = RunCopy(run, store.uri, told, watched=("checkpoints",), skip=("lock",))
    copy.start()
    wait_until(lambda: "checkpoints/1.ck" in copy_of(store, tmp_path))
    put(run, {"checkpoints/2.ck": b"2" * 1000, "metrics.jsonl": b"{}\n"})
    (run / "checkpoints" / "1.ck").unlink()
    wait_until(lambda: "checkpoints/1.ck" not in copy_of(store, tmp_path, time.monotonic_ns()))
    put(run, {"result.json": b"{}", "metrics.jsonl": b"{}\n{}\n"})
    assert copy.finish(30) == ""
    assert copy_of(store, tmp_path, 99) == {
        "config.yaml": b"x",
        "checkpoints/2.ck": b"2" * 1000,
        "metrics.jsonl": b"{}\n{}\n",
        "result.json": b"{}",
    }
    assert told.lines == []


def test_a_store_that_is_away_is_told_once_and_gets_all_when_it_is_back(
    store: Site, tmp_path: Path
) -> None:
    run, told = tmp_path / "run", Told()
    check_writable(store.uri)
    store.stop()
    put(run, {"checkpoints/1.ck": b"1"})
    copy = RunCopy(run, store.uri, told, watched=("checkpoints",))
    copy.start()
    told.wait_for("the copy is tried again, training continues")
    put(run, {"checkpoints/2.ck": b"2"})
    store.start()
    told.wait_for("is back; everything is copied")
    assert len(told.lines) == 2
    assert copy.finish(30) == ""
    assert copy_of(store, tmp_path) == {"checkpoints/1.ck": b"1", "checkpoints/2.ck": b"2"}


def test_a_store_that_is_away_for_6_s_holds_up_nobody_and_has_everything_afterwards(
    s3: S3, tmp_path: Path
) -> None:
    run, told, slowest = tmp_path / "run", Told(), 0.0
    put(run, {"config.yaml": b"x", "checkpoints/0.ck": b"0"})
    copy = RunCopy(run, s3.uri, told, watched=("checkpoints",))
    copy.start()
    wait_until(lambda: "checkpoints/0.ck" in copy_of(s3, tmp_path))
    s3.stop()
    away = time.monotonic()
    number = 0
    while time.monotonic() < away + 6:
        number += 1
        began = time.monotonic()
        put(run, {f"checkpoints/{number}.ck": b"%d" % number * 100_000})
        if number > 2:
            (run / "checkpoints" / f"{number - 2}.ck").unlink()
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.2)
    s3.start()
    back = time.monotonic()
    told.wait_for("is back; everything is copied")
    late = time.monotonic() - back
    assert len(told.lines) == 2
    put(run, {"result.json": b"{}"})
    assert copy.finish(30) == ""
    assert copy_of(s3, tmp_path, 1) == read(run)
    # A run that waited for the store would have waited for seconds.
    assert slowest < 5
    assert late < LONGEST_WAIT_S + 20


def test_a_store_that_stays_away_is_given_up_at_the_end(s3: S3, tmp_path: Path) -> None:
    put(tmp_path / "run", {"result.json": b"{}"})
    s3.stop()
    copy = RunCopy(tmp_path / "run", s3.uri, Told(), watched=("checkpoints",))
    copy.start()
    began = time.monotonic()
    assert s3.uri in copy.finish(3)
    assert time.monotonic() - began < 40
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == {}
