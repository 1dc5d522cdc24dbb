"""A metadata service, as clouds have one at a link-local address, on loopback."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

AWS_TOKEN = "/latest/api/token"
NEEDED = {  # headers without which the real ones refuse
    "/latest/meta-data/": ("X-aws-ec2-metadata-token", "secret"),
    "/computeMetadata/": ("Metadata-Flavor", "Google"),
    "/metadata/": ("Metadata", "true"),
}


@dataclass
class Metadata:
    """What is answered: `pages` by path. `answered` has all paths that were asked for."""

    address: str = ""
    pages: dict[str, str] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    fails: bool = False


@contextmanager
def serving() -> Iterator[Metadata]:
    metadata = Metadata()

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, status: int, words: str = "") -> None:
            metadata.answered.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(words)))
            self.end_headers()
            self.wfile.write(words.encode())

        def do_PUT(self) -> None:
            lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            is_asked = self.path == AWS_TOKEN and lifetime is not None
            self.answer(200, "secret") if is_asked else self.answer(400)

        def do_GET(self) -> None:
            for start, (name, value) in NEEDED.items():
                if self.path.startswith(start) and self.headers.get(name) != value:
                    return self.answer(401)
            if metadata.fails:
                return self.answer(500)
            page = metadata.pages.get(self.path)
            return self.answer(404) if page is None else self.answer(200, page)

        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        metadata.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield metadata
        finally:
            server.shutdown()
            thread.join()
