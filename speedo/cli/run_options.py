"""Makes the command line options of a run from the table of options (`speedo.run.config.option_table`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from speedo.cli import original_options
from speedo.cli.option_parts import OptionWithParts, type_of
from speedo.cli.page import GroupedOption, PagedCommand
from speedo.cli.say import say
from speedo.errors import ConfigError
from speedo.run.config.option_checks import check_device
from speedo.run.config.option_table import Row, rows
from speedo.run.config.run_config import FILES, MASTER, RAY, THREADS, RunConfig
from speedo.sgd_modes.foreign import BROKEN, is_foreign
from speedo.system.bounds import Option, said
from speedo.system.cores import USUAL, Core, CoreOptions, cores_in, this_machine

Function = Callable[..., Any]
Decorate = Callable[[Function], Function]
Translate = Callable[[Sequence[str]], tuple[list[str], list[str]]]
PATH: Final = click.Path(path_type=Path)
OPEN: Final = ("mode", "rule")  # which also take a class of the user's
# What `--help` shows of a run's options.
IN_SIGHT: Final = (
    *("mode", "workers", "rule", "local_steps", "moving_rate", "max_iter", "test_interval", "lr"),
    *("batch", "weights", "resume", "run_dir", "config_file", "data_root", "engine", "device"),
    *("threads", "ray", "host"),
)
FILE: Final = click.Path(path_type=Path, dir_okay=False)


class NameOrPlace(click.Choice[str]):
    """One of these names, or the place of a class, as in `package.module:Class`."""

    def convert(self, value: Any, *rest: Any) -> Any:
        return value if is_foreign(value) or value in BROKEN else super().convert(value, *rest)


def no_translation(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """For a command that the original did not have."""
    return list(words), []


class RunCommand(PagedCommand):
    """A command that also accepts the options of the original SpeeDO and of Caffe, and says what they are here."""

    def __init__(
        self, *args: Any, translate: Translate = original_options.for_a_run, **extra: Any
    ) -> None:
        super().__init__(*args, **extra)
        self.translate = translate

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        words, notes = self.translate(args)
        for note in notes:
            say(f"speedo: {note}", err=True)
        return super().parse_args(context, words)


def options_for(
    wanted: Callable[[Row], bool],
    model: type[RunConfig] = RunConfig,
    words: Mapping[str, Option] | None = None,
) -> Decorate:
    """These options of the table, as a decorator of a command, which may have its own `words` for some."""
    own = words or {}
    return _options(
        [replace(row, option=own.get(row.name, row.option)) for row in rows(model) if wanted(row)]
    )


def options_named(*names: str) -> Decorate:
    """These options of a run for another command, as a decorator; left out, they are None or False."""
    return _options([row for name in names for row in rows() if row.name == name])


def _options(wanted: Sequence[Row]) -> Decorate:
    """Those that are given with another one of them are its parts."""
    names = {row.name for row in wanted}
    return _all(
        [
            _option(row, [part for part in wanted if part.parent == row.name])
            for row in wanted
            if row.parent not in names
        ]
    )


def _option(row: Row, parts: Sequence[Row] = ()) -> Decorate:
    if row.name == "solver":
        return click.argument("solver", required=False, type=PATH)
    extra: dict[str, Any] = {"default": None, "help": row.help, "metavar": row.metavar}
    if row.name in OPEN:
        extra["type"] = NameOrPlace(row.kind)
    elif row.kind is tuple:
        extra |= {"multiple": True, "default": ()}
    elif row.kind is bool:
        extra["is_flag"] = True
    else:
        extra["type"] = type_of(row)
    if row.option.bare:
        extra |= {"is_flag": False, "flag_value": row.option.bare}
    if parts:
        extra |= {"cls": OptionWithParts, "parts": parts}
    return under(row.group, row.flags, row.name, **extra)


def under(heading: str, *names: str, **extra: Any) -> Decorate:
    """An option under this heading of the help."""
    return click.option(*names, **{"cls": GroupedOption, "heading": heading, **extra})


def _all(decorators: Sequence[Decorate]) -> Decorate:
    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def checked_threads(threads: str | None) -> str:
    """What a command was given for --threads, or the default; raises `ConfigError`."""
    given = USUAL.threads if threads is None else threads
    if problems := THREADS("threads", given):
        raise ConfigError(problems)
    return given


def checked_cores(texts: Sequence[str], workers: int) -> tuple[tuple[Core, ...], ...]:
    """What --cores was given for this many workers; raises `ConfigError`, also for cores that this host lacks."""
    found = []
    for text in texts:
        try:
            found.append(cores_in(text))
        except ValueError:
            found.append(())
        if not found[-1]:
            raise ConfigError(
                f"--cores {said(text)} is not SOCKET:CORES, as in 0:0-3 or 0:0-3,1:0-3"
            )
    if found and len(found) != workers:
        raise ConfigError(
            f"--cores is there {len(found)} times for {workers} workers: give it once for each worker"
        )
    options = CoreOptions(cores=tuple(found))
    if problem := options.problem_on(this_machine()):
        raise ConfigError(problem)
    return options.cores


def checked_device(device: str | None) -> str | None:
    """What a command was given for --device; raises `ConfigError`."""
    if device is not None and (problems := check_device("device", device)):
        raise ConfigError(problems)
    return device


def of_a_host(*names: str) -> Decorate:
    """Options of a run that a host may have for itself: left out, they are the master's."""
    there = [row for row in rows() if row.name in names]
    return _options(
        [replace(row, option=replace(row.option, usual="the master's")) for row in there]
    )


run_options = _all(
    [
        options_for(lambda row: row.group not in (MASTER, RAY)),
        under(
            FILES,
            "--config",
            "config_file",
            type=PATH,
            metavar="FILE",
            help="YAML file with any of these options, as in `max_iter: 500`; the command line overrides the file.",
        ),
    ]
)
ray_options = options_for(lambda row: row.group == RAY)
master_options = _all(
    [
        options_for(lambda row: row.group == MASTER),
        under(
            MASTER,
            "--token-file",
            type=FILE,
            help="The shared secret; made if missing.  [default: ~/.config/speedo/token]",
        ),
    ]
)
