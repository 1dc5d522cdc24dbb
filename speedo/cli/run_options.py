"""Makes the command line options of a run from the table of options (`speedo.config.option_table`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from speedo.bounds import said
from speedo.cli import original_options
from speedo.cli.say import say
from speedo.config.option_checks import check_device
from speedo.config.option_table import Row, rows
from speedo.config.run_config import MASTER, MERGING, RAY, RUN, SOLVER, THREADS, RunConfig
from speedo.errors import ConfigError
from speedo.sgd_modes.base import options_of
from speedo.sgd_modes.foreign import BROKEN, is_foreign, look_here, mode_at, rule_at
from speedo.system.cores import USUAL, Core, CoreOptions, cores_in, this_machine

Function = Callable[..., Any]
Decorate = Callable[[Function], Function]
PATH: Final = click.Path(path_type=Path)
OPEN: Final = ("mode", "rule")  # which also take a class of the user's
OWN: Final = "options of a class of the user's"
FILE: Final = click.Path(path_type=Path, dir_okay=False)


class GroupedOption(click.Option):
    """An option that is listed under a heading of the help."""

    def __init__(self, *names: Any, heading: str = "Options", **extra: Any) -> None:
        super().__init__(*names, **extra)
        self.heading = heading


class NameOrPlace(click.Choice[str]):
    """One of these names, or the place of a class, as in `package.module:Class`."""

    def convert(self, value: Any, *rest: Any) -> Any:
        return value if is_foreign(value) or value in BROKEN else super().convert(value, *rest)


class RunCommand(click.Command):
    """A command that also accepts the options of the original SpeeDO and of Caffe, and says what they are here."""

    translate = staticmethod(original_options.for_a_run)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        words, notes = self.translate(args)
        for note in notes:
            say(f"speedo: {note}", err=True)
        first = self.make_parser(context)
        first.ignore_unknown_options = True  # they may be those of a class that an option names
        context.meta[OWN] = _own_options(first.parse_args([*words])[0])
        return super().parse_args(context, words)

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """Also the options of a mode and a rule of the user's."""
        return [*super().get_params(context), *context.meta.get(OWN, ())]


class WorkerCommand(RunCommand):
    """The same for the command of a node with workers."""

    translate = staticmethod(original_options.for_a_worker)


class ScoreCommand(RunCommand):
    """The same for the command that scores, which Caffe's own has, too."""

    translate = staticmethod(original_options.for_a_test)


class GroupedCommand(RunCommand):
    """A command whose help lists its options under their headings."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        headings: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if isinstance(parameter, click.Option) and record is not None:
                headings.setdefault(getattr(parameter, "heading", "Help"), []).append(record)
        for heading, records in headings.items():  # in the order of the options
            with formatter.section(heading):
                formatter.write_dl(records)


def options_for(model: type[RunConfig] = RunConfig, *groups: str) -> Decorate:
    """The options of these groups of the table, as a decorator of a command."""
    made = [_option(row) for row in rows(model) if row.group in groups]
    return _all(made)


def options_named(*names: str) -> Decorate:
    """These options of a run for another command, as a decorator; left out, they are None or False."""
    return _all([_option(row) for name in names for row in rows() if row.name == name])


def _option(row: Row) -> Decorate:
    if row.name == "solver":
        return click.argument("solver", required=False, type=PATH)
    extra: dict[str, Any] = {"default": None, "help": row.help, "metavar": row.metavar}
    if isinstance(row.kind, tuple):
        extra["type"] = (NameOrPlace if row.name in OPEN else click.Choice)(row.kind)
    elif row.kind is tuple:
        extra |= {"multiple": True, "default": ()}
    elif row.kind is bool:
        extra["is_flag"] = True
    else:
        extra["type"] = PATH if row.kind is Path else row.kind
    if row.option.bare:
        extra |= {"is_flag": False, "flag_value": row.option.bare}
    return under(row.group, row.flags, row.name, **extra)


def _own_options(given: Mapping[str, Any]) -> list[click.Parameter]:
    """The options of the mode and the rule that are given by their places; raises `ConfigError`."""
    look_here()
    made = {}
    for word in OPEN:
        if is_foreign(place := given.get(word)):
            own = mode_at(place).own if word == "mode" else options_of(rule_at(place))
            for name, one in own.items():
                declared = replace(one.option, group=f"Of {place}")
                made[name] = Row(name, one.kind, one.default, declared, ())
    holder = _all([_option(row) for row in made.values()])(lambda: None)
    return list(reversed(getattr(holder, "__click_params__", [])))


def under(heading: str, *names: str, **extra: Any) -> Decorate:
    """An option under this heading of the help."""
    return click.option(*names, cls=GroupedOption, heading=heading, **extra)


def _all(decorators: Sequence[Decorate]) -> Decorate:
    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


token_option = click.option(
    "--token-file", type=FILE, help="The shared secret.  [default: ~/.config/speedo/token]"
)

logs_option = click.option(
    "--logs",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep this host's logs there.  [default: a temporary folder, removed after a run that ended well]",
)


def _cores_options(usual: str = "") -> Decorate:
    """Threads and binding, for a command of one host; `usual` is their default there, if it is not that of a run."""
    return _named_with_default(("threads", "bind"), usual)


def _named_with_default(names: Sequence[str], usual: str) -> Decorate:
    there = [row for row in rows() if row.name in names]
    return _all([_option(replace(row, option=replace(row.option, usual=usual))) for row in there])


def checked_threads(threads: str | None) -> str:
    """What a command was given for --threads, or the default; raises `ConfigError`."""
    given = USUAL.threads if threads is None else threads
    if problems := THREADS("threads", given):
        raise ConfigError(problems)
    return given


def checked_cores(texts: Sequence[str], workers: int) -> tuple[tuple[Core, ...], ...]:
    """What --cores was given for so many workers; raises `ConfigError`, also for cores that this host lacks."""
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


cores_options = _cores_options()
host_options = _named_with_default(("device", "threads", "bind"), "the master's")
run_options = _all(
    [
        options_for(RunConfig, MERGING, SOLVER, RUN),
        under(
            RUN,
            "--config",
            "config_file",
            type=PATH,
            metavar="FILE",
            help="YAML file with any of these options, as in `max_iter: 500`; the command line overrides the file.",
        ),
    ]
)
ray_options = _all([options_for(RunConfig, RAY), options_named("redis_tls")])
master_options = _all(
    [
        options_for(RunConfig, MASTER),
        under(
            MASTER,
            "--token-file",
            type=FILE,
            help="The shared secret; made if missing.  [default: ~/.config/speedo/token]",
        ),
    ]
)
