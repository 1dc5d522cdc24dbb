"""How many small faults in the core the tests notice: `python -m bench.mutation [--sample N]`.

Each mutant is a copy of the package with one change: a comparison, an operator, a number, a condition turned, a call
left out. The fast tests that call the changed function run against it, those of its own room first and short ones
before long ones, up to the first failure; which tests call which function is found by one run before. A mutant that no
test notices is printed; one that only a deadline ends is counted apart, because no assertion noticed it. Tests are
collected once: a function is exchanged in a copy of the process, and only code that imports run is imported anew.
`bench/support/mutants.py` names the mutants that no test can notice, each with the reason; they are not counted.

`--again FILE` tries only the mutants that the output of an earlier run lists, as after new tests were written.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import NoReturn

import pytest

from bench.support.mutants import EQUIVALENT, ROOT, Function, Mutant, function_of, mutants_of

ROOMS = ("master", "worker", "sgd_modes")
TESTS = (
    "tests/sgd_modes",
    "tests/worker",
    "tests/master",
    "tests/run/config",
    "tests/study/simulation",
)
FAST = "not redis and not ray and not caffe and not slow"
TEST_DEADLINE_S = 30  # of one test of a mutant
DEADLINE_S = 300.0  # of all tests of a mutant

# ---------------------------------------------------------------- which tests call what


@dataclass
class Calls:
    """Which lines of the rooms each test calls functions at, and how long it takes; "" is what imports call."""

    folder: Path
    places: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    longest_s: float = float("inf")

    @contextmanager
    def recorded(self, test: str) -> Iterator[None]:
        """What is called meanwhile is called by this test; the time is taken, too."""
        codes: dict[int, CodeType] = {}

        def told(frame: FrameType, event: str, argument: object) -> None:
            codes[id(frame.f_code)] = frame.f_code  # of every call; no line is of interest

        began = time.perf_counter()
        sys.settrace(told)
        threading.settrace(told)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            root = f"{self.folder}/"
            self.seconds[test] = time.perf_counter() - began
            self.places[test] = {
                (code.co_filename.removeprefix(root), code.co_firstlineno)
                for code in codes.values()
                if code.co_filename.startswith(f"{root}speedo/")
            }

    def of(self, mutant: Mutant, function: Function) -> set[str]:
        """The tests, or "", that call the changed function."""
        return {
            test
            for test, found in self.places.items()
            for place, line in found
            if place == mutant.place and function.first <= line <= function.last
        }

    def tests(self, mutant: Mutant) -> list[str]:
        """What to try: tests that call the function, those of its room first, short ones before long ones."""
        function, own = function_of(mutant), f"tests/{mutant.file.parent.name}/"
        called = set(self.seconds)
        if function is not None and not function.cached:
            direct = self.of(mutant, function)
            called = called if "" in direct else direct
        short = [test for test in called if self.seconds[test] <= self.longest_s]
        return sorted(short, key=lambda test: (not test.startswith(own), self.seconds[test]))


# ---------------------------------------------------------------- mutants of functions


class Server:
    """A plugin of pytest that, with all tests collected, tries mutants in copies of its process.

    A copy exchanges the code of one function, so that nothing is imported again. What it finds goes into a pipe, a line
    of JSON each: first what the tests call, then the number of each mutant with its verdict.
    """

    def __init__(
        self, folder: Path, mutants: Sequence[Mutant], jobs: int, longest_s: float, pipe: int
    ) -> None:
        self.folder, self.mutants, self.jobs, self.longest_s = folder, mutants, jobs, longest_s
        self.pipe = os.fdopen(pipe, "w", buffering=1)
        self.calls = Calls(folder)
        self.trying = False
        self.collecting = ExitStack()
        self.collecting.enter_context(self.calls.recorded(""))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.trying and report.failed:
            print(report.longreprtext, flush=True)
            os._exit(LATE if "from pytest-timeout" in report.longreprtext else KILLED)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.collecting.close()
        self.items = {item.nodeid: item for item in session.items}
        self._measure()
        self._index()
        running: dict[int, tuple[int, float]] = {}
        waiting = list(enumerate(self.mutants))[::-1]
        while waiting or running:
            while waiting and len(running) < self.jobs:
                number, mutant = waiting.pop()
                process = os.fork()
                if not process:
                    self._try(mutant)
                running[process] = number, time.monotonic()
            time.sleep(0.005)
            for process, (number, began) in list(running.items()):
                done, status = os.waitpid(process, os.WNOHANG)
                if not done and time.monotonic() > began + DEADLINE_S:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                    done, status = process, LATE << 8
                if done:
                    del running[process]
                    said = VERDICTS.get(os.waitstatus_to_exitcode(status), "killed")
                    print(json.dumps([number, said]), file=self.pipe)
        return True

    def _run(self, tests: Sequence[str]) -> None:
        items = [self.items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _measure(self) -> None:
        """Run all tests once, in a copy, and see what they call."""
        reading, writing = os.pipe()
        if not os.fork():
            self.trying = True  # a failure ends it
            del self.calls.seconds[""]
            for test in self.items:
                with self.calls.recorded(test):
                    self._run([test])
            places = {test: sorted(found) for test, found in self.calls.places.items()}
            with os.fdopen(writing, "w") as pipe:
                json.dump([places, self.calls.seconds], pipe)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        if not text:
            raise SystemExit("a test fails without any change")
        print(text, file=self.pipe)
        self.calls = calls_of(text, self.folder, self.longest_s)
        os.wait()

    def _index(self) -> None:
        """The functions that are there, by the file and the name in their code."""
        self.functions: dict[tuple[str, str], list[FunctionType]] = {}
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                key = one.__code__.co_filename, one.__code__.co_qualname
                self.functions.setdefault(key, []).append(one)

    def _try(self, mutant: Mutant) -> NoReturn:
        """In a copy of the process: change the function, and run the tests up to the first that fails."""
        function = function_of(mutant)
        if function is None or "" in self.calls.of(mutant, function):
            os._exit(ELSEWHERE)
        name = str(self.folder / mutant.place)
        found = self.functions.get((name, function.name), [])
        codes = [
            code
            for code in _codes(compile(mutant.source, name, "exec", dont_inherit=True))
            if code.co_qualname == function.name
        ]
        if len(found) != 1 or len(codes) != 1:
            os._exit(ELSEWHERE)
        if codes[0].co_freevars != found[0].__code__.co_freevars:
            os._exit(ELSEWHERE)
        found[0].__code__ = codes[0]
        self.trying = True
        for item in self.items.values():
            item.add_marker(pytest.mark.timeout(TEST_DEADLINE_S))
        self._run(self.calls.tests(mutant))
        os._exit(SURVIVED)


SURVIVED, KILLED, LATE, ELSEWHERE = 0, 1, 2, 3  # exit statuses
VERDICTS = {SURVIVED: "survived", KILLED: "killed", LATE: "late", ELSEWHERE: ""}


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of the functions and methods of a module."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def calls_of(text: str, folder: Path, longest_s: float) -> Calls:
    places, seconds = json.loads(text)
    found = {test: {(place, line) for place, line in made} for test, made in places.items()}
    return Calls(folder, found, seconds, longest_s)


def _pytest(folder: Path, plugin: object, paths: Sequence[str], output: Path) -> int:
    """Run tests in this process, a child that has nothing of the package yet."""
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.path.insert(0, str(folder))
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={DEADLINE_S:.0f}", "-m", FAST]
    temporary = f"--basetemp={output}-files"
    return int(pytest.main([*options, temporary, *paths], plugins=[plugin]))


# ---------------------------------------------------------------- mutants of what imports call


class Chosen:
    """A plugin of pytest that keeps these tests only, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])


