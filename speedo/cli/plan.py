"""`speedo plan`: predicts how fast a run would be with more workers, another mode or another network."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from speedo.cli.page import PagedCommand, json_option
from speedo.cli.run_options import FILE, PATH, NameOrPlace, options_named
from speedo.cli.say import say
from speedo.engines.make import Precision
from speedo.errors import ConfigError
from speedo.exchange.codecs import is_fraction, parse_compression
from speedo.run.config.run_config import LARGEST_WORKERS, make_config
from speedo.sgd_modes.foreign import look_here
from speedo.sgd_modes.options import ModeOptions
from speedo.sgd_modes.registry import MODES, PLAIN, RULES, is_elastic, rule_named
from speedo.sgd_modes.rules import AddDelta
from speedo.system.bounds import LARGEST_SEED, EngineName, Overlap
from speedo.system.workplace import check_names, check_workplace

if TYPE_CHECKING:
    from speedo.study.planning.calibration import Calibration
    from speedo.study.planning.predict import PlanWish
    from speedo.study.planning.site import Factors, Team

ANY_PHASE: Final = ({"mode": "sync", "iterations": 1},)
_IN_SIGHT: Final = (
    *("workers", "link", "modes", "local_steps", "servers", "step_time", "source", "save"),
    *("engine", "device", "as_json"),
)
AS_IT_IS: Final = {"compress": "none", "compress_center": "none"}


@click.command(cls=PagedCommand, in_sight=_IN_SIGHT)
@click.argument("solver", required=False, type=PATH)
@click.option(
    "--workers",
    metavar="N|A..B",
    help="Numbers of workers: 8, or 1,2,6, or 1..64 (its ends and the powers of two between).  "
    "[default: up to the cores of this machine; with --link 1..64]",
)
@click.option(
    "--link",
    metavar="RATE",
    help="Put workers on other machines, each with a link of this many bits per second: 10gbit, 100mbit.  "
    "[default: everything on this machine]",
)
@click.option(
    "--latency",
    metavar="TIME",
    default="0.2ms",
    show_default=True,
    help="With --link: the round trip between two machines, as ping shows it.",
)
@click.option(
    "--per-machine",
    type=click.IntRange(1, LARGEST_WORKERS),
    default=1,
    show_default=True,
    metavar="N",
    help="With --link: workers on each machine.",
)
@click.option(
    "--cores",
    type=click.IntRange(1, LARGEST_WORKERS),
    metavar="N",
    help="Cores of each machine.  [default: those of this one]",
)
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=NameOrPlace(MODES),
    help="Predict this mode, or a mode of your own, package.module:Class; may be repeated.  [default: all but hybrid]",
)
@click.option(
    "--rule",
    type=NameOrPlace(tuple(RULES)),
    help="Measure a merge by this rule, or by a rule of your own, package.module:Class.  "
    "[default: add-delta]",
)
@click.option(
    "--local-steps",
    default="1,10",
    show_default=True,
    metavar="N[,N...]",
    help="Solver steps between two exchanges.",
)
@options_named("compress", "compress_center", "overlap", "split_batch", "team", "factors")
@click.option(
    "--servers",
    metavar="K|auto",
    default="0",
    show_default=True,
    help="Split the center over K servers on the workers' machines, round robin; auto: one on each machine; 0: the "
    "master keeps it.",
)
@click.option(
    "--threads",
    metavar="N[:S]",
    help="Measure steps with N BLAS threads; N:S: measure with one, and take N threads as S times as fast.  [default: "
    "1]",
)
@click.option(
    "--step-time",
    metavar="TIME",
    help="Time of a step of the whole batch, measured elsewhere, for example 80ms on a GPU. Steps are then not "
    "measured here and use no core; the solver gives the sizes, even without its data.",
)
@click.option(
    "--from",
    "source",
    type=PATH,
    metavar="RUN|FILE",
    help="Take the times from the run directory of a `speedo train`, or from a file of --save. With SOLVER as well, "
    "only times that cannot be measured here, such as those of messages, come from the run.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 600),
    default=3.0,
    show_default=True,
    metavar="S",
    help="Seconds to measure steps, for each batch size.",
)
@click.option("--save", type=FILE, help="Save the measurements in this file, for --from.")
@options_named("data_root", "ignore_unknown", "engine", "device", "precision")
@click.option(
    "--seed", type=click.IntRange(0, LARGEST_SEED), default=0, show_default=True, metavar="N",
    help="Seed of the simulated jitter; the same seed gives the same table.",
)  # fmt: skip
@json_option
def plan(
    solver: Path | None,
    workers: str | None,
    link: str | None,
    latency: str,
    per_machine: int,
    cores: int | None,
    modes: tuple[str, ...],
    rule: str | None,
    local_steps: str,
    compress: str | None,
    compress_center: str | None,
    overlap: Overlap | None,
    split_batch: bool | None,
    team: Team | None,
    factors: Factors | None,
    servers: str,
    threads: str | None,
    step_time: str | None,
    source: Path | None,
    seconds: float,
    save: Path | None,
    data_root: Path | None,
    ignore_unknown: bool | None,
    engine: EngineName | None,
    device: str | None,
    precision: Precision | None,
    seed: int,
    as_json: bool,
) -> None:
    """Predict how fast a run would be, before you rent machines for it.

    Measures the solver on this machine for some seconds (steps of Caffe, the model to Redis and back, a merge), then
    runs the master's code in a simulator with these times, for every mode, number of workers and number of local
    steps. Prints images/s, the speed-up over one plain Caffe, and the efficiency (speed-up divided by workers). Names
    the best, and what limits it: compute, link, store or master.

    \b
    speedo plan                                                LeNet on this machine
    speedo plan my/solver.prototxt --workers 1..64 --link 10gbit
    speedo plan my/solver.prototxt --workers 16 --link 1gbit --local-steps 1,5,20 --mode easgd
    speedo plan my/solver.prototxt --save my.json              measure once ...
    speedo plan --from my.json --link 25gbit                   ... and plan often
    speedo plan my/solver.prototxt --step-time 80ms --link 10gbit --servers auto
    speedo plan --from runs/20260101-120000-async-ab12         from a run, best with one worker

    Run nothing else at the same time. The last lines say what was measured and what was assumed. Tests, checkpoints
    and the accuracy of a mode are not predicted.
    """
    from speedo.cli.units import parse_link, parse_servers, parse_steps, parse_time, parse_workers
    from speedo.study.planning.predict import PlanWish, predict_all, shares_of
    from speedo.study.planning.report import as_json as to_json
    from speedo.study.planning.report import as_text
    from speedo.study.planning.site import Site

    here = cores or len(os.sched_getaffinity(0))
    usual = f"1..{here}" if link is None else "1..64"
    counts, steps = parse_workers(workers or usual), parse_steps(local_steps)
    bits, round_trip = None if link is None else parse_link(link), parse_time(latency)
    kept, work = parse_servers(servers), _steps(threads, step_time)
    how = {"compress": compress or "none", "compress_center": compress_center or "none"}
    look_here()
    wish = PlanWish(
        modes or _modes_that_take(how["compress"], rule), steps, counts, split_batch, seed
    )
    for mode in modes:
        phases = ANY_PHASE if mode == "hybrid" else None
        make_config({"mode": mode, "rule": rule, "phases": phases, **how})
    if solver is None and source is not None:
        if how != AS_IT_IS or rule is not None:
            what = "--compress" if rule is None else "--rule"
            raise ConfigError(
                f"{what} is measured: give SOLVER beside --from {source}, or leave it out"
            )
        calibration = work.of(_known(source, here))
    else:
        calibration = _measured(
            solver, source, wish, how, seconds, work,
            {"engine": engine, "device": device, "precision": precision},
            data_root=data_root, rule=rule or AddDelta.name, ignore_unknown=bool(ignore_unknown),
        )  # fmt: skip
    if save is not None:
        from speedo.study.planning.calibration import write_calibration

        write_calibration(calibration, save)
    site = Site(here) if bits is None else Site(here, bits, round_trip, per_machine)
    site = replace(
        site,
        overlap=overlap or "none",
        team=team or "host",
        factors=factors or "auto",
        servers=kept,
    )
    if not any(shares_of(calibration, mode, n, split_batch) for mode in wish.modes for n in counts):
        raise ConfigError(
            f"batch_size {calibration.batch_size} cannot be split over {min(counts)} workers or more; "
            "use fewer workers, or --whole-batch"
        )
    predictions = predict_all(calibration, site, wish)
    if as_json:
        say(json.dumps(to_json(calibration, site, predictions)))
    else:
        say(as_text(calibration, site, predictions))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Where the time of a step comes from: measured with `threads`, made faster by `speedup`, or given."""

    threads: int | None = None
    speedup: float | None = None
    step_s: float | None = None

    @property
    def measured(self) -> int:
        """The threads to measure with."""
        return self.threads if self.threads is not None and self.speedup is None else 1

    def of(self, known: Calibration) -> Calibration:
        """Steps that were measured before. Raises `ConfigError` if they were measured with other threads."""
        from speedo.study.planning.calibration import with_step_time

        if self.step_s is not None:
            return with_step_time(known, self.step_s)
        needed = self.threads and self.measured
        if needed is not None and needed != known.threads:
            told = f"--threads {self.threads}, and the steps were measured with {known.threads}"
            raise ConfigError(
                f"{told}: give SOLVER, or how much faster they are, as in --threads 4:3.1"
            )
        return self.scaled(known)

    def scaled(self, known: Calibration) -> Calibration:
        """Steps that were measured with one thread."""
        from speedo.study.planning.calibration import with_threads

        if self.threads is None or self.speedup is None:
            return known
        return with_threads(known, self.threads, self.speedup)


