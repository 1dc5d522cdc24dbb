"""Puts the packages of this interpreter before those on PYTHONPATH.

The shell of a Caffe user has a folder of Caffe there: another `caffe`, often beside a `google` or a `redis.py` that
hides ours. The folders stay importable, after ours, because Python layers may come from there.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_VARIABLE: Final = "PYTHONPATH"
_FOUND_FIRST: Final = str(Path(__file__).with_name("found_first"))
_ROOT: Final = str(Path(__file__).resolve().parents[2])  # the folder that holds this package


def put_ours_first() -> None:
    """Sort the import path of this process, and the environment for all that it starts."""
    ours, theirs = _sorted(os.environ)
    if theirs:
        sys.path[:] = [path for path in sys.path if path not in (*ours, *theirs)] + ours + theirs
        os.environ.update(with_our_path(os.environ))


def with_our_path(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that imports this same package, and the others that its parent imports."""
    ours, theirs = _sorted(environment)
    return {**environment, _VARIABLE: os.pathsep.join([*ours, *theirs] if theirs else [_ROOT])}


def on_pythonpath(file: str) -> str | None:
    """The folder on PYTHONPATH, and none of ours, in which this file is."""
    _, theirs = _sorted(os.environ)
    return next((folder for folder in theirs if Path(file).is_relative_to(folder)), None)


def _sorted(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The folders of this interpreter's packages, and those that the user has put on PYTHONPATH."""
    given = environment.get(_VARIABLE)
    named = [os.path.abspath(path) for path in given.split(os.pathsep)] if given else []
    packages = [*site.getsitepackages(), site.getusersitepackages()]
    # After the last folder of the standard library `site` adds its own, and what their .pth files name.
    standard = [at for at, path in enumerate(sys.path) if path.endswith("lib-dynload")]
    added = sys.path[standard[-1] + 1 :] if standard else []
    found = [path for path in packages if path in sys.path]
    ours = dict.fromkeys(
        [_FOUND_FIRST, _ROOT, *found, *(path for path in added if path not in named)]
    )
    return list(ours), [path for path in dict.fromkeys(named) if path not in ours]
