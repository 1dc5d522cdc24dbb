"""Predicts images/s of a mode with n workers by simulating a run; for several of each, also names the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product, zip_longest
from typing import Any, Final

from speedo.engines.quadratic import QuadraticEngine
from speedo.engines.solver import split_batch
from speedo.master.coordinator import Coordinator
from speedo.master.driver import Driver, Limits
from speedo.master.plan import Plan
from speedo.messages import Action, Drop, Event, Merge, StopAsked
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import has_rounds, make_strategy
from speedo.storage.memory_store import MemoryStore
from speedo.study.planning.calibration import Calibration
from speedo.study.planning.site import Site
from speedo.study.planning.team_round import ring_bytes, team_round
from speedo.study.planning.timed_center import TimedCenter, TimedServedCenter
from speedo.study.planning.timed_cluster import TimedCluster

# Of each worker, in each run; more where there are few workers, fewer where there are many.
TURNS: Final = 20
FEWEST_TURNS: Final = 8
RESULTS: Final = (60, 1280)  # of all workers: at least, and beyond which there are fewer turns
# Workers of several runs that begin at different moments, where one run has fewer.
BEGINNINGS: Final = 16
PASSAGES: Final = 20_000  # of ranges, beyond which there are fewer turns
WARM_UP: Final = 0.25  # of the results: not counted
PARAMETERS: Final = 4  # of the stand-in for the model
FOR_EVER: Final = 1e12
NEVER_LATE: Final = Limits(FOR_EVER, FOR_EVER, FOR_EVER, FOR_EVER)
HYBRID: Final = ("sync", "async")  # the phases of mode hybrid here, of equal length
PHASES: Final = 8  # in a run


@dataclass(frozen=True, slots=True)
class Prediction:
    """`shares` are the utilisations of the resources: workers computing, link, store, master.

    `speedup` is `images_per_s` over that of one sequential Caffe; `efficiency` is `speedup` over the number of workers.
    In a team over machines each sends `ring_bytes` in a round, and `factor_bytes` of the inner products `as_factors`.
    """

    mode: str
    local_steps: int
    workers: int
    images_per_s: float
    speedup: float
    efficiency: float
    limit: str
    shares: dict[str, float] = field(hash=False)
    ring_bytes: float = 0.0
    factor_bytes: float = 0.0
    as_factors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanWish:
    """What to predict. `split` None is the default of the mode, as in `speedo train`."""

    modes: Sequence[str]
    local_steps: Sequence[int]
    workers: Sequence[int]
    split: bool | None = None
    seed: int = 0


def predict_all(calibration: Calibration, site: Site, wish: PlanWish) -> list[Prediction]:
    """One prediction for each combination; without those whose split batch is smaller than the number of workers."""
    return [
        predict(calibration, site, mode, workers, steps, split=wish.split, seed=wish.seed)
        for mode, steps, workers in product(wish.modes, wish.local_steps, wish.workers)
        if shares_of(calibration, mode, workers, wish.split) is not None
    ]


@dataclass(frozen=True, slots=True)
class Way:
    """Which way the results of a run take, in `words`, and `why`; `over_hosts` means a team of all workers."""

    words: str
    why: str
    over_hosts: bool = False


def way_of(calibration: Calibration, site: Site, mode: str, workers: int) -> Way:
    """As a run decides it (`speedo.run.build.sums_over_hosts`)."""
    each = "each worker sends its results to the " + ("servers" if site.servers else "master")
    if not has_rounds(mode):
        return Way(each, "the mode has no rounds")
    if site.team == "off":
        return Way(each, "--team off")
    hosts = site.hosts(workers)
    if hosts == 1:
        return Way("the workers sum in memory that they share", "all are on one machine")
    here = "the workers of a machine sum in memory that they share, the master merges a sum from each in every round"
    if site.servers:
        return Way(here, "servers keep the center")
    if calibration.compression != "none":
        return Way(here, "payloads are compressed")
    return Way(
        "all workers are one team: they sum in memory that they share, and the machines on a ring; the master hears "
        "one report for many rounds",
        "the mean of a round needs nobody else",
        over_hosts=True,
    )


def shares_of(
    calibration: Calibration, mode: str, workers: int, split: bool | None
) -> tuple[int, ...] | None:
    """Samples of one step of each worker; None if the batch is too small to be split over them."""
    config = make_config(
        {"mode": mode, "workers": workers, "split_batch": split, **_phases(mode, 1, 1)}
    )
    size = calibration.batch_size
    if not config.splits_batch:
        return (calibration.batch,) * workers
    if size < workers:
        return None
    return tuple(share * calibration.iter_size for share in split_batch(size, workers))


def predict(
    calibration: Calibration,
    site: Site,
    mode: str,
    workers: int,
    local_steps: int,
    *,
    split: bool | None = None,
    seed: int = 0,
) -> Prediction:
    """Simulate this mode until its speed is known. The same seed gives the same answer."""
    shares = shares_of(calibration, mode, workers, split)
    if shares is None:
        raise ValueError(
            f"a batch of {calibration.batch_size} cannot be split over {workers} workers"
        )
    runs = 1 if _in_step(mode) or workers == 1 else max(1, BEGINNINGS // workers)
    windows = [
        _simulate(calibration, site, mode, shares, local_steps, split, seed, (run, runs))
        for run in range(runs)
    ]
    seconds = sum(window.seconds for window in windows)
    rate = sum(window.images_per_s() * window.seconds for window in windows) / seconds
    each = [window.shares(workers) for window in windows]
    busy = {
        name: sum(share[name] * window.seconds for share, window in zip(each, windows, strict=True))
        / seconds
        for name in each[0]
    }
    return Prediction(
        mode, local_steps, workers, rate, rate / calibration.images_per_s,
        rate / calibration.images_per_s / workers, max(busy, key=lambda name: busy[name]), busy,
        *_moved(calibration, site, mode, shares, local_steps),
    )  # fmt: skip


def _moved(
    calibration: Calibration, site: Site, mode: str, samples: tuple[int, ...], local_steps: int
) -> tuple[float, float, tuple[str, ...]]:
    """The last three values of a `Prediction`."""
    workers = len(samples)
    if not way_of(calibration, site, mode, workers).over_hosts:
        return 0.0, 0.0, ()
    hosts = list(Counter(map(site.machine_of, range(workers))).values())
    if local_steps > 1:
        return ring_bytes(calibration.nbytes, len(hosts)), 0.0, ()
    moved = team_round(calibration, site, hosts, samples)
    return moved.ring, moved.factors, tuple(one.name for one in moved.sums)


def _simulate(
    calibration: Calibration,
    site: Site,
    mode: str,
    shares: tuple[int, ...],
    local_steps: int,
    split: bool | None,
    seed: int,
    part: tuple[int, int],
) -> _Window:
    """One simulated run, number `part` of several whose workers begin at evenly spread moments.

    Two workers that share a link keep their distance in time, because each delays the other equally. So how often they
    collide depends on when they begin, and only the mean over many beginnings is meaningful.
    """
    workers = len(shares)
    least, many = RESULTS
    servers = site.servers_of(workers)
    many = min(many, PASSAGES // max(1, 2 * len(servers)))
    turns = max(FEWEST_TURNS, min(TURNS, many // workers), -(-least // workers))
    iterations = max(1, turns * local_steps * sum(shares) // calibration.batch // PHASES)
    options: dict[str, Any] = {"mode": mode, "workers": workers, "split_batch": split}
    options |= _phases(mode, iterations, local_steps) or {"local_steps": local_steps}
    config = make_config({**options, "team": site.team})
    strategy = make_strategy(config, calibration.batch)

    def engine(rank: int) -> QuadraticEngine:
        return QuadraticEngine(PARAMETERS, batch=shares[rank], lr=1e-4)

    store = MemoryStore(clock=lambda: cluster.now)
    spread = 0.0 if _in_step(mode) else _cycle(calibration, site, shares, local_steps)
    overlap = range(workers) if site.overlaps(mode) else ()
    cluster = TimedCluster(
        calibration, site, store, engine, seed + part[0], spread, part, overlap, servers
    )
    for worker in range(workers):
        cluster.join(worker)
    layout = engine(0).layout
    window = _Window(cluster, turns * workers)
    # As in a run: with compression a team reports after each round.
    exact = calibration.compression.startswith("none")
    plan = Plan(
        calibration.batch,
        1 << 60,
        workers,
        teams=config.teams,
        over_hosts=way_of(calibration, site, mode, workers).over_hosts,
        stretch_s=config.stretch if exact else 0.0,
    )
    center = (TimedServedCenter if servers else TimedCenter)(layout.zeros(), layout, cluster)
    coordinator = Coordinator(strategy, plan)
    Driver(coordinator, center, cluster, window, cluster.clock, NEVER_LATE).run()
    return window


def _cycle(calibration: Calibration, site: Site, shares: Sequence[int], local_steps: int) -> float:
    """Approximate seconds between a worker's turns: alone, or until the busiest resource has served all workers."""
    wire = 0.0 if site.bytes_per_s is None else calibration.nbytes / site.bytes_per_s
    master = (
        calibration.check
        + calibration.merge
        + calibration.near.read.seconds
        + calibration.near.write.seconds
    )
    alone = local_steps * calibration.step_seconds(shares[0]) + 2 * wire + master
    keepers = len(site.servers_of(len(shares))) or 1
    return max(alone, len(shares) * max(wire, master) / keepers)


