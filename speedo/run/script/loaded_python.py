"""A Python that has loaded what a script imports, and waits to become it: `python -P -m ... SCRIPT ARGUMENT...`.

A line of its standard input, once the worker before it has died, gives it its place. Then it is as
`python SCRIPT ARGUMENT...` would be, but that PyTorch is there already: that takes most of a script's start.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final

OURS: Final = ("speedo.run.script.joined_run", "speedo.engines.pytorch.module_weights")
_IMPORT: Final = re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE)


def command(script: Sequence[str], folder: str) -> list[str]:
    """What starts it for this command, run in this folder; empty for one that it could not stand in for.

    That is all but `python SCRIPT ...` with a script that imports PyTorch and says nothing of the environment before:
    what it sets there would come too late.
    """
    python, *words = script
    if python != sys.executable or not words or sys.flags.safe_path:
        return []
    with suppress(OSError, UnicodeDecodeError):
        before, *after = _IMPORT.split(Path(folder, words[0]).read_text(encoding="utf-8"), 1)
        if after and "environ" not in before:
            return [python, "-P", "-m", __name__, *words]
    return []


def place(environment: Mapping[str, str], log: Path, cores: Iterable[int]) -> bytes:
    """For its standard input: the script's environment, where its output goes, and the cores that it has."""
    told = {"environment": dict(environment), "log": str(log), "cores": list(cores)}
    return json.dumps(told).encode() + b"\n"


def main() -> None:
    """Load, say so by a line, wait for a place, and become the script."""
    for name in OURS:
        with suppress(ImportError, OSError):  # the script will say so
            import_module(name)
    print(flush=True)
    if not (line := sys.stdin.readline()):
        return
    told = json.loads(line)
    os.environ.clear()
    os.environ.update(told["environment"])
    for thread in os.listdir("/proc/self/task"):  # libraries have begun theirs
        with suppress(OSError):
            os.sched_setaffinity(int(thread), told["cores"])
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(told["log"], os.O_WRONLY | os.O_APPEND)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    del sys.argv[0]
    file, script = Path(sys.argv[0]).absolute(), ModuleType("__main__")
    script.__file__, script.__loader__ = str(file), SourceFileLoader("__main__", str(file))
    sys.modules["__main__"] = script
    sys.path.insert(0, str(file.resolve().parent))
    exec(compile(file.read_bytes(), file, "exec"), script.__dict__)


if __name__ == "__main__":
    main()
