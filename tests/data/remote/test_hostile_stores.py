"""Stores and solvers of strangers: no file outside its folder, no disk filled."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from speedo.data.remote import fetch as fetching
from speedo.data.remote.fetch import fetch
from speedo.data.remote.uris import Remote, local_name, problem_with, uri_of
from speedo.engines.solver import read_solver
from speedo.errors import DataError, SolverError, SpeedoError
from speedo.run.remote_inputs import fetch_run, fetch_sources, located
from speedo.storage.redis.certificate import CERTIFICATE, KEY, make_certificate
from tests.support.fuzz import files_outside, randoms, text
from tests.support.nets import net_text, write_solver
from tests.support.sabotaged_net import BODY
from tests.support.stores import Http


class Store:
    """A store that tells `files` below `root`, and the sizes in `sizes` instead of theirs."""

    protocol = ("lying",)

    def __init__(self, files: dict[str, bytes], sizes: dict[str, Any] | None = None) -> None:
        self.files, self.sizes = files, sizes or {}

    def info(self, path: str) -> dict[str, Any]:
        if path in self.files:
            return {"type": "file", "size": self.sizes.get(path, len(self.files[path]))}
        return {"type": "directory", "size": 0}

    def find(self, path: str, detail: bool) -> dict[str, dict[str, Any]]:
        return {name: self.info(name) for name in self.files}

    def open(self, path: str, mode: str, block_size: int) -> Any:
        import io

        return io.BytesIO(self.files.get(path, b"x"))

    def _strip_protocol(self, path: str) -> str:
        return path


@pytest.fixture
def lie(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(files: dict[str, bytes], sizes: dict[str, Any] | None = None) -> None:
        store = Store(files, sizes)
        monkeypatch.setattr(fetching, "open_remote", lambda uri: Remote(uri, store, "root/"))

    return use


def test_a_name_of_a_store_that_leads_out_is_not_written(lie: Any, tmp_path: Path) -> None:
    lie({"root/../../out": b"x", "root/a/../../out": b"x", "root/good": b"y"})
    fetch("s3://b/root", tmp_path / "a" / "here")
    assert files_outside(tmp_path, tmp_path / "a" / "here") == []
    assert (tmp_path / "a" / "here" / "good").read_bytes() == b"y"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"root/a\nb": b""}, r"has a file with the name 'a\\nb', which is not taken"),
        ({"root/a/b": b"", "root/a//b": b""}, "has two files with the name a/b"),
        ({f"root/{'a' * 300}": b""}, "has a file with the name"),
    ],
)
def test_a_name_that_is_not_taken_is_told(
    files: dict[str, bytes], words: str, lie: Any, tmp_path: Path
) -> None:
    lie(files)
    with pytest.raises(DataError, match=words):
        fetch("s3://b/root", tmp_path / "here")


def test_a_link_that_leads_out_of_the_folder_is_not_followed(lie: Any, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here" / "below").symlink_to(tmp_path / "elsewhere")
    lie({"root/below/a": b"x"})
    with pytest.raises(DataError, match="is a link that leads out of"):
        fetch("s3://b/root", tmp_path / "here")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (2**60, "one fetch takes at most 1,024: fetch parts of it"),
        (2**40, "MiB still to come, and .* has room for"),
        (1, "has more than the 1 bytes that its store reports"),
        (None, "has more than the 2 bytes"),
    ],
)
def test_a_file_without_an_end_does_not_fill_the_disk(
    size: int | None, words: str, lie: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if size is None:
        monkeypatch.setattr(fetching, "MOST_BYTES", 2)
    lie({"root/a": b"x" * 1000}, {"root/a": size})
    with pytest.raises(DataError, match=words):
        fetch("s3://b/root", tmp_path / "here")
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [".fetched.json"]


def test_a_folder_with_too_many_files_is_refused(
    lie: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MOST_FILES", 3)
    lie({f"root/{number}": b"" for number in range(5)})
    with pytest.raises(DataError, match="has more than 3 files"):
        fetch("s3://b/root", tmp_path / "here")


@pytest.mark.parametrize(
    "uri", ["s3://b/..", "s3://b/x/..", "s3://b/.", "s3://b/.fetched.json", "s3://b/" + "a" * 4000]
)
def test_the_place_of_a_uri_is_below_the_cache(uri: str) -> None:
    name = local_name(uri)
    assert len(name.parts) == 2
    assert name.name[0] != "."
    assert len(name.name) <= 100


def test_a_run_at_a_uri_that_ends_in_dots_comes_into_a_folder_of_its_own(
    lie: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lie({"root/config.yaml": b""})
    assert fetch_run("s3://b/x/..", None, lambda line: None) == Path("runs/root")


@pytest.mark.caffe
@pytest.mark.parametrize("source", ["../../../out", "a/../../../out", "../out"])
def test_a_source_that_leads_out_of_the_data_root_is_refused(
    source: str, lie: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEEDO_CACHE", str(tmp_path / "a" / "b" / "cache"))
    lie({"root/": b"x"})
    (tmp_path / "solver").mkdir()
    net = net_text(BODY, batch=8, train=source, test="mine/test")
    solver = write_solver(tmp_path / "solver", net, base_lr=0.001)
    spec = read_solver(solver, data_root=located(Path("s3://b/data")))
    before = files_outside(tmp_path, tmp_path / "a" / "b" / "cache")
    with pytest.raises(SolverError, match="which is not below the data root s3://b/data"):
        fetch_sources(spec, Path("s3://b/data"), lambda line: None)
    assert files_outside(tmp_path, tmp_path / "a" / "b" / "cache") == before


@pytest.mark.slow
def test_no_uri_and_no_name_of_a_store_writes_outside_its_folder(
    lie: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # which takes most of the time
    inside = tmp_path / "a" / "b" / "c" / "cache"
    taken = 0
    for number, chance in enumerate(randoms()):
        uri = uri_of(f"s3://{text(chance)}/{text(chance)}") or "s3://b/x"
        folder = inside / str(number) / local_name(uri)
        lie({f"root/{text(chance)}": b"x" for _ in range(2)} | {"root/": b""})
        try:
            fetch(uri, folder, name=text(chance) if chance.random() < 0.3 else None)
            taken += 1
        except SpeedoError:
            continue
    assert taken
    assert files_outside(tmp_path, inside) == []


@pytest.mark.parametrize("uri", ["s3://b/a\nb", "s3://b/\x1b[2J", "s3://b/\0"])
def test_a_uri_with_a_control_character_is_refused(uri: str) -> None:
    assert problem_with(uri) == "has a control character in it; correct it"


@pytest.mark.processes
def test_a_redirect_from_https_to_http_is_not_followed(
    http: Http, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (http.folder / "a.bin").write_bytes(b"of a stranger")

    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{http.uri}/a.bin")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    make_certificate(tmp_path, "127.0.0.1")
    server = HTTPServer(("127.0.0.1", 0), Redirect)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / CERTIFICATE, tmp_path / KEY)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    trusting = ssl.create_default_context(cafile=str(tmp_path / CERTIFICATE))
    made = aiohttp.TCPConnector.__init__

    def trust(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **{**options, "ssl": trusting})

    monkeypatch.setattr("aiohttp.TCPConnector.__init__", trust)
    try:
        with pytest.raises(DataError, match="https to http, which is not encrypted"):
            fetch(f"https://127.0.0.1:{server.server_port}/a.bin", tmp_path / "here")
    finally:
        server.shutdown()
        server.server_close()
    assert not (tmp_path / "here").exists()
