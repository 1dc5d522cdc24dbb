"""Which URIs are taken, and the file system behind each; credentials come from where each system keeps them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from speedo.errors import ConfigError, DataError
from speedo.system.remedies import needed

# What fsspec calls it, the module behind it, and the extra of ours that installs that.
SCHEMES: Final = {
    "s3": ("s3", "s3fs", "s3"),
    "gs": ("gcs", "gcsfs", "gcs"),
    "gcs": ("gcs", "gcsfs", "gcs"),
    "sftp": ("sftp", "paramiko", "sftp"),
    "hdfs": ("webhdfs", "requests", "hdfs"),
    "webhdfs": ("webhdfs", "requests", "hdfs"),
    "http": ("http", "aiohttp", "http"),
    "https": ("https", "aiohttp", "http"),
}
# How long their clients wait: a store that is away is tried again by us.
_PATIENCE: Final[dict[str, dict[str, Any]]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "retries": {"max_attempts": 1}}}
}
# A `Path` of a URI has one slash after the scheme.
_URI: Final = re.compile(r"([a-z][a-z0-9+.-]*):/{1,2}(?=[^/])(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Remote:
    """A file or folder in a store: `files` is fsspec's file system, `path` the path in it."""

    uri: str
    files: Any
    path: str

    def below(self, name: str) -> Remote:
        """The file or folder of this name in this folder."""
        return Remote(
            f"{self.uri.rstrip('/')}/{name}", self.files, f"{self.path.rstrip('/')}/{name}"
        )


def uri_of(value: str | Path | None) -> str | None:
    """The URI that this is, in its usual form; None for a path of this machine."""
    found = _URI.fullmatch(str(value)) if value is not None else None
    if found is None or found[1] not in SCHEMES:
        return None
    return f"{found[1]}://{found[2]}"


def problem_with(uri: str) -> str | None:
    """Why this URI is not taken: words and the remedy."""
    if not uri.isprintable():
        return "has a control character in it; correct it"
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:  # whose text may show a part of a password
        return "is no URI: its host, its port or brackets in it are wrong; correct it"
    if parts.password is not None:
        return (
            "has a password in it, which everybody could read in the list of processes; leave it out, and use the "
            "store's own place for credentials"
        )
    if not parts.hostname:
        return "names no host or bucket; give one, as in s3://bucket/folder"
    return None


def open_remote(uri: str) -> Remote:
    """The store of this URI. Raises `ConfigError` for a URI that is not taken, or without its package; `DataError`."""
    problem = problem_with(uri)
    if problem is not None:
        raise ConfigError(f"{uri} {problem}")
    scheme = urlsplit(uri).scheme
    protocol, module, extra = SCHEMES[scheme]
    needed(module, extra, uri)
    with store_errors(uri, "cannot be opened"):
        if protocol == "sftp":
            from speedo.data.remote.sftp import open_sftp

            return Remote(uri, *open_sftp(uri))
        from fsspec.core import url_to_fs

        files, path = url_to_fs(
            uri if protocol in (scheme, "gcs") else uri.replace(scheme, protocol, 1),
            **(_web_client() if module == "aiohttp" else _PATIENCE.get(protocol, {})),
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        if protocol == "s3":
            files.retries = 2  # besides those of its own client
    return Remote(uri, files, path)


def _web_client() -> dict[str, Any]:
    """What fsspec hands to aiohttp: a redirect never leads from an encrypted page to one that anybody can change."""
    import aiohttp

    async def check(session: Any, context: Any, redirect: Any) -> None:
        here = redirect.response.url
        there = here.join(type(here)(redirect.response.headers.get("Location", "")))
        if here.scheme == "https" and there.scheme != "https":
            raise DataError(
                f"it leads from https to {there.scheme}, which is not encrypted: name the file's own URI"
            )

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(check)
    return {"client_kwargs": {"trace_configs": [trace]}}


@contextmanager
def store_errors(uri: str, what: str) -> Iterator[None]:
    """What any store raises becomes a `DataError` with the URI; errors of this machine's own files do not."""
    try:
        yield
    except (DataError, ConfigError, KeyboardInterrupt):
        raise
    except Exception as error:  # every client library has exceptions of its own
        ours = _refusal(error)
        nothing = isinstance(error, FileNotFoundError) and ours is None
        why = _first_line(ours or error)
        raise DataError(
            f"{uri} {what}: nothing is there ({why})" if nothing else f"{uri} {what}: {why}"
        ) from error


def _refusal(error: BaseException | None) -> DataError | None:
    """What we raised in a call of a client library, which says only that nothing is there."""
    while error is not None and not isinstance(error, DataError):
        error = error.__cause__ or error.__context__
    return error


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def local_name(uri: str) -> PurePosixPath:
    """The path below a cache folder under which what this URI names is kept."""
    whole = uri.rstrip("/")
    digest = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:16]
    path = re.split("[?#]", whole)[0].partition("://")[2].partition("/")[2]
    # No name that begins with a dot: `..` would lead out, and ours begin with one.
    name = re.sub(r"[^A-Za-z0-9._-]", "_", path.rstrip("/").rpartition("/")[2])[-100:].lstrip(".")
    return PurePosixPath(digest) / (name or "root")
