"""The options of a run on the command line, by what they are about; `config.py` checks what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from speedo.cli import original_options
from speedo.config.run_config import DEFAULT_PORT, MODES

Function = TypeVar("Function", bound=Callable[..., Any])
PATH: Final = click.Path(path_type=Path)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)
FILE: Final = click.Path(path_type=Path, dir_okay=False)


class GroupedOption(click.Option):
    """An option that stands under a heading of the help."""

    def __init__(self, *names: Any, heading: str = "Options", **extra: Any) -> None:
        super().__init__(*names, **extra)
        self.heading = heading


class RunCommand(click.Command):
    """A command that also takes the original SpeeDO's options, and says what they are called here."""

    translate = staticmethod(original_options.for_a_run)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        words, notes = self.translate(args)
        for note in notes:
            click.echo(f"speedo: {note}", err=True)
        return super().parse_args(context, words)


class WorkerCommand(RunCommand):
    """The same for the command of a node with workers."""

    translate = staticmethod(original_options.for_a_worker)


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


def _under(heading: str, *names: str, **extra: Any) -> Callable[[Function], Function]:
    return click.option(*names, cls=GroupedOption, heading=heading, **extra)


def _options(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


_MODE: Final = "How workers are merged"
_SOLVER: Final = "In place of what the solver says"
_RUN: Final = "The run"
_MASTER: Final = "Where workers join"

run_options = _options(
    click.argument("solver", required=False, type=PATH),
    _under(_MODE, "--mode", type=click.Choice(MODES), help="The SGD mode.  [default: sync]"),
    _under(_MODE, "--workers", type=int, metavar="N", help="Workers to train with.  [default: 2]"),
    _under(
        _MODE, "--local-steps", type=int, metavar="N",
        help="Solver steps between two exchanges (tau).  [default: 1]",
    ),
    _under(
        _MODE, "--moving-rate", type=float, metavar="A",
        help="easgd, partial, weed-out: alpha of elastic averaging.  [default: easgd 0.9 / workers; others none]",
    ),
    _under(
        _MODE, "--max-advance", type=int, metavar="N",
        help="partial: turns that a worker may be ahead of the slowest.  [default: 2]",
    ),
    _under(
        _MODE, "--window", type=int, metavar="N",
        help="weed-out: staleness from which a result is discarded.  [default: 3]",
    ),
    _under(
        _MODE, "--phase", "phases", multiple=True, metavar="MODE:ITERATIONS[,OPTION=VALUE...]",
        help="hybrid: a phase; repeat the option. Phases follow each other and start again. "
        "For example --phase sync:500 --phase easgd:1000,moving_rate=0.3",
    ),
    _under(
        _MODE, "--delta-scale", type=float, metavar="F",
        help="Factor on every merged delta.  [default: min(1, 2 / workers); sync: 1]",
    ),
    _under(
        _MODE, "--server-gradient/--no-server-gradient", default=None,
        help="Workers send raw gradients; the master applies the solver's update.  "
        "[default: in sync, for solvers other than SGD and Nesterov, and with clip_gradients]",
    ),
    _under(
        _MODE, "--backup-workers", type=int, metavar="N",
        help="sync: a round closes when all but N workers have reported.  [default: 0]",
    ),
    _under(
        _MODE, "--split-batch/--whole-batch", default=None,
        help="Divide the batch over the workers, or give it to each.  "
        "[default: divide in sync and in hybrids with sync]",
    ),
    _under(
        _MODE, "--compress", metavar="HOW",
        help="What workers send: none (float32), bfloat16, int8, or topk:F, the fraction F of the values that are "
        "largest, as in topk:0.01. What a payload loses by it is added to the worker's next.  [default: none]",
    ),
    _under(
        _MODE, "--compress-center", type=click.Choice(["none", "bfloat16"]),
        help="What workers fetch: none (float32) or bfloat16; the center itself stays float32.  [default: none]",
    ),
    _under(
        _SOLVER, "--max-iter", type=int, metavar="N",
        help="Iterations, counted as Caffe does: samples / batch.",
    ),
    _under(
        _SOLVER, "--test-interval", type=int, metavar="N",
        help="Test every N iterations; 0: only at the end.",
    ),
    _under(_SOLVER, "--lr", type=float, metavar="F", help="Instead of base_lr."),
    _under(_SOLVER, "--momentum", type=float, metavar="F", help="Instead of momentum."),
    _under(_SOLVER, "--weight-decay", type=float, metavar="F", help="Instead of weight_decay."),
    _under(_SOLVER, "--batch", type=int, metavar="N", help="Instead of the train net's batch_size."),
    _under(_SOLVER, "--seed", type=int, metavar="N", help="Instead of random_seed: weights and data layers."),
    _under(_SOLVER, "--cpu", is_flag=True, default=None, help="Train on the CPU although the solver says GPU."),
    _under(_RUN, "--weights", type=PATH, metavar="FILE", help="Start from this .caffemodel."),
    _under(
        _RUN, "--resume", type=PATH, metavar="RUN",
        help="Go on with the run in this directory, from its last checkpoint; or from a .solverstate of Caffe.",
    ),
    _under(
        _RUN, "--take-over", is_flag=True, default=None,
        help="With --resume: shut out a master that still holds the run but hangs.",
    ),
    _under(
        _RUN, "--checkpoint-interval", type=float, metavar="S",
        help="Seconds between checkpoints; 0: only at the end.  [default: 60]",
    ),
    _under(
        _RUN, "--config", "config_file", type=PATH, metavar="FILE",
        help="YAML file with any of these options, as in `max_iter: 500`; the command line comes first.",
    ),
    _under(
        _RUN, "--run-dir", type=PATH, metavar="DIR",
        help="What the run leaves goes here.  [default: runs/TIME-MODE]",
    ),
    _under(
        _RUN, "--python-layers", metavar="MODULE[,MODULE...]",
        help="Modules that Python layers may be imported from, beside those in the solver's folder.",
    ),
    _under(_RUN, "--data-root", type=PATH, metavar="DIR", help="Where relative data paths are tried last."),
    _under(
        _RUN, "--redis", metavar="URL",
        help="A Redis of your own; its password may come in SPEEDO_REDIS_PASSWORD.  [default: one is started]",
    ),
    _under(
        _RUN, "--same-node", type=click.Choice(["shared-memory", "redis"]),
        help="How vectors reach workers on the master's machine.  [default: shared-memory]",
    ),
    _under(
        _RUN, "--pace/--no-pace", default=None,
        help="Where workers on other machines share the master's cable, let them fetch one after another.  "
        "[default: --pace]",
    ),
    _under(
        _RUN, "--same-core/--no-same-core", default=None,
        help="Where workers on the master's machine take all its cores, merge a result on the core of its worker.  "
        "[default: --same-core]",
    ),
    _under(
        _RUN, "--overlap", type=click.Choice(["far", "all", "none"]),
        help="async, easgd: workers that get their next turn ahead, so that they fetch and publish while they compute; "
        "far: those on other machines.  [default: none]",
    ),
    _under(
        _RUN, "--timeout", type=float, metavar="S",
        help="Seconds to wait for workers and answers.  [default: 120]",
    ),
    _under(
        _RUN, "--join-timeout", type=float, metavar="S",
        help="Seconds to go on without workers.  [default: --timeout]",
    ),
    _under(
        _RUN, "--min-workers", type=int, metavar="N",
        help="Stand still below so many workers.  [default: 1]",
    ),
    _under(
        _RUN, "--restarts", type=int, metavar="N",
        help="Start a worker that died again, up to N times in a row.  [default: 5]",
    ),
    _under(
        _RUN, "--reshard-after", type=float, metavar="S",
        help="Share the data out anew once other workers have been there for S seconds; 0: never.  [default: 60]",
    ),
)  # fmt: skip

master_options = _options(
    _under(
        _MASTER, "--host", metavar="ADDRESS",
        help="Address of this machine to serve at.  [default: 127.0.0.1, this machine alone]",
    ),
    _under(
        _MASTER, "--port", type=int, metavar="N",
        help=f"Port that workers join at.  [default: {DEFAULT_PORT}]",
    ),
    _under(
        _MASTER, "--token-file", type=FILE,
        help="The shared secret; made if missing.  [default: ~/.config/speedo/token]",
    ),
    _under(
        _MASTER, "--redis-tls", is_flag=True, default=None,
        help="Encrypt what goes through the Redis that is started.",
    ),
)  # fmt: skip
