"""The configuration of a run: every option with its type, default, bounds and help, and all checks.

Each field is the only declaration of its option: the command line, the written forms, the checks and the table in
docs/options.md are generated from it (`speedo.run.config.option_table`). Options of modes are declared by the modes
(`speedo.sgd_modes`). All problems are reported at once, each with its value and its remedy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, ValidationError

from caffenets.files import check_path
from speedo.engines.make import Precision
from speedo.errors import ConfigError
from speedo.exchange.codecs import CODECS, in_words, parse_compression
from speedo.run.config.combinations import EXCLUDED, found_in
from speedo.run.config.findings import sentence
from speedo.run.config.former_run import options_in, without_engine
from speedo.run.config.lr_scale import ELASTIC, LrScale, check_lr_scale
from speedo.run.config.mode_checks import problems, problems_of_hybrid, problems_of_ranges
from speedo.run.config.option_checks import (
    check_copy_to,
    check_device,
    check_modules,
    check_place,
    check_ray,
    check_weights,
    checked_by,
    names_in,
)
from speedo.run.config.resources import parse_resources
from speedo.run.config.stopping_checks import problems_of_stopping
from speedo.run.config.users_classes import as_names, with_code
from speedo.sgd_modes.conditions import check_best_by, check_condition
from speedo.sgd_modes.foreign import look_here
from speedo.sgd_modes.options import PhaseOptions, RunOptions
from speedo.sgd_modes.registry import (
    MODES,
    PLAIN,
    has_rounds,
    is_elastic,
    may_overlap,
    one_of,
    takers,
    waits_for_all,
    with_own_options,
)
from speedo.system.bounds import (
    LARGEST_COUNT,
    LARGEST_INT32,
    LARGEST_SEED,
    DataShare,
    EngineName,
    Float32,
    Interval,
    Option,
    Overlap,
    Seconds,
    Whole,
    WholeOr,
    declared,
    digits,
)
from speedo.system.cores import AUTO, Bind
from speedo.watch.export import EXPORTS, with_exports
from speedo.watch.export.base import RECORDS

DEFAULT_PORT: Final = 56126  # the original SpeeDO's master; Ray and Redis both want 6379
LARGEST_WORKERS: Final = 10_000  # slots are small integers; more is likelier a mistake than a wish
LARGEST_TESTERS: Final = 64  # each is a process of the master's machine
SERVERS: Final = WholeOr(AUTO, 0, 64)  # each fetch and each result has this many connections
THREADS: Final = WholeOr(AUTO, 1, 1024)  # more than any BLAS was built for
OF_A_PHASE: Final = ("lr", "momentum", "weight_decay", "batch", "test_interval")

MERGING: Final = "How results are merged"
SOLVER: Final = "Instead of the solver's values"
FILES: Final = "What a run starts from and writes"
DATA: Final = "Data"
COMPUTING: Final = "What computes"
TRAVEL: Final = "How results travel"
ENDING: Final = "Tests, and the end of a run"
WORKERS: Final = "Workers that join and leave"
MASTER: Final = "How workers connect"
RAY: Final = "On an existing Ray cluster"
# In the order of the help.
GROUPS: Final = (
    MERGING, TRAVEL, SOLVER, FILES, COMPUTING, DATA, ENDING, WORKERS, RECORDS, MASTER, RAY,
)  # fmt: skip

OVERLAP: Final = (
    f"{', '.join(filter(may_overlap, PLAIN))}: workers that fetch and publish in the background while they compute; "
    "far: those on other machines."
)
SPLIT: Final = "Split the batch over the workers, or give each the whole batch."
SPLIT_IN: Final = f"split in {', '.join(filter(has_rounds, PLAIN))}"

if TYPE_CHECKING:  # what modes, codecs and exporters declare is known when they are found
    Mode: TypeAlias = str
    PlainMode: TypeAlias = str
    CenterCodec: TypeAlias = str
    _Phase: TypeAlias = PhaseOptions
    _Run: TypeAlias = RunOptions
else:
    Mode, PlainMode = one_of(MODES), one_of(tuple(PLAIN))
    CenterCodec = Literal[tuple(codec.name for codec in CODECS.values() if codec.for_centers)]
    _Phase, _Run = with_own_options(PhaseOptions), with_exports(with_own_options(RunOptions))


def _as_text(value: Any) -> Any:
    """A number in a YAML file as the text that the command line has."""
    return str(value) if type(value) in (int, float) else value


class PhaseConfig(_Phase):
    """One phase of a hybrid run: a mode with its options and solver values, and its end."""

    mode: PlainMode

    def problems(self, number: int, workers: int) -> list[str]:
        """Every problem in this phase, a sentence each."""
        found = problems(self, workers)
        if self.iterations is not None and not 1 <= self.iterations <= LARGEST_INT32:
            bound = "1 or more" if self.iterations < 1 else f"at most {LARGEST_INT32}"
            found.append(f"it has {digits(self.iterations)} iterations; use {bound}")
        for name in OF_A_PHASE:  # with the bounds that they have in a run
            limit = declared(RunConfig.model_fields[name].metadata).bound
            if limit is not None and (value := getattr(self, name)) is not None:
                found += limit(name, value)
        if self.momentum_correction:
            found.append("momentum_correction is for runs of one mode; leave it out of the phase")
        return [f"phase {number} ({self.mode}): {problem}" for problem in found]


class RunConfig(_Run):
    """All options of one run. None means: as the solver says, or the default of the mode."""

    # fmt: off
    mode: Annotated[Mode, Option(
        "The SGD mode; a mode of your own is written package.module:Class.",
        source="it trains the same model as one Caffe")] = "sync"
    workers: Annotated[int, Option(
        "Workers to train with.", Whole(1, LARGEST_WORKERS), source="the smallest number that shares the work")] = 2
    phases: Annotated[tuple[PhaseConfig, ...], Option(
        "hybrid: a phase: its mode, and its end, after N iterations or when a test meets a condition. Repeat the "
        "option for each phase. After the last one the first one follows, unless the last one has no end. For example "
        "--phase 'sync:accuracy>=0.8' --phase async,lr=0.001, or --phase sync:500 --phase easgd:1000,moving_rate=0.3",
        metavar="MODE[:ITERATIONS|:CONDITION][,OPTION=VALUE...]",
        flags="--phase")] = ()
    split_batch: Annotated[bool | None, Option(
        SPLIT, usual=f"{SPLIT_IN} and in hybrid with such a phase",
        source="keeps the solver's batch", flags="--split-batch/--whole-batch")] = None
    batch_division: Annotated[Literal["speed", "even"], Option(
        "How sync splits its batch. speed: by the measured speeds of the workers, again when these change; even: in "
        "equal shares, the same in each run.", source="a slow worker costs its part", given_with="mode")] = "speed"
    compress: Annotated[str, Option(
        f"Format of what workers send: {in_words()}. The error of a payload is added to the worker's next payload.",
        checked_by(parse_compression),
        source="every other form costs precision and time", metavar="HOW", group=TRAVEL)] = "none"
    compress_center: Annotated[CenterCodec, Option(
        f"Format of what workers fetch: {in_words(centers=True)}; the center itself stays float32.",
        source="likewise", given_with="compress")] = "none"

    max_iter: Annotated[int | None, Option(
        "Iterations, counted as Caffe does: samples / batch.", Whole(1, LARGEST_INT32), group=SOLVER)] = None
    test_interval: Annotated[int | None, Option(
        "Test every N iterations; 0: only at the end.", Whole(0, LARGEST_INT32), group=SOLVER)] = None
    lr: Annotated[float | None, Option(
        "Learning rate, instead of base_lr.", Float32("a learning rate above 0", zero=False), group=SOLVER)] = None
    lr_scale: Annotated[str | None, BeforeValidator(_as_text), Option(
        "Multiply the learning rate by X; linear: by the number of workers; linear:N: the same, at most by N; sqrt: by "
        "the square root of the number of workers.", check_lr_scale,
        usual=f"{ELASTIC} with the elastic rule, unless --lr is given; else none",
        source="measured: modes.md, easgd", metavar="none|sqrt|linear[:N]|X", given_with="lr")] = None
    warm_up: Annotated[int, Option(
        "Raise the learning rate from a tenth to its full value over the first N iterations.", Whole(0, LARGEST_INT32),
        source="Caffe has none", given_with="lr")] = 0
    momentum: Annotated[float | None, Option(
        "Momentum.", Interval("[0, 1)", "use 0 up to, not including, 1"), group=SOLVER)] = None
    weight_decay: Annotated[float | None, Option(
        "Weight decay.", Float32("0 or more", zero=True), group=SOLVER)] = None
    batch: Annotated[int | None, Option(
        "Batch size of the train net.", Whole(1, LARGEST_INT32), group=SOLVER)] = None
    seed: Annotated[int | None, Option(
        "Random seed of weights and data layers.",
        Whole(0, LARGEST_SEED, note=", as Caffe's generator takes 32 bits"), group=SOLVER)] = None

    solver: Annotated[Path | None, Option(
        "The solver.prototxt.", check_path, "$SPEEDO_SOLVER, or the bundled LeNet", group=FILES)] = None
    weights: Annotated[Path | None, Option(
        "Start from this .caffemodel; a file, or a URI as in s3://bucket/file. Of several files, each sets the layers "
        "that it has; a later file overrides an earlier one.",
        check_weights, group=FILES, metavar="FILE|URI[,...]")] = None
    ignore_unknown: Annotated[bool, Option(
        "Leave out fields of solver and nets that the engine does not know, but none that is known to change the net; "
        "each is named.", group=FILES)] = False
    resume: Annotated[Path | None, Option(
        "Resume the run in this directory from its last checkpoint, or start from a .solverstate of Caffe. A run at a "
        "URI is fetched first, into --run-dir or runs/NAME.", check_place, group=FILES, metavar="RUN|URI")] = None
    take_over: Annotated[bool, Option(
        "Continue a run whose master hangs; that master can write nothing more.", given_with="resume")] = False
    checkpoint_interval: Annotated[float, Option(
        "Seconds between checkpoints; 0: only at the end.", Seconds("the end alone"),
        source="chosen: a crash costs at most a minute of work", group=FILES)] = 60.0
    run_dir: Annotated[Path | None, Option(
        "Directory for all files that the run writes.", check_path, "runs/TIME-MODE", group=FILES,
        metavar="DIR")] = None
    python_layers: Annotated[str | None, Option(
        "Modules for Python layers, besides those in the solver's folder.", check_modules,
        group=COMPUTING, metavar="MODULE[,MODULE...]")] = None
    data_root: Annotated[Path | None, Option(
        "Last folder searched for relative data paths; a URI: the data that the solver names is fetched into a cache.",
        check_place, group=DATA, metavar="DIR|URI")] = None
    copy_to: Annotated[str | None, Option(
        "Copy the files of the run directory to this URI at each checkpoint and at the end, as in s3://bucket/run.",
        check_copy_to, group=FILES, metavar="URI")] = None
    data_share: Annotated[DataShare, Option(
        "How workers share the records. shard: worker k of n reads every n-th record; own: the workers of each host "
        "share the records of that host; offset: every worker reads all records, worker k of n begins at k/n of them; "
        "same: every worker reads all records in the same order; once: the master gives out the records, so that each "
        "is trained exactly once an epoch, also if workers join, leave or die, or results are discarded.",
        source="each record is read once an epoch, as by one Caffe", group=DATA)] = "shard"
    redis: Annotated[str | None, Option(
        "URL of your own Redis; its password may be in SPEEDO_REDIS_PASSWORD.", usual="one is started", group=TRAVEL,
        metavar="URL")] = None
    same_node: Annotated[Literal["shared-memory", "redis"], Option(
        "How vectors reach workers on the master's machine.", source="measured: performance.md",
        given_with="redis")] = "shared-memory"
    overlap: Annotated[Overlap, Option(
        OVERLAP, source="chosen: overlap makes results staler", group=TRAVEL)] = "none"
    team: Annotated[Literal["host", "off"], Option(
        "host: in sync, workers (a team) sum their results among themselves, on a host and between hosts; off: each "
        "sends its own.",
        source="measured: performance.md", group=TRAVEL)] = "host"
    stretch: Annotated[float, Option(
        "A team that has all workers of the run merges its rounds itself, and reports every S seconds, or so seldom "
        "that reports take 2 % of the time; 0: after each round. If a member dies, its round is lost; with several "
        "local steps, and of a script, the work since the last report.", Seconds("after each round"),
        source="chosen: little is lost, and reports cost little", given_with="team")] = 0.5
    factors: Annotated[Literal["auto", "off"], Option(
        "auto: a team over hosts exchanges the gradient of an inner product as two factors if those are fewer bytes; "
        "off: never.", source="fewer bytes; the sum differs by its rounding", given_with="team")] = "auto"
    engine: Annotated[EngineName | None, Option(
        "What computes: caffe (pycaffe) or torch (PyTorch, also on GPUs).",
        usual="$SPEEDO_ENGINE, or caffe; torch where only PyTorch is installed", source="pycaffe is the reference",
        group=COMPUTING)] = None
    device: Annotated[str, Option(
        "Where workers compute. cpu: on the CPU, also if the solver says GPU. cuda (torch): worker k of a host on GPU "
        "k, from GPU 0 again if there are more workers; cuda:N (torch): all on GPU N. auto: with torch, cuda where "
        "PyTorch finds a GPU, else cpu; with caffe, as the solver's solver_mode says.",
        check_device, source="a GPU is faster",
        group=COMPUTING, metavar="auto|cpu|cuda|cuda:N")] = "auto"
    precision: Annotated[Precision, Option(
        "Precision of the workers' computation with torch; weights, losses, updates and tests stay float32.",
        source="it trains the same model as Caffe", given_with="engine")] = "float32"
    micro_batch: Annotated[str | None, BeforeValidator(_as_text), Option(
        "torch: records that go through the net at a time; the step is that of the batch. auto: as many as fit the "
        "memory.", WholeOr(AUTO, 1, LARGEST_INT32), "the batch", metavar="N|auto", given_with="engine")] = None
    threads: Annotated[str, BeforeValidator(_as_text), Option(
        "BLAS threads of each worker; auto: the cores of a host divided by its workers.", THREADS,
        source="chosen: of Caffe's layers only matrix products use more", group=COMPUTING, metavar="N|auto")] = "1"
    bind: Annotated[Bind, Option(
        "Bind each worker's process, round robin. core: to one core for each thread; socket: to one socket.",
        source="the kernel moves processes where cores are free", given_with="threads")] = "none"
    servers: Annotated[str, BeforeValidator(str), Option(
        "Split the center into K ranges, each kept and merged by a server; hosts get servers in the order in which "
        "they join. auto: one on every host; 0: the master keeps the whole center.", SERVERS,
        source="one machine has no cable to share", metavar="K", group=TRAVEL)] = "0"
    testers: Annotated[int, Option(
        "Test processes on the master's machine; each computes a share of the batches of every test.",
        Whole(1, LARGEST_TESTERS), source="training has the other cores", given_with="test_interval")] = 1
    stop_on_divergence: Annotated[bool, Option(
        "End a run whose loss has diverged, and export its model.", source="chosen: further training is useless",
        group=ENDING)] = True
    max_seconds: Annotated[float | None, Option(
        "End the run after S seconds of training, including those before a resume.", Seconds(), group=ENDING)] = None
    target: Annotated[str | None, Option(
        "End the run when a test output reaches a value, as in 'accuracy>=0.9' or 'loss<=0.3'.", check_condition,
        group=ENDING, metavar="CONDITION")] = None
    patience: Annotated[int | None, Option(
        "End the run after N tests in a row without a better value of the output that --best-by names.",
        Whole(1, LARGEST_COUNT), group=ENDING)] = None
    keep_best: Annotated[bool, Option(
        "Keep the best of the tested weights, by the output of --best-by, in best.caffemodel.", group=ENDING)] = False
    best_by: Annotated[str | None, Option(
        "The test output that --patience and --keep-best compare. Lower is better if its name has loss or err in it, "
        "else higher; min:OUTPUT or max:OUTPUT overrides this.",
        check_best_by, "that of --target, else an accuracy, else a loss",
        group=ENDING, metavar="OUTPUT")] = None
    final_test: Annotated[bool, Option(
        "Test the weights at the end of the run.", source="the result says what the model is worth",
        given_with="test_interval")] = True
    grace: Annotated[float, Option(
        "Seconds that the end of the run may take after SIGTERM: the checkpoint comes first; the last test is left out "
        "if it takes too long.", Seconds(), source="Kubernetes and Slurm kill 30 s after SIGTERM",
        group=ENDING)] = 25.0
    timeout: Annotated[float, Option(
        "Seconds to wait for workers to join, and for answers.", Seconds(), source="chosen: a slow start takes less",
        group=WORKERS)] = 120.0
    join_timeout: Annotated[float | None, Option(
        "Seconds to wait for workers when fewer than --min-workers are left.", Seconds(), "--timeout",
        given_with="timeout")] = None
    min_workers: Annotated[int, Option(
        "Pause training while fewer than N workers are connected.", source="chosen: the remaining workers continue",
        group=WORKERS)] = 1
    restarts: Annotated[int, Option(
        "Restart a worker that died, up to N times in a row.", Whole(0, LARGEST_COUNT),
        source="chosen: a permanent fault must end its worker", group=WORKERS)] = 5
    master_restarts: Annotated[int, Option(
        "Start the master again when its process, Ray or Redis dies or hangs, up to N times in a row; 0: the run ends.",
        Whole(0, LARGEST_COUNT), source="as many as of a worker", given_with="restarts")] = 5
    reshard_after: Annotated[float, Option(
        "Redistribute the data S seconds after the set of workers last changed; 0: never.", Seconds("never"),
        source="chosen: longer than a restart takes", given_with="data_share")] = 60.0

    host: Annotated[str, Option(
        "Address of this machine to listen on.", usual="127.0.0.1, this machine alone",
        source="chosen: nothing is reachable from other machines", group=MASTER, metavar="ADDRESS")] = "127.0.0.1"
    port: Annotated[int, Option(
        "Port that workers connect to.", Whole(1, 65535, note=f", {DEFAULT_PORT} by default"),
        source="the original SpeeDO's", group=MASTER)] = DEFAULT_PORT
    redis_tls: Annotated[bool, Option("Encrypt connections to SpeeDO's own Redis.", given_with="redis")] = False

    ray: Annotated[str | None, Option(
        "Run as actors of this Ray cluster; auto: RAY_ADDRESS, or the cluster that this machine belongs to.", check_ray,
        usual="a private one is started", group=RAY, metavar="HOST:PORT|auto")] = None
    resources: Annotated[str, Option(
        "Ray resources for each worker: cpu, gpu, memory (bytes), and custom resources of the cluster.",
        checked_by(parse_resources), source="a worker computes with one thread", group=RAY,
        metavar="NAME=AMOUNT[,...]", given_with="ray")] = "cpu=1"
    placement: Annotated[Literal["spread", "pack"], Option(
        "spread: workers on as many nodes as possible; pack: on as few as possible.",
        source="nodes share neither caches nor memory", given_with="ray")] = "spread"
    own: Annotated[bool, Option(
        "Train with scripts instead of a solver; on each host: `speedo worker --master ADDRESS -- COMMAND`.",
        group=MASTER)] = False
    script: tuple[str, ...] = ()  # the same for all hosts, with its arguments; given together with `own`
    script_folder: str = ""  # in which it runs
    # fmt: on

    @property
    def splits_batch(self) -> bool:
        """Whether the solver's batch is split over the workers: by default in modes with rounds."""
        if self.split_batch is not None:
            return self.split_batch
        return has_rounds(self.mode, *(phase.mode for phase in self.phases))

    @property
    def divides_by_speed(self) -> bool:
        """Whether shares of a batch, or of a round of scripts, follow the measured speeds of the workers."""
        is_speed, parts = self.batch_division == "speed", self.splits_batch or self.own
        return is_speed and parts and waits_for_all(self)

    @property
    def scale_of_lr(self) -> LrScale:
        """That of the solver's learning rate; one that the user gives is used as it is."""
        usual = ELASTIC if is_elastic(self) and self.lr is None else "none"
        return LrScale(self.lr_scale or usual, self.workers)

    @property
    def teams(self) -> bool:
        """Whether the workers of one host sum among themselves, where there are several."""
        return self.team == "host" and waits_for_all(self)

    @property
    def serves(self) -> bool:
        """Whether servers have the center."""
        return self.servers != "0"

    @property
    def seconds_to_join(self) -> float:
        """How long a run that has lost its workers waits for new ones."""
        return self.timeout if self.join_timeout is None else self.join_timeout

    @property
    def python_modules(self) -> tuple[str, ...]:
        """Modules outside the solver's folder that its Python layers may name."""
        return names_in(self.python_layers or "")

    def problems(self) -> list[str]:
        """Every problem in this configuration, a sentence each."""
        found = problems(self, self.workers)
        for name, field in type(self).model_fields.items():
            value, bound = getattr(self, name), declared(field.metadata).bound
            if value is not None and bound is not None and not takers(name):
                found += bound(name, value)
        for number, phase in enumerate(self.phases, 1):
            found += phase.problems(number, self.workers)
        return found + self._problems_between()

    def _problems_between(self) -> list[str]:
        """Options that contradict each other."""
        found: list[str] = []
        if not 1 <= self.min_workers <= max(self.workers, 1):
            found.append(
                f"min_workers is {digits(self.min_workers)}: use 1 up to the {digits(self.workers)} of workers"
            )
        found += problems_of_hybrid(self) + found_in(EXCLUDED, self) + problems_of_stopping(self)
        if self.serves:
            found += [one for part in self.phases or (self,) for one in problems_of_ranges(part)]
        for export in EXPORTS:
            found += export.conflicts(self)
        if self.resume is not None and self.run_dir is not None and os.path.isdir(self.resume):
            found.append(
                "run_dir and resume name two directories: a resumed run continues in its own; leave run_dir out"
            )
        return found


def make_config(
    options: Mapping[str, Any], *, file: Path | None = None, model: type[RunConfig] = RunConfig
) -> RunConfig:
    """The configuration from a YAML file, if any; `options` that are not None override it.

    Raises `ConfigError` with every problem found.
    """
    given = as_names({name: value for name, value in options.items() if value is not None})
    file, read = options_in(file, given)
    if given.get("engine", read.get("engine")) != read.get("engine"):
        read = without_engine(read)
    origins = {name: f" in {file}" for name in read if name not in given}
    look_here()
    known = model.model_fields
    options = with_code({**read, **given}, known)
    if isinstance(phases := options.get("phases"), (list, tuple)):
        options["phases"] = [
            with_code(one, known) if isinstance(one, Mapping) else one for one in phases
        ]
    try:
        config = model.model_validate(options)
    except ValidationError as error:
        raise ConfigError(
            [
                sentence(dict(one), origins, model.model_fields, PhaseConfig.model_fields)
                for one in error.errors()
            ]
        ) from None
    found = config.problems()
    if found:
        raise ConfigError(found)
    return config
