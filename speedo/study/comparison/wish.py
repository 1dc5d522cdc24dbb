"""What a comparison shall have, and the runs that follow from it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml

from speedo.engines.solver import SolverSpec, check_solver
from speedo.errors import ConfigError
from speedo.run.config.run_config import RunConfig, make_config
from speedo.sgd_modes.base import options_of
from speedo.sgd_modes.foreign import is_foreign, look_here
from speedo.sgd_modes.options import ModeOptions
from speedo.sgd_modes.registry import PLAIN, RULES, mode_named, rule_class, uses
from speedo.system.bounds import said
from speedo.watch.report.equal_loss import Measure
from speedo.watch.report.figures import SEQUENTIAL

MOST_RUNS: Final = 2000
FILE: Final = "compare.yaml"
# Options that a comparison sets itself, or that would make its runs differ in more than their mode.
NOT_SWEPT: Final = ("mode", "rule", "workers", "seed", "solver", "run_dir", "resume", "take_over", "max_iter",
                    "test_interval", "phases", "data_root", "weights", "copy_to")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComparisonWish:
    """One comparison. `sweeps` are options with their values, `options` those that all runs have.

    A mode may name its rule, as `parse_modes` says.

    The modes train `longer` times the epochs of sequential Caffe, so that one that needs more reaches its loss, too.
    `tests` is the number of tests in an epoch, 0 for one test at the end.
    """

    modes: Sequence[str]
    workers: Sequence[int]
    epochs: float
    seeds: int = 1
    sweeps: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tests: int = 1
    longer: float = 1.25
    measure: Measure = "train"
    solver: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptWish:
    """What a comparison of scripts shall have; `script` is its path and its arguments."""

    script: Sequence[str]
    modes: Sequence[str]
    workers: Sequence[int]
    seeds: int = 1
    sweeps: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def plain_of(wish: ComparisonWish | ScriptWish) -> dict[str, Any]:
    """The wish as plain data, to be written down and compared."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(wish), default=str))
    return found


@dataclass(frozen=True, slots=True)
class Planned:
    """One run: its folder's name, its options as `config.yaml` has them, and the images that it trains on."""

    name: str
    mode: str
    workers: int
    seed: int
    options: Mapping[str, Any]
    images: int

    @property
    def max_iter(self) -> int:
        """0 where a script ends the run."""
        return int(self.options.get("max_iter", 0))


def parse_sweep(text: str, modes: Sequence[str] = ()) -> tuple[str, list[Any]]:
    """`local_steps=1,5,10`: the option, also one that a class of these modes declares, and its values.

    Raises `ConfigError`.
    """
    name, equals, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    if not equals or not values.strip():
        raise ConfigError(
            f"--sweep {said(text)} names no values; use OPTION=VALUE,VALUE as in local_steps=1,5,10"
        )
    if name not in RunConfig.model_fields and name not in declared_by(modes):
        raise ConfigError(
            f"--sweep {said(text)}: {name} is no option of a run; see `speedo train --help`"
        )
    if name in NOT_SWEPT:
        remedy = "leave it out" if name != "rule" else "give it with its mode: --modes MODE+RULE"
        raise ConfigError(f"--sweep {said(text)}: {name} is set by the comparison itself; {remedy}")
    try:
        found = [yaml.safe_load(value) for value in values.split(",")]
    except yaml.YAMLError:
        raise ConfigError(f"--sweep {said(text)} holds a value that cannot be read") from None
    if None in found or len({repr(value) for value in found}) < len(found):
        raise ConfigError(f"--sweep {said(text)}: give each value once, and no empty one")
    return name, found


def runs_of(wish: ComparisonWish, spec: SolverSpec, records: int) -> list[Planned]:
    """All runs, each seed's together and sequential Caffe first. Raises `ConfigError` with all that is wrong."""
    epoch = records / spec.batch
    poly = spec.lr_policy.policy == "poly"  # its rates depend on where a run ends
    longer = 1.0 if poly else wish.longer
    interval = max(1, round(epoch / wish.tests)) if wish.tests else 0
    runs: list[Planned] = []
    problems: list[str] = []
    for seed in range(1, wish.seeds + 1):
        common = {**wish.options, "seed": seed, "test_interval": interval, "solver": wish.solver}
        common = {name: value for name, value in common.items() if value is not None}
        end = max(1, round(wish.epochs * epoch))
        runs.append(
            Planned(
                f"{SEQUENTIAL}-seed{seed}",
                SEQUENTIAL,
                1,
                seed,
                {**common, "max_iter": end},
                end * spec.batch,
            )
        )
        end = max(1, round(wish.epochs * longer * epoch))
        for workers, mode in product(wish.workers, wish.modes):
            for variant in variants(wish.sweeps, mode):
                more = {**common, **variant, "max_iter": end}
                runs.append(planned(mode, workers, seed, variant, more, end * spec.batch))
                if seed == 1:
                    problems += _problems(runs[-1], spec)
    check_runs(runs, problems)
    return runs


