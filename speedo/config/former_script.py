"""The script of a former run, from its config.yaml: run again as it was only where nobody else can have written it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from speedo.errors import ConfigError
from speedo.redaction import HIDDEN

OWN: Final = ("script", "arguments", "script_folder")  # of a config.yaml


def script_of(values: Mapping[str, Any], file: Path) -> tuple[tuple[str, ...], str]:
    """The script with its arguments, and the folder that it ran in. Raises `ConfigError`."""
    words, folder = (
        [values.get("script"), *(values.get("arguments") or ())],
        values.get("script_folder"),
    )
    if not all(isinstance(one, str) for one in [*words, folder]):
        raise ConfigError(
            f"{file} names no script with a folder: name the script again, with its arguments"
        )
    if hidden := [one for one in words if HIDDEN in one]:
        raise ConfigError(
            f"the arguments of the script are not whole in {file}, which keeps no secrets ({hidden[0]}): name the "
            "script again, with its arguments"
        )
    if not os.path.isdir(folder or ""):
        raise ConfigError(
            f"the script ran in {folder}, which is not there: name the script again, with its arguments"
        )
    return tuple(words), str(folder)


def without_script(
    values: dict[str, Any], given: Mapping[str, Any], file: Path, *, resumes: bool
) -> dict[str, Any]:
    """The other options. Raises `ConfigError` if the file is of a script and the command trains none, or reversely."""
    own = bool(values.get("own")) or any(name in values for name in OWN)
    if own != bool(given.get("own") or given.get("script")):
        kind, command = ("a solver's net", "train")
        if own:
            kind, command = (
                ("a script", "run")
                if "script" in values
                else ("each host's own script", "master --own")
            )
        remedy = f"resume it with speedo {command} --resume" if resumes else f"use speedo {command}"
        raise ConfigError(f"{file} is of a run that trains {kind}: {remedy}")
    if own:  # its first weights are in the checkpoint
        return {name: one for name, one in values.items() if name not in (*OWN, "weights")}
    return values