def _steps(threads: str | None, step_time: str | None) -> _Steps:
    from speedo.cli.units import parse_step_time, parse_threads

    if step_time is not None:
        if threads is not None:
            raise ConfigError("--threads does not change --step-time: leave --threads out")
        return _Steps(step_s=parse_step_time(step_time))
    return _Steps() if threads is None else _Steps(*parse_threads(threads))


def _modes_that_take(compress: str, rule: str | None) -> tuple[str, ...]:
    """All but hybrid that fit the rule; easgd sends weights, of which a few make no model."""
    name, _ = parse_compression(compress)
    return tuple(
        mode
        for mode, one in PLAIN.items()
        if not (is_fraction(name) and is_elastic(ModeOptions(mode=mode)))
        and (rule is None or one.fits(rule_named(rule)))
    )


def _known(source: Path, cores: int) -> Calibration:
    """A calibration from a file of --save, or from a run."""
    from speedo.study.planning.calibrate_from_run import from_run
    from speedo.study.planning.calibration import read_calibration

    _must_exist(source)
    return from_run(source, cores=cores) if os.path.isdir(source) else read_calibration(source)


def _measured(
    solver: Path | None,
    run: Path | None,
    wish: PlanWish,
    how: dict[str, str],
    seconds: float,
    work: _Steps,
    computes: dict[str, Any],
    **options: Any,
) -> Calibration:
    """Measured here, with the messages of a run if one is given."""
    from speedo.exchange.codecs import Compression
    from speedo.run.engine_choice import choice_of
    from speedo.study.planning.calibrate_by_measuring import measure_solver
    from speedo.study.planning.calibrate_from_run import check_run, with_run

    check_workplace()
    check_names({"the solver": solver, "the data root": options.get("data_root")})
    if run is not None:  # what is wrong with it is reported before anything is measured
        _must_exist(run)
        if not os.path.isdir(run):
            raise ConfigError(f"{run} holds the times of a net: leave SOLVER out, or --from")
        check_run(run)
    compression = Compression(how["compress"], how["compress_center"])

    def note(line: str) -> None:
        say(line, err=True)

    measured = measure_solver(
        solver, wish.modes, wish.workers, wish.split, seconds, note, compression=compression,
        threads=work.measured, step_s=work.step_s, choice=choice_of(note, **computes), **options,
    )  # fmt: skip
    return work.scaled(measured if run is None else with_run(run, measured))


def _must_exist(source: Path) -> None:
    if not os.path.exists(source):
        raise ConfigError(
            f"--from {source} is not there; give a run directory, or a file of --save"
        )
