"""Merge rules and sparse payloads, LeNet on Fashion-MNIST: what a rule gains at equal staleness, or local steps.

    python -m bench.rules [--images 48000] [--seeds 3] [--processes 2] [--only async ...]

Four workers of the real coordinator, center and rules in the simulated cluster, so that they take turns exactly: in
`async` each result has a staleness of 3, on any machine. A run that is done is kept in `--out`, and not done again.
Prints a table in Markdown: means of the seeds, least to most, beside what the rule's paper says of the order.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shlex
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.support.arguments import whole
from bench.support.processes import end_by_signals
from bench.support.table import Table, markdown
from speedo.exchange.codecs import Compression, bytes_of
from speedo.master.center import Center
from speedo.master.coordinator import Coordinator
from speedo.master.driver import Driver, Limits
from speedo.master.plan import Plan
from speedo.run.config.run_config import make_config
from speedo.sgd_modes.registry import make_strategy
from speedo.storage.memory_store import MemoryStore
from tests.support.simulation.simulator import SimulatedCluster
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import World

WORKERS = 4
BATCH = 8  # of each worker: 500 local steps are 16,000 images of all


@dataclass(frozen=True, slots=True)
class Way:
    """A row of the table: options of `speedo train`, and the workers' own solver."""

    name: str
    options: dict[str, Any]
    published: str = ""
    workers: int = WORKERS
    lr: float = 0.01
    momentum: float = 0.9


@dataclass(frozen=True, slots=True)
class Found:
    """What one run came to; `megabytes` are those of its payloads. A run that diverged has no accuracy."""

    accuracy: float | None
    loss: float
    megabytes: float


def _sync(steps: int, **others: Any) -> dict[str, Any]:
    return {"mode": "sync", "local_steps": steps, **others}


def _async(**others: Any) -> dict[str, Any]:
    """Deltas added whole: with plain SGD that is the papers' step."""
    return {"mode": "async", "delta_scale": 1.0, **others}


OUTER = {"rule": "outer-momentum"}
COMPENSATED = {"rule": "delay-compensated"}
STALE = "below one worker"
NEAR_ONE = "above async, near one worker (Zheng et al.)"
AVERAGED = "below outer momentum (SlowMo, DiLoCo)"
AS_SYNC = "as sync (DiLoCo)"
SPARSE = "not below outer momentum (SparseLoCo)"

WAYS = (
    Way("one worker", _async(), workers=1, lr=0.05, momentum=0.0),
    Way("async", _async(), STALE, lr=0.05, momentum=0.0),
    Way("delay-compensated", _async(**COMPENSATED), NEAR_ONE, lr=0.05, momentum=0.0),
    Way("sync", _sync(1)),
    Way("50 steps, averaged", _sync(50), AVERAGED),
    Way("50 steps, outer momentum", _sync(50, **OUTER), AS_SYNC),
    Way("50 steps, outer momentum 0.5", _sync(50, **OUTER, outer_momentum=0.5), AS_SYNC),
    Way("500 steps, averaged", _sync(500), AVERAGED),
    Way("500 steps, outer momentum", _sync(500, **OUTER), AS_SYNC),
    Way("50 steps, averaged, topk:0.01", _sync(50, compress="topk:0.01")),
    Way("50 steps, averaged, sparse:0.01", _sync(50, compress="sparse:0.01"), SPARSE),
    Way("50 steps, averaged, sparse:0.03", _sync(50, compress="sparse:0.03"), SPARSE),
)


def train(way: Way, seed: int, images: int) -> Found:
    """One run to its end, in this process."""
    import torch  # the tables need none

    from bench.support.lenet_engine import LeNetEngine, Training

    torch.set_num_threads(1)
    config = make_config({**way.options, "workers": way.workers})
    training = Training(seed, way.workers, BATCH, way.lr, way.momentum)
    compression = Compression(config.compress)

    def engine(rank: int) -> Any:
        return LeNetEngine(training, rank)

    store = MemoryStore(clock=lambda: cluster.now)
    # Equal workers, each a moment behind the former: they take turns.
    world = World(jitter=0.0, compression=compression)
    cluster = SimulatedCluster(world, store, "rules", engine, seed)
    for worker in range(way.workers):
        cluster.join(worker)
    tested = LeNetEngine(training, 0)
    vector = tested.layout.zeros()
    tested.read_weights(vector)
    plan = Plan(BATCH, images // BATCH, way.workers)
    coordinator = Coordinator(make_strategy(config, BATCH), plan)
    cluster.version = lambda: coordinator.version
    center = Center("rules", vector, tested.layout, store, compression=compression)
    trace = Trace(True)
    outcome = Driver(coordinator, center, cluster, trace, cluster.clock, Limits()).run()
    # Its deltas were refused: not finite, or a thousand times as long as is usual
    if not outcome.complete:
        print(f"{way.name}, seed {seed}: {outcome.reason}", file=sys.stderr, flush=True)
        return Found(None, math.nan, 0.0)
    tested.load_weights(center.vector)
    payloads = -(-outcome.samples // (BATCH * config.local_steps))
    return Found(*tested.test(), payloads * bytes_of(config.compress, tested.layout.size) / 1e6)


def table_of(found: dict[str, list[Found]], published: dict[str, str]) -> Table:
    """A row for each way."""
    lines = [["", "accuracy", "least to most", "test loss", "MB of payloads", "published"]]
    for name, runs in found.items():
        accuracies = [run.accuracy for run in runs if run.accuracy is not None]
        if len(accuracies) < len(runs):
            diverged = f"{len(runs) - len(accuracies)} of {len(runs)} diverge"
            lines.append([name, diverged, "", "", "", published[name]])
            continue
        lines.append(
            [
                name,
                f"{statistics.mean(accuracies):.4f}",
                f"{min(accuracies):.4f} to {max(accuracies):.4f}",
                f"{statistics.mean(run.loss for run in runs):.4f}",
                f"{runs[0].megabytes:,.1f}",
                published[name],
            ]
        )
    return lines


def measure(ways: Sequence[Way], seeds: int, images: int, processes: int, out: Path) -> Table:
    """All runs that are not done yet, and the table of all."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "rules.json"
    done: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    keys = {
        f"{way.name}, seed {seed}, {images}": (way, seed)
        for seed in range(1, seeds + 1)
        for way in ways
    }
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
        under_way = {
            pool.submit(train, *what, images): key for key, what in keys.items() if key not in done
        }
        for future in as_completed(under_way):
            done[under_way[future]] = asdict(future.result())
            kept.write_text(json.dumps(done, indent=1))
            print(under_way[future], future.result(), file=sys.stderr, flush=True)
    found: dict[str, list[Found]] = {way.name: [] for way in ways}
    for key, (way, _) in keys.items():
        found[way.name].append(Found(**done[key]))
    return table_of(found, {way.name: way.published for way in ways})


def main() -> int:
    """Train what is not done yet, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.rules", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--images", type=whole, default=48_000, metavar="N", help="of all workers")
    parser.add_argument("--seeds", type=whole, default=3, metavar="N")
    parser.add_argument("--processes", type=whole, default=2, metavar="N", help="runs at a time")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="ways whose names have this")
    parser.add_argument("--out", type=Path, default=Path("build/rules"), metavar="DIR")
    asked = parser.parse_args()
    end_by_signals()
    print(f"`{shlex.join(['python', '-m', 'bench.rules', *sys.argv[1:]])}`")
    wanted = asked.only or [""]
    ways = [way for way in WAYS if any(text in way.name for text in wanted)]
    print("\n" + markdown(measure(ways, asked.seeds, asked.images, asked.processes, asked.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