def try_anew(mutant: Mutant, tests: Sequence[str], folder: Path) -> str:
    """The verdict of tests that import the changed file."""
    place, output = folder / mutant.place, folder / "output"
    usual = place.read_text()
    place.write_text(mutant.source)
    files = dict.fromkeys(test.split("::")[0] for test in tests)
    process = os.fork()
    if not process:
        status = 3
        try:
            status = _pytest(folder, Chosen(tests), list(files), output)
        finally:
            os._exit(status)
    _, status = os.waitpid(process, 0)
    place.write_text(usual)
    if b"from pytest-timeout" in output.read_bytes():
        return "late"
    return "killed" if os.waitstatus_to_exitcode(status) else "survived"


def try_all(
    mutants: Sequence[Mutant], scratch: Path, jobs: int, longest_s: float
) -> Iterator[tuple[Mutant, str]]:
    """The verdict of each, as it comes: `killed`, `late` if only a deadline ended the tests, `survived`."""
    folder = _copy(scratch / "tree")
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        server = Server(folder, mutants, jobs, longest_s, writing)
        _pytest(folder, server, TESTS, scratch / "server")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        first = next(lines, "")
        if not first:
            raise SystemExit((scratch / "server").read_text())
        calls, left = calls_of(first, folder, longest_s), []
        for number, said in map(json.loads, lines):
            if said:
                yield mutants[number], said
            else:
                left.append(mutants[number])
    os.waitpid(process, 0)
    for mutant in left:
        yield mutant, try_anew(mutant, calls.tests(mutant), folder)