def check_runs(runs: Sequence[Planned], problems: Sequence[str]) -> None:
    """Raises `ConfigError` with these problems, or for too many runs."""
    if len(runs) > MOST_RUNS:
        problems = [
            *problems,
            f"{len(runs):,} runs are too many for one comparison; use at most {MOST_RUNS:,}",
        ]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def planned(
    mode: str,
    workers: int,
    seed: int,
    variant: Mapping[str, Any],
    options: Mapping[str, Any],
    images: int,
) -> Planned:
    """The run of a mode, as `parse_modes` gives it, with these options; its name tells those of its variant."""
    words = "".join(f"-{name}={value}" for name, value in variant.items())
    name = f"{mode}-w{workers}{words}-seed{seed}".replace("/", "_").replace(":", ".")
    chosen = mode_and_rule(mode)
    every = {**options, **chosen, "workers": workers, "seed": seed}
    return Planned(name, chosen["mode"], workers, seed, every, images)


def mode_and_rule(text: str) -> dict[str, str]:
    """The options of `async` or `async+delay-compensated`."""
    mode, _, rule = text.partition("+")
    return {"mode": mode, "rule": rule} if rule else {"mode": mode}


def declared_by(modes: Sequence[str]) -> set[str]:
    """The options that the classes of these modes and rules declare."""
    found = set[str]()
    for text in modes:
        options = ModeOptions(**mode_and_rule(text))
        if (mode := mode_named(options.mode)) is not None:
            found |= {*mode.own, *options_of(rule_class(options))}
    return found


def variants(sweeps: Mapping[str, Sequence[Any]], mode: str) -> list[dict[str, Any]]:
    """Every combination of the swept options that this mode uses; one without any, where it uses none."""
    options, known = (
        ModeOptions(**mode_and_rule(mode)),
        {*RunConfig.model_fields, *declared_by([mode])},
    )
    names = [name for name in sweeps if name in known and uses(options, name)]
    return [
        dict(zip(names, values, strict=True)) for values in product(*(sweeps[n] for n in names))
    ]


def _problems(run: Planned, spec: SolverSpec) -> list[str]:
    try:
        config = make_config(run.options)
        check_solver(spec, workers=config.workers, split=config.splits_batch)
    except ConfigError as error:
        return [f"run {run.name}: {problem}" for problem in error.problems]
    return []


def parse_modes(text: str) -> tuple[str, ...]:
    """`all`, or modes with commas between, each alone or as MODE+RULE. Raises `ConfigError`.

    Each of both is a name or the place of a class, as in `package.module:Class`.
    """
    if text == "all":
        return tuple(PLAIN)
    look_here()
    modes = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for one in modes:
        mode, plus, rule = one.partition("+")
        if mode not in PLAIN and not is_foreign(mode):
            raise ConfigError(
                f"--modes has {said(one)}; use all, or some of {', '.join(PLAIN)}, or package.module:Class"
            )
        if plus and rule not in RULES and not is_foreign(rule):
            raise ConfigError(
                f"--modes has {said(one)}; behind the + use one of {', '.join(RULES)}, or package.module:Class"
            )
    declared_by(modes)  # their classes can be imported
    return modes


def keep_wish(folder: Path, wish: ComparisonWish | ScriptWish) -> None:
    """Write the wish into a new folder, or check that it is the one that is there. Raises `ConfigError`."""
    path = folder / FILE
    try:
        there = os.path.lexists(path)
        others = [] if there or not os.path.lexists(folder) else os.listdir(folder)
        if not there and not others:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(plain_of(wish), sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror}; give another --out"
        ) from None
    if others:
        raise ConfigError(f"{folder} holds other things than a comparison; give another --out")
    if not there:
        return
    try:
        former = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        raise ConfigError(
            f"{path} cannot be read; give another --out, or remove that folder"
        ) from None
    known = former if isinstance(former, dict) else {}
    now = plain_of(wish)
    if former != now:
        differing = [name for name in now if known.get(name) != now[name]] or ["form"]
        told = "; ".join(f"{name} was {known.get(name)}, is {now.get(name)}" for name in differing)
        raise ConfigError(
            f"{folder} holds another comparison ({told}); give the former command to continue it, or another --out"
        )
