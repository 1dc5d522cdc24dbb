"""Random runs: a mode with options, a world with faults, joins and deaths; each replays from mode and seed.

.venv/bin/python -m tests.support.schedules partial 17     # prints what happens in that run
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from speedo.engines.solver.lr_policies import LrPolicy
from speedo.engines.solver_update import Multipliers, Recipe
from speedo.engines.update_rules import SolverFields
from speedo.exchange.codecs import NO_COMPRESSION, Compression
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.master.driver import Limits
from speedo.master.plan import Plan
from speedo.master.servers.local_servers import LocalServers
from speedo.master.servers.range_server import RangeServer
from speedo.master.servers.server_requests import Servers
from speedo.master.turn_deadlines import HEARTBEAT_S
from speedo.messages import NO_TUNING, Event, Left, StateSaved, StopAsked, Tuning
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.sgd_modes.turn_length import most_steps
from tests.support.checker import Checker
from tests.support.replica import (
    GRADIENT_CLIP,
    GRADIENT_LR,
    GRADIENT_MOMENTUM,
    SIZE,
    kind_of,
)
from tests.support.rules_of_a_run import Rules
from tests.support.simulation.simulate import simulate
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import Faults, World

MODES = ("sync", "async", "partial", "weed-out", "easgd", "hybrid")
DECIDE_S = 0.05  # seconds of a master that cannot keep up, for each event
LIMITS = Limits(start_s=20.0, join_s=15.0, turn_s=12.0, test_s=30.0)


@dataclass(frozen=True)
class Schedule:
    """One run, made up. `script` holds (time, what, worker)."""

    options: dict[str, Any]
    plan: Plan
    share: int
    speeds: tuple[float, ...]
    latency_s: float
    jitter: float
    faults: Faults
    script: tuple[tuple[float, str, int], ...]
    momentum: float
    seed: int
    compression: Compression = NO_COMPRESSION
    overlap: frozenset[int] = frozenset()
    servers: int = 0
    notices: tuple[tuple[float, int], ...] = ()  # when who is told to leave
    gather_s: float = 0.0
    chatter_s: float = 0.0  # for so long the master's queue is never empty


def make_schedule(mode: str, chance: random.Random) -> Schedule:
    """A run of some 10 to 45 results, more with faults, which most of them have."""
    workers = chance.randint(1, 6)
    options = _options(mode, chance, workers)
    if mode == "hybrid":
        kinds = [chance.choice(MODES[:-1]) for _ in range(chance.randint(1, 3))]
        phases = [
            _options(kind, chance, workers) | {"iterations": chance.randint(1, 6)} for kind in kinds
        ]
        options = {"mode": "hybrid", "phases": phases}
    options["workers"] = workers
    overlaps = mode in ("async", "easgd") and not options.get("server_gradient")
    overlaps = overlaps and chance.random() < 0.5 and "sync_when" not in options
    batch = chance.choice((4, 6, 12))
    share = chance.choice((batch, max(1, batch // workers)))
    longest = max(
        most_steps(part.get("local_steps", 1)) for part in options.get("phases") or [options]
    )
    results = chance.randint(10, 45)
    plan = Plan(
        batch,
        max_iter=max(1, results * share * longest // batch),
        workers=workers,
        min_workers=chance.choice((1, 1, chance.randint(1, workers))),
        test_interval=chance.choice((0, 3, 7)),
        test_initialization=chance.random() < 0.3,
        snapshot=chance.choice((0, 5)),
    )
    overlap = {slot for slot in range(workers + 2) if overlaps and chance.random() < 0.8}
    made = Schedule(
        options,
        plan,
        share,
        speeds=tuple(chance.choice((0.5, 1.0, 1.0, 3.0, 10.0)) for _ in range(workers)),
        latency_s=chance.choice((0.0, 0.001, 0.05)),
        jitter=chance.choice((0.0, 0.1, 0.9)),
        faults=_faults(chance),
        script=_script(workers, chance),
        momentum=chance.choice((0.0, 0.9)),
        seed=chance.randrange(16),
        compression=_compression(options, chance),
        overlap=frozenset(overlap),
        gather_s=chance.choice((0.0, 0.0, 0.05, 0.2, 1.0)),
    )
    for part in options.get("phases") or [options]:
        _choose_more(part, chance, overlaps=bool(overlap))
        if part.get("catch_up") and made.faults.poison:
            # A refused result among others lets those before it begin, or park, before those after it are decided.
            made = replace(made, gather_s=0.0)
    return made


def with_notices(schedule: Schedule) -> Schedule:
    """The same run, some of whose workers are told to leave before they do."""
    chance = random.Random(repr(schedule))
    workers = schedule.plan.workers + 2
    times = [round(chance.uniform(0, 4), 2) for _ in range(chance.randint(1, 6))]
    return replace(schedule, notices=tuple((time, chance.randrange(workers)) for time in times))


def short_handed(schedule: Schedule) -> Schedule:
    """The same run, that needs most of its workers."""
    most = schedule.plan.workers
    least = random.Random(repr(schedule)).randint(min(2, most), most)
    return replace(schedule, plan=replace(schedule.plan, min_workers=least))


def saturated(schedule: Schedule) -> Schedule:
    """The same run with a master that cannot keep up with its messages for a minute."""
    return replace(schedule, chatter_s=60.0, gather_s=0.0)


def _choose_more(options: dict[str, Any], chance: random.Random, *, overlaps: bool) -> None:
    """What came later than the other options, and is drawn after them: so a seed's run is as it was but for these."""
    mode, steps = options["mode"], options["local_steps"]
    if mode == "partial" and chance.random() < 0.4:
        options["catch_up"] = True
    adds = not ("moving_rate" in options or options.get("server_gradient") or overlaps)
    if mode in ("async", "partial", "weed-out") and adds and chance.random() < 0.3:
        options["staleness_scaling"] = True
    if isinstance(steps, int) and steps > 1 and chance.random() < 0.4:
        options["local_steps"] = f"adaptive:{steps}/{chance.choice((2, 5))}"