# ---------------------------------------------------------------- the command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS), metavar="ROOM")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="only N mutants, drawn by --seed; all by default"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", type=Path, metavar="FILE", help="only those that FILE lists")
    parser.add_argument(
        "--longest",
        type=float,
        default=float("inf"),
        metavar="S",
        help="to be quick, leave out tests of more seconds: what only they notice survives",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    mutants = _asked_for(asked)
    equivalent = [one for one in mutants if one.key in EQUIVALENT]
    mutants = [one for one in mutants if one not in equivalent]
    began, counts = time.monotonic(), Counter[str]()
    _get_ready()
    with tempfile.TemporaryDirectory(prefix="speedo-mutation-") as scratch:
        for mutant, said in try_all(mutants, Path(scratch), asked.jobs, asked.longest):
            counts[said] += 1
            if said != "killed":
                print(f"{said}: {mutant}", flush=True)
            if counts.total() % 50 == 0:
                seconds = time.monotonic() - began
                print(
                    f"{counts.total()} of {len(mutants)}, {dict(counts)}, {seconds:.0f} s",
                    file=sys.stderr,
                )
    share = 100 * counts["killed"] / max(len(mutants), 1)
    print(
        f"{len(mutants)} mutants of {', '.join(asked.rooms)}: {share:.1f} % killed by an assertion, "
        f"{dict(counts)}, {len(equivalent)} equivalent ones left out"
    )


def _asked_for(asked: argparse.Namespace) -> list[Mutant]:
    files = [file for room in asked.rooms for file in sorted((ROOT / "speedo" / room).glob("*.py"))]
    mutants = [mutant for file in files for mutant in mutants_of(file)]
    if asked.again is not None:
        lines = asked.again.read_text().splitlines()
        listed = {line.split(": ", 1)[1] for line in lines if line.startswith(("survived", "late"))}
        mutants = [mutant for mutant in mutants if str(mutant) in listed]
    if asked.sample is not None:
        mutants = random.Random(asked.seed).sample(mutants, min(asked.sample, len(mutants)))
    return mutants


def _get_ready() -> None:
    """Import what tests need once, here: every process of tests is a copy of this one.

    No bytecode of a mutant is written: the next one may have the same size and second. A BLAS gets one thread, as it
    would in the tests.
    """
    sys.dont_write_bytecode = True
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    for module in (
        "numpy",
        "pytest",
        "hypothesis",
        "pydantic",
        "orjson",
        "xxhash",
        "yaml",
        "redis",
    ):
        __import__(module)


def _copy(folder: Path) -> Path:
    for name in ("speedo", "tests", "prototxt"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


if __name__ == "__main__":
    main()