def best_of(predictions: Iterable[Prediction]) -> Prediction:
    """The prediction with the most images/s; if equal to a thousandth, the one with fewer workers and local steps."""
    found = list(predictions)
    most = max(one.images_per_s for one in found)
    near = [one for one in found if one.images_per_s >= 0.999 * most]
    return min(near, key=lambda one: (one.workers, one.local_steps))


def _in_step(mode: str) -> bool:
    """Whether the workers of this mode start their turns together."""
    return mode == "hybrid" or has_rounds(mode)


def _phases(mode: str, iterations: int, local_steps: int) -> dict[str, Any]:
    if mode != "hybrid":
        return {}
    phases = [
        {"mode": kind, "iterations": iterations, "local_steps": local_steps} for kind in HYBRID
    ]
    return {"phases": phases}


@dataclass(slots=True)
class _Turns:
    """One worker: the times of its first and last merge in the window, and the samples after the first."""

    first: float
    last: float
    samples: int = 0


class _Window:
    """An observer that measures after the warm-up, and stops the run when the window is complete.

    Each worker is measured from one of its merges to another: whole turns, wherever the window ends.
    """

    def __init__(self, cluster: TimedCluster, results: int) -> None:
        self._cluster, self._results, self._seen = cluster, results, 0
        self._turns: dict[int, _Turns] = {}
        self._first = self._stopped = 0.0
        self._before: dict[str, list[float]] = {}
        self._after: dict[str, list[float]] = {}

    @property
    def seconds(self) -> float:
        return self._stopped - self._first

    def images_per_s(self) -> float:
        """Of all workers together."""
        return sum(
            turns.samples / (turns.last - turns.first)
            for turns in self._turns.values()
            if turns.samples
        )

    def shares(self, workers: int) -> dict[str, float]:
        """The utilisation of the busiest resource of each kind in the window; `compute` is the mean of the workers."""
        used = {}
        for name, after in self._after.items():
            pairs = zip_longest(after, self._before[name], fillvalue=0.0)
            used[name] = max((late - early for late, early in pairs), default=0.0)
        used["compute"] /= workers
        return {name: one / self.seconds for name, one in used.items()}

    def saw(self, event: Event, now: float) -> None:
        """Ignores everything but what became of results."""

    def did(self, action: Action, now: float) -> None:
        if isinstance(action, Drop):
            self._seen += 1
        elif isinstance(action, Merge):
            self._seen += len(action.parts)
            if not self._before and self._seen >= WARM_UP * self._results:
                self._first, self._before = now, self._cluster.busy()
            if self._before and not self._after:
                self._count(action, now)
        if self._seen >= self._results and self.images_per_s() and not self._after:
            self._stopped, self._after = now, self._cluster.busy()
            self._cluster.post(StopAsked("enough is known"))

    def _count(self, action: Merge, now: float) -> None:
        for part in action.parts:
            turns = self._turns.setdefault(part.worker, _Turns(now, now))
            if now > turns.first:
                turns.last = now
                turns.samples += part.samples
