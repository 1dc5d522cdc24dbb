"""Who may read the page and who may press its buttons; asked over HTTP as a browser, or an attacker, would."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from speedo.cli.main import main
from speedo.errors import ClusterError
from speedo.watch.control_socket import Asked, ControlServer
from speedo.watch.live import server
from speedo.watch.live.live_run import LiveRun
from speedo.watch.live.server import (
    CONNECTIONS,
    FILES,
    MOST_OF_ADDRESS,
    MOST_READERS,
    listen,
    server_of,
    url_of,
)
from speedo.watch.own_names import is_loopback
from tests.support.commands import how_loaded
from tests.watch.live.test_history import result, status, write

TOKEN = "the-token-of-this-test"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}


class Served:
    """A page that is served at `port`, and what its run was asked for."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port, self.folder = port, folder
        self.asked: list[Asked] = []

    def answer(self, asked: Asked) -> Any:
        if asked["ask"] not in ("known", "status"):
            self.asked.append(asked)
        if asked["ask"] == "scale" and asked["workers"] == 99:
            raise ClusterError("there is no room for 99 workers: give fewer")
        return {**status(self.folder), "said": f"so many workers: {asked.get('workers')}"}

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: str | None = None,
        host: str | None = None,
    ) -> tuple[int, str, dict[str, str]]:  # fmt: skip
        """Status, body (of a stream: its first line) and headers of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=host is not None)
            if host:
                connection.putheader("Host", host)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            data = (body or "").encode()
            if method == "POST":
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data if method == "POST" else None)
            answer = connection.getresponse()
            stream = answer.headers.get_content_type() == "application/x-ndjson"
            text = (answer.readline() if stream else answer.read()).decode()
            return answer.status, text, {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def post(self, path: str, fields: object, **headers: str) -> tuple[int, str, dict[str, str]]:
        return self.request("POST", path, {**JSON, **headers}, json.dumps(fields))


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[Served]:
    folder.mkdir(exist_ok=True)
    write(folder, *(result(0, one, one / 10) for one in range(1, 11)), mode="w")
    with listen(host, 0) as listening:
        served = Served(listening.getsockname()[1], folder)
        with ControlServer("1a2b", served.answer), LiveRun(folder) as live:
            server = server_of(live, host, TOKEN)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            deadline = time.monotonic() + 120 * how_loaded()
            while not live.looks:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            try:
                yield served
            finally:
                server.should_exit = True
                thread.join(20)
                assert not thread.is_alive()


@pytest.fixture
def page(tmp_path: Path, runtime: Path) -> Iterator[Served]:
    with serving(tmp_path / "run") as served:
        yield served


@pytest.fixture
def open_page(tmp_path: Path, runtime: Path) -> Iterator[Served]:
    """The page as `--host 0.0.0.0` serves it."""
    with serving(tmp_path / "run", "0.0.0.0") as served:
        yield served


def test_on_loopback_everybody_may_read(page: Served) -> None:
    for path, (_, kind) in FILES.items():
        found, text, headers = page.request("GET", path)
        assert (found, headers["content-type"].split(";")[0]) == (200, kind)
        assert text
    found, text, _ = page.request("GET", "/events")
    told = json.loads(text)
    assert (found, told["may"], told["now"]["state"]) == (200, False, "training")
    assert len(told["curves"]["loss"]["points"]) == 10


def test_who_has_the_token_may_press_the_buttons(page: Served) -> None:
    assert json.loads(page.request("GET", "/events", RIGHT)[1])["may"] is True
    found, text, _ = page.post("/scale", {"workers": 3}, **RIGHT)
    assert (found, json.loads(text)) == (200, {"said": "so many workers: 3"})
    assert page.post("/stop", {}, **RIGHT)[0] == 200
    assert page.asked == [{"ask": "scale", "workers": 3}, {"ask": "stop"}]
    found, text, _ = page.post("/scale", {"workers": 99}, **RIGHT)
    assert (found, json.loads(text)["error"]) == (
        409,
        "there is no room for 99 workers: give fewer",
    )


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": "Bearer "},
     {"Authorization": "Bearer \xff"}, {"Cookie": f"token={TOKEN}"}],
    ids=repr,
)  # fmt: skip
def test_without_the_token_nothing_is_changed(page: Served, headers: dict[str, str]) -> None:
    for path, fields in (("/stop", {}), ("/scale", {"workers": 1})):
        found, text, _ = page.post(path, fields, **headers)
        assert found == 401
        assert TOKEN not in text
    assert page.request("POST", f"/stop?token={TOKEN}", JSON, "{}")[0] == 401
    assert page.asked == []


def test_a_request_from_another_site_is_refused_even_with_the_token(page: Served) -> None:
    """A browser says where a request is from; a page of another site can change neither header."""
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{page.port + 1}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert page.post("/stop", {}, **RIGHT, **headers)[0] == 403
        assert page.request("GET", "/events", headers)[0] == 403
    form = {"Content-Type": "text/plain", **RIGHT}
    assert page.request("POST", "/stop", form, "{}")[0] == 415
    assert page.asked == []
    own = {"Origin": f"http://127.0.0.1:{page.port}", "Sec-Fetch-Site": "same-origin"}
    assert page.post("/stop", {}, **RIGHT, **own)[0] == 200


def test_a_name_that_is_not_ours_is_refused(page: Served) -> None:
    """DNS rebinding: the name of another site, made to point to 127.0.0.1."""
    for host in (
        "evil.example",
        f"evil.example:{page.port}",
        "127.0.0.1.evil.example",
        "10.0.0.5",
        "localhost:x",
        "",
    ):
        for path in FILES:
            assert page.request("GET", path, host=host or " ")[0] in (400, 421), host
        assert page.request("GET", "/events", host=host or " ")[0] in (400, 421), host
        assert page.request("POST", "/stop", {**RIGHT, **JSON}, "{}", host=host or " ")[0] in (
            400,
            421,
        )
    for host in (
        "localhost",
        "localhost:9999",
        "127.0.0.1",
        "127.0.0.1:9999",
        "[::1]:9999",
        "[::1]",
    ):
        assert page.request("GET", "/", host=host)[0] == 200, host
    assert page.asked == []


def test_beyond_loopback_nothing_is_told_without_the_token(open_page: Served) -> None:
    found, text, _ = open_page.request("GET", "/events")
    assert found == 401
    assert str(open_page.folder) not in text
    assert open_page.request("GET", "/events", {"Authorization": "Bearer wrong"})[0] == 401
    assert open_page.request("GET", "/events", RIGHT)[0] == 200
    # The address of one of its cards
    assert open_page.request("GET", "/", host="10.1.2.3:8000")[0] == 200
    assert open_page.request("GET", "/", host=socket.gethostname())[0] == 200
    assert open_page.request("GET", "/", host="evil.example")[0] == 421


def test_the_page_listens_on_loopback_unless_told(page: Served) -> None:
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.2", page.port), timeout=5),
    ):
        pass


def test_every_answer_forbids_what_the_page_does_not_need(page: Served) -> None:
    for found, _, headers in (
        page.request("GET", "/"),
        page.request("GET", "/page.js"),
        page.request("GET", "/nothing"),
        page.request("GET", "/", host="evil.example"),
        page.post("/stop", {}),
        page.request("GET", "/events"),
    ):
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy, found
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
    text = page.request("GET", "/")[1]
    assert "<style" not in text
    assert "style=" not in text
    assert " on" not in text.replace(" one ", " ")  # no handler in the markup
    for path in FILES:  # and nothing from elsewhere
        assert "//" not in page.request("GET", path)[1].replace(
            "http://www.w3.org/2000/svg", ""
        ).replace("// ", "")


LONG = '{"workers": "' + "9" * 5000 + '"}'


@pytest.mark.parametrize(
    "body",
    ["", "[]", "null", "{", '{"workers": 3, "more": 1}', "[" * 900, LONG],
    ids=lambda body: body[:12],
)
def test_a_request_that_cannot_be_read_changes_nothing(page: Served, body: str) -> None:
    assert page.request("POST", "/scale", {**RIGHT, **JSON}, body)[0] == 400
    assert page.asked == []


def test_only_so_many_pages_of_an_address_are_served_at_once(page: Served) -> None:
    open_ones = []
    try:
        for _ in range(MOST_OF_ADDRESS):
            one = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
            one.request("GET", "/events")
            assert one.getresponse().readline()
            open_ones.append(one)
        found, told, _ = page.request("GET", "/events")
        assert (found, "at this address" in told) == (503, True)
        assert page.request("GET", "/")[0] == 200
    finally:
        for one in open_ones:
            one.close()
    deadline = time.monotonic() + 120 * how_loaded()
    while page.request("GET", "/events")[0] != 200:
        assert time.monotonic() < deadline, "the places of closed pages are not given back"
        time.sleep(0.1)


@pytest.mark.slow
def test_one_address_cannot_take_all_connections(
    page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FIRST_S", 1.0)
    silent = [
        socket.create_connection(("127.0.0.1", page.port), timeout=20)
        for _ in range(CONNECTIONS * MOST_OF_ADDRESS)
    ]
    try:
        assert MOST_OF_ADDRESS < MOST_READERS
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            page.request("GET", "/")
        assert silent[0].recv(1) == b"", "it asks for nothing"
        assert page.request("GET", "/")[0] == 200
    finally:
        for one in silent:
            one.close()


def next_state(answer: http.client.HTTPResponse) -> dict[str, Any]:
    """The next state; an empty line, which comes while the files were not looked at, is none."""
    while line := answer.readline():
        if line.strip():
            state: dict[str, Any] = json.loads(line)
            return state
    raise AssertionError("the page has ended its stream")


@pytest.mark.slow
def test_what_is_new_comes_alone(page: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert len(json.loads(answer.readline())["curves"]["loss"]["points"]) == 10
    write(page.folder, result(0, 11, 1.1))
    loss = next_state(answer)["curves"]["loss"]
    assert (loss["points"], loss["from"]) == ([[10, 1.0, 0.5], [11, 1.1, 0.5]], 9)
    sign_of_life = answer.readline()  # of a quiet run: a state, or an empty line between two looks
    assert sign_of_life == b"\n" or json.loads(sign_of_life)["curves"] == {}
    connection.close()


def test_a_port_in_use_and_an_address_of_others_are_told(page: Served) -> None:
    with pytest.raises(ClusterError, match=r"address already in use.*give another --port"):
        listen("127.0.0.1", page.port)
    with pytest.raises(ClusterError, match=r"203\.0\.113\.7:8000 cannot be served"):
        listen("203.0.113.7", 8000)
    assert url_of("::1", 80, "t") == "http://[::1]:80/#token=t"
    assert url_of("0.0.0.0", 8000, "t") == f"http://{socket.gethostname()}:8000/#token=t"
    assert all(is_loopback(one) for one in ("localhost", "127.0.0.9", "::1"))
    assert not any(is_loopback(one) for one in ("10.0.0.1", "alpha", "0.0.0.0"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("watch",), "you have no run on this machine"),
        (("watch", "nonsense"), "nonsense is no running run"),
        (("watch", "."), "it has no metrics.jsonl"),
        (("watch", "--port", "80"), "give --web, too"),
        (("watch", ".", "--web", "--host", "203.0.113.7"), "203.0.113.7:0 cannot be served"),
    ],
    ids=repr,
)
def test_a_mistake_is_told_in_a_sentence(
    arguments: tuple[str, ...],
    told: str,
    tmp_path: Path,
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--web" in arguments:
        write(tmp_path, result(0, 1, 0.1))
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (1, 2)
    assert told in done.output
    assert "Traceback" not in done.output