def _options(mode: str, chance: random.Random, workers: int) -> dict[str, Any]:
    options: dict[str, Any] = {"mode": mode, "local_steps": chance.choice((1, 1, 2, 5))}
    if mode == "partial" and chance.random() < 0.8:
        options["max_advance"] = chance.randint(1, 4)
    if mode == "weed-out" and chance.random() < 0.8:
        options["window"] = chance.randint(1, 8)
    if mode == "sync" and chance.random() < 0.5:
        options["backup_workers"] = chance.randrange(workers)
    kind = chance.random()
    if mode in ("easgd", "partial", "weed-out") and kind < 0.4:
        options["moving_rate"] = chance.choice((0.1, 0.45, 0.9))
    elif mode != "easgd" and kind < 0.6:
        options["delta_scale"] = chance.choice((0.25, 1.0))
    elif mode != "easgd" and kind < 0.75:
        options |= {"server_gradient": True, "local_steps": 1}
    if not options.get("server_gradient") and chance.random() < 0.25:
        options["local_steps"] = chance.choice(("1,4@9", "3,1@5", "2,5@4,1@12"))
    if mode != "sync" and options["local_steps"] != 1 and chance.random() < 0.3:
        options["sync_when"] = chance.choice(("norm>0.02", "norm>0.3"))
    return options


def _compression(options: dict[str, Any], chance: random.Random) -> Compression:
    how = ["none", "none", "bfloat16", "int8"]
    if all(kind_of(part) != "WEIGHTS" for part in options.get("phases") or [options]):
        how += ["topk:0.25", "sparse:0.5"]
    return Compression(chance.choice(how), chance.choice(("none", "none", "bfloat16")))


def _faults(chance: random.Random) -> Faults:
    if chance.random() < 0.3:
        return Faults()

    def often() -> float:
        return chance.choice((0.0, 0.0, 0.02, 0.1, 0.25))

    return Faults(
        die=often(),
        lose=often(),
        repeat=often(),
        late=often(),
        poison=often(),
        leave=often(),
        fail=often(),
        notice_s=chance.choice((0.0, 1.0)),
        return_s=chance.choice((None, 0.0, 0.3, 4.0, 30.0)),
    )


def _script(workers: int, chance: random.Random) -> tuple[tuple[float, str, int], ...]:
    what = ("join", "join", "die", "replace", "stop")
    happens = chance.choice((0, 0, 2, 6))
    found = [
        (round(chance.uniform(0, 4), 2), chance.choice(what), chance.randrange(workers + 2))
        for _ in range(happens)
    ]
    return tuple(one for one in sorted(found) if one[1] != "stop" or chance.random() < 0.1)


