"""Changes the URL of a Redis: adds a password, or uses the unix socket of the same server."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

PASSWORD_VARIABLE: Final = "SPEEDO_REDIS_PASSWORD"


def url_with_password(url: str) -> str:
    """The URL for other nodes: with the password of `SPEEDO_REDIS_PASSWORD` if it has none."""
    password = os.environ.get(PASSWORD_VARIABLE)
    parts = urlsplit(url)
    if not password or parts.password is not None:
        return url
    user, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}"))


def without_password(url: str) -> tuple[str, str]:
    """The URL without its password, and the password; empty if it has none. Raises `ValueError` for what is no URL."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    found = unquote(parts.password or "") or dict(options).get("password", "")
    login, at, place = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=f"{login.partition(':')[0]}{at}{place}")
    if "password" in dict(options):
        bare = bare._replace(query=urlencode([one for one in options if one[0] != "password"]))
    return urlunsplit(bare), found


def url_by_socket(url: str, path: str) -> str:
    """The URL of the same user and database by unix socket."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return f"unix://{login}{at}{quote(path)}?db={parts.path.strip('/') or 0}"
