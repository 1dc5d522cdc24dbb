"""The page of a run: its files, its events, and two requests that change the run.

Who may do what: on loopback everybody on this machine may read, and who has the token may stop and scale. Beyond
loopback nothing is sent without the token. It is a secret of this command, part of the URL that it prints, after the
`#`: browsers send that part to nobody. The page keeps it for its tab, and sends it as a header: another site that the
user has open can make the browser send a request here, but not with that header. A request under a name that is not
ours is refused, so no foreign name can be made to point here (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from importlib.resources import files
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from speedo.errors import ClusterError, SpeedoError
from speedo.watch.live.curves import Sent
from speedo.watch.live.live_run import LiveRun
from speedo.watch.own_names import is_loopback, names_us

LOOPBACK: Final = "127.0.0.1"
MOST_READERS: Final = 64  # pages at once
MOST_OF_ADDRESS: Final = 16  # of them that one address has
CONNECTIONS: Final = 4  # for each page, as many of one address, too
FIRST_S: Final = 10.0  # for the first request of a connection to arrive
MOST_BODY: Final = 1024  # bytes of a request
LOOK_S: Final = 0.25  # between two looks whether there is something to send
QUIET_S: Final = 3.0  # the page takes a connection for dead that was silent for some of these
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)
FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/chart.js": ("chart.js", "text/javascript"),
}


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, at any free port for 0. Raises `ClusterError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family, backlog=64)
    except (OSError, UnicodeError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise ClusterError(
            f"{host}:{port} cannot be served ({why}): give another --port, or a --host that is an address of this "
            "machine"
        ) from None
    return made


def url_of(host: str, port: int, token: str) -> str:
    """What to open in a browser; of a server that listens at all addresses, with this machine's name."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/#token={token}"


def server_of(live: LiveRun, host: str, token: str) -> uvicorn.Server:
    """The server of the page; `run(sockets=[...])` serves until Ctrl-C, which is raised then."""
    config = uvicorn.Config(
        page_of(live, host, token), log_config=None, log_level="critical", access_log=False, server_header=False,
        proxy_headers=False, lifespan="off", ws="none", http=_Connection, loop="asyncio", timeout_graceful_shutdown=1,
        limit_concurrency=CONNECTIONS * MOST_READERS, h11_max_incomplete_event_size=16384,
    )  # fmt: skip
    return uvicorn.Server(config)


def page_of(live: LiveRun, host: str, token: str) -> ASGIApp:
    """The page as an application; `host` is the address that it is served at."""
    page = Page(live, token, open_to_read=is_loopback(host))
    routes = [
        *(Route(path, partial(_file, *one), methods=["GET"]) for path, one in FILES.items()),
        Route("/events", page.events, methods=["GET"]),
        Route("/stop", page.stop, methods=["POST"]),
        Route("/scale", page.scale, methods=["POST"]),
    ]
    names = () if is_loopback(host) else (host, socket.gethostname(), socket.getfqdn())
    return Guarded(Starlette(routes=routes), names, any_address=not is_loopback(host))


