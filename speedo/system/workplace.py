"""Checks where a command runs: an existing working directory, a temporary folder, and path names that Caffe accepts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from caffenets.files import problem_with_name
from speedo.errors import ConfigError


def check_workplace() -> None:
    """Raises `ConfigError` if the working directory or the temporary folder cannot be used."""
    check_names({"the working directory": working_folder(), "the temporary folder": _temporary()})


def check_names(paths: dict[str, Path | None]) -> None:
    """Raises `ConfigError` for each of these paths, given by description, that Caffe could not open."""
    problems = []
    for what, path in paths.items():
        problem = None if path is None else problem_with_name(path)
        if problem is not None:
            problems.append(f"{what} {str(path)!a} {problem}")
    if problems:
        raise ConfigError(problems)


def working_folder() -> Path:
    """The working directory; raises `ConfigError` if it was removed, or may not be read."""
    try:
        return Path(os.getcwd())
    except OSError as error:
        raise ConfigError(
            f"the working directory is gone ({error.strerror}): change to one that is there"
        ) from None


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        raise ConfigError(
            "there is no temporary folder that can be written: set TMPDIR to one"
        ) from None
