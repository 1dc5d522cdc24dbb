"""Files that a user has named: opened only if that cannot block, read only up to a bound, told from names that Caffe
cannot have. And files of ours, written whole or not at all.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, Final

MOST_TEXT_BYTES: Final = 2 << 20  # a prototxt with every layer of the largest nets has some 100 kB
MOST_OF_BEGIN: Final = 512
# What people save or commit instead of a file: its first bytes, and the end of a sentence with the remedy.
_INSTEAD: Final = {
    r"\A\Z": "is empty: give another file",
    r"\A\s*<(?i:!doctype|html|head|\?xml)\b": "is a web page: download the file that the page is about",
    r"\Aversion https://git-lfs": "is a pointer of git-lfs, not the file: run `git lfs pull` where it comes from",
    r"\A\x1f\x8b": "is compressed by gzip: unpack it with gunzip",
    r"(?s)\A.{257}ustar": "is a tar archive: unpack it, and give the file in it",
    r"\A\x93NUMPY": "is a single array of NumPy: save it with its name by numpy.savez",
}


def open_to_read(path: Path) -> io.BufferedReader:
    """The file, open; raises `OSError` if it is anything but a regular file, which a read might wait for."""
    try:
        _require_regular(os.stat(path).st_mode, path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise OSError(errno.EINVAL, "its name holds a zero byte", str(path)) from None
    try:
        _require_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_to_write(path: Path, mode: str = "wb") -> IO[bytes]:
    """The file, open for `wb` or `ab`; raises `OSError` for a pipe that nobody reads, and does not wait."""
    how = os.O_APPEND if mode == "ab" else os.O_TRUNC
    try:
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | how | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
        )
    except ValueError:
        raise OSError(errno.EINVAL, "its name holds a zero byte", str(path)) from None
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, mode)


def what_instead(begin: bytes) -> str:
    """What a file is whose first `MOST_OF_BEGIN` bytes these are, and what to do; empty if it may be any other."""
    text = begin[:MOST_OF_BEGIN].decode("latin-1")
    return next((said for form, said in _INSTEAD.items() if re.search(form, text)), "")


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The content of a regular file of at most `most` bytes; raises `OSError`."""
    with open_to_read(path) as file:
        if most is None:
            return file.read()
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


def last_bytes(path: Path, most: int, begin: int = 0) -> bytes:
    """The end of a log of ours, of what is there from byte `begin` on; nothing if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - most))
        return file.read()
    return b""


def read_names(path: Path) -> list[str]:
    """The names in a list that has white space between them, as C++ takes them apart; raises `OSError`."""
    return list(map(os.fsdecode, read_bytes(path).split()))


def read_text(path: Path, most: int = MOST_TEXT_BYTES) -> str:
    """The same as UTF-8 text; raises `OSError` and `UnicodeDecodeError`."""
    return read_bytes(path, most).decode("utf-8")


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A new file that has its name once the context ends: with all its bytes on the disk, or not at all.

    A pipe or a device is written as it is, and of a link the file that it names. Raises `OSError`, and leaves no part
    behind.
    """
    if path.exists() and not path.is_file():
        with open_to_write(path) as file:
            yield file  # type: ignore[misc]
        return
    path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Bring the names in this folder to the disk. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_memory() -> int:
    """Bytes of memory that programs can still take, as Linux says; elsewhere all that the machine has."""
    with suppress(OSError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        if found := re.search(r"^MemAvailable: *(\d+) kB", text, re.MULTILINE):
            return int(found[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def home() -> Path:
    """The user's own folder; raises `OSError` for a user without one, as a container may have."""
    folder = os.path.expanduser("~")
    if not os.path.isabs(folder):
        raise OSError(errno.ENOENT, "this user has no home folder: set HOME", folder)
    return Path(folder)


def check_path(name: str, value: Path) -> list[str]:
    """The problem with the path that an option named so has, a sentence; none if Caffe and the system accept it."""
    if "\0" in str(value):
        return [f"{name} is {str(value)!r}, with a zero byte in it; use a path"]
    problem = problem_with_name(value)
    return [] if problem is None else [f"{name} names {str(value)!a}, which {problem}"]


def problem_with_name(path: Path) -> str | None:
    """Why Caffe, which takes names as UTF-8, could not find this path: words and the remedy; None if it could."""
    try:
        if os.fsencode(path) == str(path).encode("utf-8"):
            return None
    except UnicodeEncodeError:  # bytes that the file system's encoding does not have
        pass
    try:
        os.fsencode(path).decode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError):
        return "is not in UTF-8, and Caffe takes no other names: rename it, or give another"
    encoding = sys.getfilesystemencoding()
    return (
        f"is in UTF-8, but this shell's settings say {encoding}: set LC_ALL=C.UTF-8 and leave PYTHONUTF8 and "
        "PYTHONCOERCECLOCALE unset"
    )


def _require_regular(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
