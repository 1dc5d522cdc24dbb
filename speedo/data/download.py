"""Gets the files of a published dataset from a local folder or by download, and verifies their checksums."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from speedo.data.base import Progress, silent
from speedo.data.files import open_file
from speedo.errors import DataError

TIMEOUT_SECONDS: Final = 30.0
_CHUNK_BYTES: Final = 1 << 20
# The largest file that is published, CIFAR-10, has 170 MB: a server that sends without end must not fill the disk.
MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file of a published dataset; `urls` are tried in order."""

    name: str
    sha256: str
    urls: tuple[str, ...]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_sha256(path: Path, expected: str) -> str:
    """The checksum of a file; raises DataError if it is not the published one."""
    found = file_sha256(path)
    if found != expected:
        raise DataError(
            f"{path} is not the published file: its SHA-256 is {found}, published is {expected}; "
            "fetch it again"
        )
    return found


def fetch(
    file: PublishedFile,
    folder: Path,
    *,
    remedy: str,
    progress: Progress = silent,
) -> Path:
    """Download a file into `folder` and check it.

    `TIMEOUT_SECONDS` bounds every wait for the network, not the whole transfer. Raises DataError
    with what each address answered and the `remedy`; a file with a wrong checksum is removed.
    """
    target = folder / file.name
    failures: list[str] = []
    for url in file.urls:
        try:
            _transfer(url, target, progress)
            check_sha256(target, file.sha256)
            return target
        except DataError as error:
            failures.append(f"  {url}: {error}")
        target.unlink(missing_ok=True)
    raise DataError("\n".join([f"{file.name} could not be downloaded:", *failures, remedy]))


def _transfer(url: str, target: Path, progress: Progress) -> None:
    """Errors of the network become DataError; those of the disk stay OSError."""
    import urllib.request  # which a run that has its data need not load

    request = urllib.request.Request(url, headers={"User-Agent": "speedo"})
    with _network_errors():
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    with answer, target.open("wb") as out:
        total = int(answer.headers.get("Content-Length") or 0)
        done = 0
        while True:
            with _network_errors():
                chunk = answer.read(_CHUNK_BYTES)
            if not chunk:
                return
            done += len(chunk)
            if done > MOST_BYTES:
                raise DataError(f"it sent more than {MOST_BYTES:,} bytes, which is no such file")
            out.write(chunk)
            progress(done, max(total, done), f"download {target.name}")


@contextlib.contextmanager
def _network_errors() -> Iterator[None]:
    import http.client

    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise DataError(str(getattr(error, "reason", None) or error)) from error