def run(
    schedule: Schedule,
    trace: Trace | None = None,
    serve: Callable[[Sequence[RangeServer]], Servers] = LocalServers,
    script: Callable[[SimulatedCluster], None] = lambda cluster: None,
    **more: Any,
) -> Checker:
    """Run it under the eyes of a checker, which raises `Violation`; `trace` gets what happens.

    `serve` makes the way to servers, where the schedule has any. `script` adds to its own; `simulate` gets `more`.
    """
    plan, parts = schedule.plan, schedule.options.get("phases") or [schedule.options]
    steps = max(most_steps(part.get("local_steps", 1)) for part in parts)
    slowest = 2.0 * 0.1 * steps * max(schedule.speeds) + 1.0
    if schedule.overlap:  # a turn may begin behind one that nobody waits for any more
        slowest *= 2
    decide_s = DECIDE_S if schedule.chatter_s else 0.0
    queue = 0.2 * schedule.chatter_s  # seconds that an event may wait
    slowest += queue * steps  # a turn of one step that waited, as the measure of one of many
    rules = Rules(
        schedule.options,
        plan.batch,
        plan.max_iter,
        plan.workers,
        plan.min_workers,
        plan.test_interval,
        plan.snapshot,
        longest_turn_s=max(LIMITS.turn_s, 3 * slowest + HEARTBEAT_S) + queue,
        start_s=LIMITS.start_s,
        join_s=LIMITS.join_s,
        gather_s=schedule.gather_s + queue,
    )
    checker = Checker(rules)

    def whole_script(cluster: SimulatedCluster) -> None:
        checker.watch(cluster)
        script(cluster)
        if schedule.chatter_s:
            cluster.at(0.0, lambda: _chatter(cluster, 0.0, schedule.chatter_s))
        for time, worker in schedule.notices:
            cluster.at(time, partial(cluster.notice, worker))
        for time, what, worker in schedule.script:
            match what:
                case "join":
                    cluster.join(worker, time)
                case "die":
                    cluster.die(worker, time)
                case "replace":
                    cluster.at(time, lambda worker=worker: _replace(cluster, worker))
                case "stop":
                    cluster.at(time, lambda: StopAsked("somebody wants it to end"))

    whole = solver_of(Layout((Blob("w/0", (SIZE,)),))).update_of()

    def update(gradient: Vector, center: Vector, iteration: int, own: Tuning = NO_TUNING) -> None:
        whole.update(center, gradient, iteration)

    simulation = simulate(
        make_strategy(make_config(schedule.options), plan.batch, update),
        plan,
        world=World(
            latency_s=schedule.latency_s,
            jitter=schedule.jitter,
            slowness=lambda worker: schedule.speeds[worker % len(schedule.speeds)],
            faults=schedule.faults,
            compression=schedule.compression,
            gather_s=schedule.gather_s,
            decide_s=decide_s,
        ),
        seed=schedule.seed,
        size=SIZE,
        momentum=schedule.momentum,
        keep_trace=False,
        samples_per_step=schedule.share,
        script=whole_script,
        observer=lambda unused: checker.follow(trace or unused),
        limits=LIMITS,
        overlap=schedule.overlap,
        servers=schedule.servers,
        serve=serve,
        solver=solver_of,
        **more,
    )
    checker.ended(simulation)
    return checker


def solver_of(layout: Layout) -> Recipe:
    """The solver of all schedules with `server_gradient`."""
    fields = SolverFields(momentum=GRADIENT_MOMENTUM, clip_gradients=GRADIENT_CLIP)
    own = (Multipliers(),) * len(layout.blobs)
    return Recipe(fields, layout, own, LrPolicy("fixed", GRADIENT_LR))


def _replace(cluster: SimulatedCluster, worker: int) -> Event | None:
    """A new incarnation comes before the end of the old one is known, and that is told last."""
    old = cluster.forget(worker)
    if old is not None:
        gone = Left(worker, old, "found dead long after")
        cluster.at(cluster.now + 0.7, lambda: gone)
    cluster.join(worker, cluster.now)
    return None


def _chatter(cluster: SimulatedCluster, time: float, until: float) -> Event:
    """Messages of no turn, more than the master can take."""
    after = time + 0.9 * DECIDE_S
    if after < until:
        cluster.at(after, lambda: _chatter(cluster, after, until))
    return StateSaved(0, 0, -1)


def check(
    mode: str, seed: int, change: Callable[[Schedule], Schedule] = lambda one: one
) -> Checker:
    """Run the schedule of this mode and seed; a failure says how to see it again."""
    try:
        return run(change(make_schedule(mode, random.Random(f"{mode} {seed}"))))
    except Exception as error:
        error.add_note(f"see it with: python -m tests.support.schedules {mode} {seed}")
        raise


if __name__ == "__main__":
    made = make_schedule(sys.argv[1], random.Random(f"{sys.argv[1]} {sys.argv[2]}"))
    print(made)
    trace = Trace()
    try:
        run(made, trace)
    finally:
        print(trace.text())
