"""What the config.yaml of a former run may decide: no code, script and place, where a stranger may have written it."""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

from speedo.data.remote.fetch import was_fetched
from speedo.data.remote.uris import uri_of
from speedo.errors import HIDDEN, ConfigError
from speedo.run.config.formats import read_options
from speedo.sgd_modes.foreign import is_foreign
from speedo.system.bounds import said
from speedo.watch.export import places

CONFIG: Final = "config.yaml"
# What is run, read, written, connected to or listened at; the flag by which it is given. Numbers are checked as always.
PLACES: Final = {
    "solver": "SOLVER",
    "script": "SCRIPT and its arguments",
    "python_layers": "--python-layers",
    "ray": "--ray",
    "redis": "--redis",
    "host": "--host",
    "data_root": "--data-root",
    "copy_to": "--copy-to",
    **{name: f"--{name.replace('_', '-')}" for name in places()},
}
OWN: Final = ("script", "arguments", "script_folder")  # of a config.yaml
_CODE: Final = {"mode": "--mode", "rule": "--rule"}  # if the value is the place of a class
# What a resumed run does not need, or what is never in a file of ours.
_LEFT_OUT: Final = ("weights", "run_dir", "resume", "take_over")
_HARMLESS: Final = {
    "host": ("127.0.0.1",),
    **{name: (option.bare,) for name, option in places().items()},
}


def options_in(file: Path | None, given: Mapping[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """The file that has the options of a run, and they: the one that is named, or that of the run to resume.

    Raises `ConfigError`.
    """
    former = Path(given["resume"]) / CONFIG if given.get("resume") else None
    resumes = former is not None and os.path.isfile(former)
    if file is not None:
        read = read_options(file)
    elif former is not None and resumes:
        file, read = former, options_of_run(former, given)
    else:
        return None, {}
    read = _without_script(read, given, file, resumes=resumes)
    # The weights of a resumed run are in its checkpoint.
    known = {*given, "weights"} if resumes else {*given}
    _check_nothing_hidden({name: read[name] for name in read if name not in known}, file)
    return file, read


def former_script(run_dir: Path) -> tuple[tuple[str, ...], str]:
    """The script of this run with its arguments, and its folder. Raises `ConfigError`, also for a stranger's run."""
    file = run_dir / CONFIG
    if not os.path.isfile(file):
        raise ConfigError(
            f"resume names {run_dir}, which holds no run: it has no {CONFIG}; give a run directory"
        )
    values = options_of_run(file, otherwise="begin a run of your own with --weights")
    _without_script(values, {"own": True}, file, resumes=True)
    return _script_of(values, file)


def _script_of(values: Mapping[str, Any], file: Path) -> tuple[tuple[str, ...], str]:
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


def _without_script(
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


def options_of_run(file: Path, given: Container[str] = (), otherwise: str = "") -> dict[str, Any]:
    """The options in the config.yaml of a former run, without places that are `given`.

    Raises `ConfigError` with every option that names code or a place, if another than this user may have written it;
    `otherwise` is the remedy beside giving the option.
    """
    read = read_options(file)
    why = _of_a_stranger(file)
    if not why:
        return read
    remedy = otherwise or f"read the file and give --config {file}"
    found = [
        f"{name} is {said(value)} in {file}, and is not taken from there: {why}; give {PLACES[name]} again, or {remedy}"
        for name, value in read.items()
        if name in PLACES
        and name not in given
        and value is not None
        and value not in _HARMLESS.get(name, ())
    ]
    found += [
        f"{name} is {said(value)} in {file}, which is code, and is not taken from there: {why}; give {_CODE[name]} "
        f"again, or {remedy}"
        for name, value in _code_in(read)
        if name not in given
    ]
    if found:
        raise ConfigError(found)
    return {name: value for name, value in read.items() if name not in (*PLACES, *_LEFT_OUT)}


def _code_in(read: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Modes and rules outside the package that a run and its phases name."""
    phases = read.get("phases")
    parts = [read, *(phases if isinstance(phases, list) else ())]
    pairs = [pair for part in parts if isinstance(part, Mapping) for pair in part.items()]
    return [(name, value) for name, value in pairs if name in _CODE and is_foreign(value)]


def _check_nothing_hidden(read: Mapping[str, Any], file: Path) -> None:
    """Raises `ConfigError` for each URI in the file whose secret was not written there."""
    found = [
        f"{name} is {value} in {file}, which does not keep its secret: give --{name.replace('_', '-')} again with the "
        "whole URI, or remove that line"
        for name, value in read.items()
        if isinstance(value, str) and HIDDEN in value and uri_of(value) is not None
    ]
    if found:
        raise ConfigError(found)


def _of_a_stranger(file: Path) -> str:
    """Why another than this user may have written the file; empty if that cannot be."""
    try:
        facts = os.stat(file)
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if facts.st_uid != os.getuid():
        return "the file belongs to another user"
    if facts.st_mode & stat.S_IWOTH:
        return "every user of this machine may write the file"
    return "the run was fetched from a store" if was_fetched(file.parent) else ""


def without_engine(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run that another engine shall continue: only the device cpu is one of both engines."""
    rest = {name: value for name, value in options.items() if name != "precision"}
    if rest.get("device") != "cpu":
        rest.pop("device", None)
    return rest
