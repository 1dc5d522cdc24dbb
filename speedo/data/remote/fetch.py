"""Fetches a file or a folder: each file whole or not at all, with its checksum, and not again if it has not changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from caffenets.files import read_bytes, written_whole
from speedo.data.base import Progress, silent
from speedo.data.remote.uris import Remote, open_remote, store_errors
from speedo.errors import DataError
from speedo.system.bounds import said
from speedo.system.files_below import name_below

CHUNK_BYTES: Final = 1 << 20
# A file of the store, in the form of sha256sum, that is checked if it is there.
SUMS: Final = "SHA256SUMS"
RECORD: Final = ".fetched.json"  # what was fetched here
MOST_RECORD_BYTES: Final = 64 << 20
MOST_SUMS_BYTES: Final = 64 << 20
MOST_FILES: Final = 200_000  # of one folder
MOST_BYTES: Final = 1 << 40  # of one fetch; ImageNet as an LMDB has some 240 GB
FREE_BYTES: Final = 256 << 20  # are left on the disk
LOOK_BYTES: Final = 64 << 20  # how often the disk is looked at, for files whose size no store tells
_SUM: Final = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file that was fetched: its name below the folder, its bytes, and what changes in the store when it does."""

    name: str
    size: int
    sha256: str
    version: str


def was_fetched(folder: Path) -> bool:
    """Whether what is in this folder came from a store, as far as nobody has said that it is ours since."""
    return os.path.lexists(folder / RECORD)


def now_ours(folder: Path) -> None:
    """A run of ours continues in this folder, and has written its own configuration. Raises `OSError`."""
    (folder / RECORD).unlink(missing_ok=True)


def fetch(
    uri: str,
    folder: Path,
    *,
    name: str | None = None,
    sha256: str | None = None,
    progress: Progress = silent,
) -> list[FetchedFile]:
    """Fetch the file or all files below the folder at `uri` into `folder`; what is there unchanged is kept.

    `progress` gets bytes done, bytes in all, and the file's name.
    With `name` the file gets that name, and the files of a folder come into a folder of that name.

    A file must have the `sha256` that is given, or that a file SHA256SUMS in the same folder of the store says. Raises
    `DataError`, `ConfigError`, and `OSError` of this machine's disk; a file that is not as it must be is not left.
    """
    remote = open_remote(uri)
    with store_errors(uri, "cannot be read"):
        is_folder = remote.files.info(remote.path)["type"] == "directory"
        found = _names(remote, _files_below(remote) if is_folder else _file(remote, name))
    if is_folder and name is not None:
        folder = folder / name
    if not found:
        raise DataError(f"{uri} is an empty folder; name one with files")
    if sha256 is not None and len(found) > 1:
        raise DataError(f"{uri} is a folder with {len(found)} files; a checksum is for one file")
    sums = _published_sums(remote, found)
    before = _record(folder)
    total = sum(int(info["size"] or 0) for info in found.values())
    done, kept = 0, dict[str, FetchedFile]()
    folder.mkdir(parents=True, exist_ok=True)
    _write_record(folder, before)  # from now on it shows that what is here was fetched
    for file, info in sorted(found.items()):
        wanted = (sha256 or sums.get(file, "")).lower()
        version = _version(info)
        now = before.get(file)
        if now is None or not _unchanged(folder / file, now, version, wanted):
            _check_room(uri, folder, total, done)
            target = _target(uri, folder, file)
            now = _fetch_one(info["remote"], target, file, wanted, version, done, total, progress)
        kept[file] = now
        done += now.size
        progress(done, max(total, done), file)
        _write_record(folder, {**before, **kept})
    return [kept[file] for file in sorted(kept)]


