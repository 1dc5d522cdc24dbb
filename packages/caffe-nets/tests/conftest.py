"""What the tests of the package share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from caffenets import host_program
from caffenets.command import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a program around the package, whatever other tests of this process have imported."""
    monkeypatch.setattr(host_program, "_schema", host_program.own_schema)
    monkeypatch.setattr(host_program, "_remedy", host_program._take_out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `caffenets` with these words: its status, and what it printed to both outputs."""

    def command(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return command


MOST_MIB: Final = 400  # for a file; a text of 2 MB takes some 200
MOST_SECONDS: Final = 10
# Tries each line of its input, a case, in a fork with 1.5 GiB of memory more than PyTorch takes.
CHILD = """
import contextlib, io, json, os, resource, signal, sys, traceback
import h5py, torch
import caffenets
import caffenets.pytorch.trials
from caffenets.command import main
from caffenets.errors import NetError

torch.set_num_threads(1)

def kib(which):
    return int(next(line for line in open("/proc/self/status") if line.startswith(which)).split()[1])

def said(words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if words[0] == "load":
                caffenets.load(*words[1:])
                status = 0
            else:
                main(words)
        except SystemExit as error:
            status = error.code
        except NetError as error:
            status = 2
            print(f"caffenets: {error}", file=sys.stderr)
        except BaseException:
            status = "traceback"
            err.write(traceback.format_exc()[-2000:])
    return [status, out.getvalue()[:2000], err.getvalue()]

for line in sys.stdin:
    name, limits, commands = json.loads(line)
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(120)
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (3 << 29)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        for kind, most in limits.items():
            resource.setrlimit(getattr(resource, kind), (most, most))
        open("/proc/self/clear_refs", "w").write("5")  # the peak from here on
        before = kib("VmRSS")
        answers = [said(words) for words in commands]
        with open(sender, "w") as pipe:
            json.dump([answers, kib("VmHWM") - before >> 10], pipe)
        os._exit(0)
    os.close(sender)
    with open(receiver) as pipe:
        text = pipe.read()
    used = os.wait4(child, 0)[2]
    answers, mib = json.loads(text or '[[["died", "", ""]], 0]')
    print(json.dumps([name, answers, mib, used.ru_utime + used.ru_stime]), flush=True)
"""
# By name: limits of its own, and the words of its commands.
Cases = Mapping[str, tuple[Mapping[str, int], list[list[str]]]]


@pytest.fixture(scope="session")
def tried() -> Any:
    """Of each case what its commands said in this folder, the MiB that they took, and their processor seconds."""
    return _tried


def _tried(cases: Cases, folder: Path) -> dict[str, Any]:
    given = "".join(json.dumps([name, *case]) + "\n" for name, case in cases.items())
    child = subprocess.run(
        [sys.executable, "-P", "-c", CHILD],
        cwd=folder, input=given, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    answers = {name: rest for name, *rest in map(json.loads, child.stdout.splitlines())}
    assert answers.keys() == cases.keys(), child.stderr
    return answers


@pytest.fixture(scope="session")
def unchanged() -> Any:
    """A context in which a folder's files stay as they are."""
    return _unchanged


@contextmanager
def _unchanged(folder: Path) -> Iterator[None]:
    before = _listing(folder)
    yield
    assert _listing(folder) == before


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    stats = {str(one.relative_to(folder)): one.lstat() for one in folder.rglob("*")}
    return {name: (one.st_size, one.st_mtime_ns) for name, one in stats.items()}


@pytest.fixture(scope="session")
def is_refused() -> Any:
    """Asserts that commands ended in these words about their file, in little time and memory."""
    return _is_refused


def _is_refused(commands: list[list[str]], answer: Any, words: str) -> None:
    answers, mib, seconds = answer
    for command, (status, out, err) in zip(commands, answers, strict=True):
        assert (status, out) == (2, ""), (command, err)
        assert err.startswith("caffenets: "), command
        assert str(command[1]) in err, command
        assert words in err, command
        assert len(err) < 2000, command
    assert mib < MOST_MIB
    assert seconds < MOST_SECONDS
