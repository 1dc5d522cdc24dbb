"""Stands for Python's own program in what the product starts: a fork of the server becomes what was typed.

`place` writes a small program. It tells the server that it is there, hands signals on, and ends as the fork ends; if it
is killed, so is the fork. The fork takes from /proc what a child would have inherited: command line, environment,
folder, files, namespaces, limits, signals. What Python reads before its first line cannot be had so; then the program
becomes the real Python instead.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import resource
import runpy
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

REAL: Final = sys.executable
ROOT: Final = Path(__file__).parents[3]
PLAIN: Final = "SPEEDO_PLAIN_PYTHON"  # in the environment of what must be Python itself
IMPORTED: Final = frozenset({"speedo", "ray", "caffe", "torch", "numpy", "redis", "psutil"})
# Programs that depend on the process that has started them, or end as another program.
_NEVER: Final = frozenset({"speedo.system.dies_with_parent"})
# What Python and its libraries read when they start.
_READ_FIRST: Final = ("PYTHONHASHSEED", "OPENBLAS_CORETYPE", "LD_PRELOAD", "MALLOC_ARENA_MAX")
_MOVED: Final = 700  # a file is moved there before it takes its number
_NAMESPACES: Final = ("net", "mnt")
_LIMITS: Final = (
    *(resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE),
    *(resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_MEMLOCK),
)
_PROGRAM: Final = """\
#!{python} -IS
import _signal as signal, _socket, posix, sys

def real():
    posix.execv({real!r}, [{real!r}, *sys.argv[1:]])

def has_others(folder):
    try:
        names = posix.listdir(folder) if folder and folder != {root!r} else ()
    except OSError:
        return False
    return any(name.split(b".")[0] in {imported!r} for name in names)

words, values = sys.argv[1:], posix.environ
if (
    posix.getuid() != {user}
    or not words
    or words[0] in ("-V", "--version")
    or {never!r} & set(words)
    or any(values.get(name, b"") != value for name, value in {fixed!r}.items())
    or any(map(has_others, values.get(b"PYTHONPATH", b"").split(b":")))
):
    real()
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
try:
    server.connect({path!r})
except OSError:
    real()
files = []
for name in posix.listdir("/proc/self/fd"):
    try:
        posix.fstat(int(name))
    except OSError:
        continue  # that of the folder
    if int(name) != server.fileno():
        files.append(int(name))
body = ",".join(map(str, files)).encode()
packed = b"".join(one.to_bytes(4, "little") for one in files)
server.sendmsg([len(body).to_bytes(8, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
server.sendall(body)
fork = int.from_bytes(server.recv(8), "little")
def hand_on(number, frame):
    try:
        posix.kill(fork, number)
    except OSError:
        pass
for number in (1, 2, 3, 10, 12, 15):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, hand_on)
status = server.recv(4)
code = int.from_bytes(status, "little", signed=True) if status else -9
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code not in (-9, -19) else None
    posix.kill(posix.getpid(), -code)
posix._exit(code & 255)
"""


def has_others(folder: str) -> bool:
    """Whether it has a module of the name of one that the server has imported from elsewhere."""
    if folder == str(ROOT) or not os.path.isdir(folder):
        return False
    return any(one.partition(".")[0] in IMPORTED for one in os.listdir(folder))


def place(folder: Path, server: str) -> str:
    """Write the program, which asks the server there; the path of it, to be started in place of Python."""
    program = folder / "python"
    program.write_text(
        _PROGRAM.format(
            python=os.path.realpath(REAL),
            real=REAL,
            path=server,
            never=set(_NEVER),
            fixed={
                name.encode(): os.environ.get(name, "").encode() for name in (PLAIN, *_READ_FIRST)
            },
            user=os.getuid(),
            root=os.fsencode(ROOT),
            imported={name.encode() for name in IMPORTED},
        )
    )
    program.chmod(0o700)
    return str(program)


def typed(client: int) -> tuple[str, list[str], dict[str, str]]:
    """The program's name, what was typed behind it, and its environment."""
    words = _texts(f"/proc/{client}/cmdline")
    places = [number for number, word in enumerate(words) if word.endswith("/python") and number]
    if not places:  # it has been killed meanwhile
        os._exit(1)
    first = places[0]
    pairs = (text.partition("=")[::2] for text in _texts(f"/proc/{client}/environ"))
    return words[first], words[first + 1 :], dict(pairs)


def _texts(file: str) -> list[str]:
    return Path(file).read_bytes().decode(errors="surrogateescape").split("\0")[:-1]


def take_what_a_child_has(client: int, files: Sequence[int], numbers: Sequence[int]) -> None:
    """Files at their numbers, folder, namespaces, limits, cores, signals."""
    moved = [os.dup2(file, _MOVED + at) for at, file in enumerate(files)]
    for file in files:
        if file not in numbers:
            os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    place = f"/proc/{client}"
    libc = ctypes.CDLL(None, use_errno=True)
    status = dict(
        line.split(":\t", 1)
        for line in Path(place, "status").read_text().splitlines()
        if ":\t" in line
    )
    os.umask(int(status["Umask"], 8))
    for which in _LIMITS:
        with suppress(ValueError, PermissionError):
            resource.prlimit(0, which, resource.prlimit(client, which))
    os.sched_setaffinity(0, os.sched_getaffinity(client))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, client))
    blocked, ignored = int(status["SigBlk"], 16), int(status["SigIgn"], 16)
    for number in range(1, 32):
        if ignored >> (number - 1) & 1 and number not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(
        signal.SIG_SETMASK, {number for number in range(1, 65) if blocked >> (number - 1) & 1}
    )
    there = [
        os.open(f"{place}/ns/{kind}", os.O_RDONLY)
        for kind in _NAMESPACES
        if os.readlink(f"{place}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    ]
    folder = os.open(f"{place}/cwd", os.O_PATH)
    for one in there:
        if libc.setns(one, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(one)
    os.fchdir(folder)
    os.close(folder)


def run(words: Sequence[str]) -> None:
    """As Python runs what was typed behind its name."""
    rest, options = list(words), ""
    while rest and rest[0].startswith("-") and len(rest[0]) > 1 and rest[0][1] not in "cm":
        if not set(rest[0][1:]) <= set("PuIsSBE"):
            os.execv(REAL, [REAL, *words])
        options += rest.pop(0)[1:]
    safe = "P" in options or "I" in options
    if "u" in options:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    if not rest or rest[0] == "-":
        os.execv(REAL, [REAL, *words])
    kind = rest.pop(0)
    if kind == "-c":
        source = rest.pop(0)
        sys.argv = ["-c", *rest]
        _first(not safe, "")
        exec(compile(source, "<string>", "exec"), module.__dict__)
    elif kind == "-m":
        name = rest.pop(0)
        sys.argv = ["-m", *rest]
        _first(not safe, os.getcwd())
        run_module: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
        run_module(name, alter_argv=True)
    else:
        sys.argv = [kind, *rest]
        _first(not safe, os.path.dirname(os.path.abspath(kind)))
        module.__dict__.update(__file__=kind, __cached__=None)
        with open(kind, "rb") as file:
            code = compile(file.read(), kind, "exec")
        exec(code, module.__dict__)


def _first(wanted: bool, folder: str) -> None:
    if wanted:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
