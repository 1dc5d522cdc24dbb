"""A child process with an engine: requests go to it as lines of JSON, its answers begin with a marker.

A marker, because a Python layer may print, too. An abort of Caffe ends only the child. It ends with this process,
however that ends: its input and output are closed then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from speedo.engines.caffe_import import prepare_environment
from speedo.engines.native_failures import describe_death, describe_exception
from speedo.errors import EngineError, SolverError, SpeedoError
from speedo.system.import_order import with_our_path

PROBLEM: Final = "speedo-problem: "  # begins the answer of a child that cannot continue: a sentence


class Child:
    """One process; `origin`, the net's file, begins every sentence about it."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str], origin: str) -> None:
        self.process, self._errors, self.origin = process, errors, origin

    def say(self, what: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # why it is gone is shown by the end of its output
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """What it prints, to the end of its output."""
        assert self.process.stdout is not None
        with suppress(ValueError):  # it was closed
            while line := self.process.stdout.readline():  # its iterator would close it with ours
                yield line

    def answer(self, mark: str) -> Any:
        """What it tells next with this mark. Raises `SolverError`, `EngineError` for a problem or a death."""
        for line in self.lines():
            self.check(line)
            if line.startswith(mark):
                return json.loads(line.removeprefix(mark))
        raise self.death()

    def check(self, line: str) -> None:
        """Raises `SolverError` or `EngineError` if this line is a problem."""
        if line.startswith(PROBLEM):
            problem = json.loads(line.removeprefix(PROBLEM))
            if problem.startswith("weights "):
                raise SolverError(problem)
            raise EngineError(f"{self.origin}: {problem}")

    def death(self, what: str = "") -> SolverError:
        """Why it ended, in Caffe's own words; `what` says what it was to do."""
        status = self.process.wait()
        self._errors.seek(0)
        return SolverError(f"{self.origin}{what}: {describe_death(self._errors.read(), status)}")


@contextmanager
def started(
    module: str, request: dict[str, Any], folder: Path, origin: str, threads: int = 1
) -> Iterator[Child]:
    """A child that runs this module and has the request; `folder`, which is made, is for its temporary files."""
    folder.mkdir()
    environment = with_our_path({**os.environ, "TMPDIR": str(folder)})
    prepare_environment(threads, environment)
    with (folder / "stderr").open("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,  # a Ctrl-C is for this process, which ends its children
        )
        child = Child(process, errors, origin)
        try:
            child.say(request)
            yield child
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()


def tell(mark: str, what: Any) -> None:
    """The child's part: one answer."""
    print(f"\n{mark}{json.dumps(what)}", flush=True)


@contextmanager
def problems_told() -> Iterator[None]:
    """The child's part: what is raised is its last answer."""
    try:
        yield
    except BrokenPipeError:
        return  # nobody reads
    except SpeedoError as error:
        tell(PROBLEM, str(error))
    except Exception as error:
        tell(PROBLEM, describe_exception(error))