class _Connection(H11Protocol):
    """A connection to the page: one address cannot have them all, and one that asks for nothing is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = _address(transport)
        if sum(_address(one.transport) == address for one in self.connections) > (
            CONNECTIONS * MOST_OF_ADDRESS
        ):
            transport.close()
        else:
            self.loop.call_later(FIRST_S, self._close_unasked)

    def _close_unasked(self) -> None:
        if getattr(self, "cycle", None) is None:  # no request has come
            self.transport.close()


def _address(transport: asyncio.BaseTransport) -> object:
    return (transport.get_extra_info("peername") or ("",))[0]


class Guarded:
    """Answers only requests that name this server, and only with headers that forbid everything not needed."""

    def __init__(self, app: ASGIApp, names: Iterable[str], *, any_address: bool) -> None:
        self._app, self._any_address = app, any_address
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        if scope["type"] != "http":
            return
        headers = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        sites = [value for name, value in headers if name == b"sec-fetch-site"]
        app: ASGIApp = self._app
        if len(hosts) != 1 or not names_us(hosts[0], self._names, any_address=self._any_address):
            app = PlainTextResponse("this server has another name\n", 421)
        elif any(origin != f"http://{hosts[0]}" for origin in origins) or (
            scope["path"] != "/" and any(site not in (b"same-origin", b"none") for site in sites)
        ):
            app = PlainTextResponse("a request from another site\n", 403)
        await app(scope, receive, with_headers)


def _file(name: str, kind: str, request: Request) -> Response:
    content = files("speedo.watch.live").joinpath("page", name).read_bytes()
    return Response(content, media_type=kind)


class Page:
    """The requests of the page. With `open_to_read` no token is needed to see the run."""

    def __init__(self, live: LiveRun, token: str, *, open_to_read: bool) -> None:
        self._live, self._token, self._open_to_read = live, token.encode(), open_to_read
        self._readers = Counter[str]()  # by address

    # ------------------------------------------------------------ reading

    async def events(self, request: Request) -> Response:
        """A stream of JSON lines: the state whenever it has changed, with the points of the curves that are new."""
        given, right = self._given(request)
        if (given and not right) or not (right or self._open_to_read):
            return _refused()
        address = request.client.host if request.client is not None else ""
        if self._readers[address] >= MOST_OF_ADDRESS:
            return _problem("too many pages are open at this address: close one", 503)
        if self._readers.total() >= MOST_READERS:
            return _problem("too many pages are open", 503)
        return StreamingResponse(self._events(right, address), media_type="application/x-ndjson")

    async def _events(self, may: bool, address: str) -> AsyncIterator[bytes]:
        self._readers[address] += 1
        try:
            sent, looks, before, quiet = Sent(), -1, "", 0.0
            while True:
                if looks != self._live.looks:
                    looks = self._live.looks
                    now, curves = self._live.now(), self._live.news(sent)
                    # What a second changes by itself is no news.
                    ageless = [{**one, "died_s_ago": None} for one in now["workers"]]
                    state = json.dumps({**now, "workers": ageless})
                    if curves or state != before or quiet >= QUIET_S:
                        before, quiet = state, 0.0
                        yield (
                            json.dumps({"may": may, "now": now, "curves": curves}).encode() + b"\n"
                        )
                elif quiet >= QUIET_S:
                    quiet = 0.0
                    yield b"\n"
                await asyncio.sleep(LOOK_S)
                quiet += LOOK_S
        finally:
            self._readers -= Counter((address,))

    # ------------------------------------------------------------ changing

    async def stop(self, request: Request) -> Response:
        """End the run early."""
        return await self._change(request, set(), lambda asked: self._live.stop())

    async def scale(self, request: Request) -> Response:
        """Change the number of workers."""
        return await self._change(
            request, {"workers"}, lambda asked: self._live.scale(asked["workers"])
        )

    async def _change(
        self, request: Request, fields: set[str], change: Callable[[dict[str, Any]], str]
    ) -> Response:
        if not self._given(request)[1]:
            return _refused()
        if request.headers.get("content-type") != "application/json":
            return _problem("the request is not JSON", 415)
        try:
            asked = json.loads(await _body(request))
        except (ValueError, RecursionError):
            return _problem("the request cannot be read", 400)
        except ClientDisconnect:
            return _problem("nobody waits", 400)
        if not isinstance(asked, dict) or set(asked) != fields:
            return _problem("the request has other fields than it should", 400)
        try:
            return JSONResponse({"said": await run_in_threadpool(change, asked)})
        except SpeedoError as error:
            return _problem(str(error), 409)

    def _given(self, request: Request) -> tuple[bool, bool]:
        """Whether a token was given, and whether it is the right one."""
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        right = kind == "Bearer" and secrets.compare_digest(given.encode(), self._token)
        return bool(kind), right


async def _body(request: Request) -> bytes:
    """The body; raises `ValueError` if it is longer than any of ours."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise ValueError("too long")
    return body


def _refused() -> Response:
    return _problem("this needs the token: open the URL that `speedo watch --web` has printed", 401)


def _problem(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status)