def _names(
    remote: Remote, files: Iterator[tuple[str, dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """The files by the names that they get here, which stay below the folder whatever the store says."""
    found: dict[str, dict[str, Any]] = {}
    for text, info in files:
        name = name_below(text)
        if name is None or name.name == RECORD:
            raise DataError(
                f"{remote.uri} has a file with the name {said(text)}, which is not taken here: rename it there"
            )
        if str(name) in found:
            raise DataError(f"{remote.uri} has two files with the name {name}: rename one there")
        found[str(name)] = info
        if len(found) > MOST_FILES:
            raise DataError(
                f"{remote.uri} has more than {MOST_FILES:,} files: name a folder below it"
            )
    return found


def _target(uri: str, folder: Path, file: str) -> Path:
    """The file in the folder; a link on the way must not lead out of it."""
    target = folder / file
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise DataError(
            f"{uri}: {target.parent} is a link that leads out of {folder}; remove it, or fetch into another folder"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _check_room(uri: str, folder: Path, total: int, done: int) -> None:
    """The disk has room for what is still to come, and for what others write."""
    if total > MOST_BYTES:
        raise DataError(
            f"{uri} has {total >> 30:,} GiB, and one fetch takes at most {MOST_BYTES >> 30:,}: fetch parts of it"
        )
    free = shutil.disk_usage(folder).free
    if total - done + FREE_BYTES > free:
        raise DataError(
            f"{uri} has {(total - done) >> 20:,} MiB still to come, and {folder} has room for "
            f"{max(free - FREE_BYTES, 0) >> 20:,} MiB: make room, or use another disk (with "
            "SPEEDO_CACHE for what runs fetch)"
        )


def _file(remote: Remote, name: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    yield (
        name or PurePosixPath(remote.path).name,
        {**remote.files.info(remote.path), "remote": remote},
    )


def _files_below(remote: Remote) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of every file below a folder, and what the store says of it."""
    root = remote.files._strip_protocol(remote.path).rstrip("/")
    for path, one in remote.files.find(remote.path, detail=True).items():
        name = path.removeprefix(root).lstrip("/")
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or parts[-1].startswith("."):
            continue
        below = Remote(f"{remote.uri.rstrip('/')}/{name}", remote.files, path)
        yield name, {**one, "remote": below}


def _published_sums(remote: Remote, found: dict[str, dict[str, Any]]) -> dict[str, str]:
    if SUMS not in found or len(found) == 1:
        return {}
    content = b""
    for chunk in _chunks(found[SUMS]["remote"]):
        content += chunk
        if len(content) > MOST_SUMS_BYTES:
            raise DataError(f"{remote.uri}/{SUMS} has more than {MOST_SUMS_BYTES >> 20} MiB")
    with store_errors(f"{remote.uri}/{SUMS}", "cannot be read"):
        text = content.decode()
    lines = [_SUM.fullmatch(line.strip()) for line in text.splitlines() if line.strip()]
    if None in lines:
        raise DataError(
            f"{remote.uri}/{SUMS} is not in the form of sha256sum; write it again with sha256sum"
        )
    sums = {one[2].removeprefix("./"): one[1] for one in lines if one is not None}
    missing = sorted(set(sums) - set(found))
    if missing:
        raise DataError(f"{remote.uri} lacks {missing[0]}, which its {SUMS} names")
    return sums


def _version(info: dict[str, Any]) -> str:
    """What changes when the file does, as far as the store tells."""
    known = ("ETag", "etag", "generation", "md5Hash", "mtime", "LastModified", "modificationTime")
    return json.dumps([str(info.get("size")), *(str(info[one]) for one in known if info.get(one))])


def _unchanged(path: Path, former: FetchedFile, version: str, wanted: str) -> bool:
    if former.version != version or (wanted and former.sha256 != wanted):
        return False
    with suppress(OSError):
        return path.stat().st_size == former.size
    return False


def _fetch_one(
    remote: Remote,
    target: Path,
    name: str,
    wanted: str,
    version: str,
    done: int,
    total: int,
    progress: Progress,
) -> FetchedFile:
    # A name of 255 bytes leaves no room for more.
    part = target.with_name(f".{hashlib.sha256(name.encode()).hexdigest()[:16]}.{os.getpid()}.part")
    digest, size = hashlib.sha256(), 0
    said_size = json.loads(version)[0]
    most = int(said_size) if said_size.isdecimal() else MOST_BYTES - done
    looked = 0
    try:
        with part.open("wb") as out:
            for chunk in _chunks(remote):
                size += len(chunk)
                if size > most:
                    raise DataError(
                        f"{remote.uri} has more than the {most} bytes that its store reports; fetch it again"
                    )
                if size - looked >= LOOK_BYTES:
                    looked = size
                    _check_room(remote.uri, target.parent, max(total, done + size), done + size)
                out.write(chunk)
                digest.update(chunk)
                progress(done + size, max(total, done + size), name)
            out.flush()
            os.fsync(out.fileno())
        if said_size not in ("None", str(size)):
            raise DataError(f"{remote.uri} ended after {size} of {said_size} bytes; fetch it again")
        if wanted and digest.hexdigest() != wanted:
            raise DataError(
                f"{remote.uri} is damaged or another file: its SHA-256 is {digest.hexdigest()}, wanted is {wanted}"
            )
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return FetchedFile(name, size, digest.hexdigest(), version)


def _chunks(remote: Remote) -> Iterator[bytes]:
    """The bytes of a file; only what the store raises becomes a `DataError`."""
    whole = remote.uri.startswith("http")  # not every web server gives parts of a file
    with store_errors(remote.uri, "cannot be read"):
        stream = remote.files.open(remote.path, "rb", block_size=0 if whole else 4 * CHUNK_BYTES)
    with stream:
        while True:
            with store_errors(remote.uri, "cannot be read"):
                chunk = stream.read(CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


def _record(folder: Path) -> dict[str, FetchedFile]:
    try:
        read = json.loads(read_bytes(folder / RECORD, MOST_RECORD_BYTES))
        return {one["name"]: FetchedFile(**one) for one in read}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _write_record(folder: Path, files: dict[str, FetchedFile]) -> None:
    text = json.dumps([asdict(files[name]) for name in sorted(files)], indent=1)
    with written_whole(folder / RECORD) as file:
        file.write(text.encode())
