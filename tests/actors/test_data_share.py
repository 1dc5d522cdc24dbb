"""Two workers of one machine read exactly the records that --data-share says: at first, after a resume, after a scale.

Eight records, whose labels are their numbers; two at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from speedo.run_dir.events import LogFollower, ResultMerged
from tests.support.commands import Commands, wait_until
from tests.support.labelled import (
    BATCH,
    RECORDS,
    WAIT_S,
    cycles,
    read,
    wait_for_sets,
    wait_to_read,
    write_problem,
)
from tests.support.record_counts import RecordCounts

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
EVERYTHING = (0, 1, 2, 3, 4, 5, 6, 7)
FOURTHS = [(0, 4), (1, 5), (2, 6), (3, 7)]
# Of two workers: where each begins, and how far apart its records are. Then the sets that four of them read.
SHARES = {
    "shard": ((0, 1), 2, FOURTHS),
    "own": ((0, 1), 2, FOURTHS),
    "offset": ((0, 4), 1, [EVERYTHING] * 4),
    "same": ((0, 0), 1, [EVERYTHING] * 4),
}


def train(*options: str) -> tuple[str, ...]:
    return ("train", "--mode", "sync", "--whole-batch", "--data-share", "reshard_after=1", *options)


@pytest.mark.parametrize(
    "share", ["shard", *(pytest.param(one, marks=pytest.mark.matrix) for one in SHARES if one != "shard")]
)  # fmt: skip
def test_workers_of_one_host_read_what_their_share_says(
    share: str, speedo: Commands, tmp_path: Path
) -> None:
    solver = write_problem(tmp_path / "problem")
    starts, step, sets = SHARES[share]
    options = ("--data-share", share, "--max-iter", "2", "--run-dir", "run", str(solver))
    first = speedo.start(*train(*options))
    _, errors = first.communicate(timeout=WAIT_S)
    assert first.returncode == 0, errors
    assert sorted(read(solver)) == cycles(starts, step, 2)

    moment = time.time_ns()
    resumed = speedo.start(*train("--resume", "run", "--max-iter", "1000000"))
    seen = wait_to_read(solver, 2, 8, moment)
    assert seen == cycles([start + 2 * step for start in starts], step, 8)

    moment = time.time_ns()
    scaled = speedo.start("scale", "4")
    _, errors = scaled.communicate(timeout=WAIT_S)
    assert scaled.returncode == 0, errors
    if share == "same":  # nobody's share changes
        assert [set(seen) for seen in wait_to_read(solver, 2, 8, moment)] == [{*EVERYTHING}] * 2
    else:
        wait_for_sets(solver, sets, moment, (0, 2, 4, 6) if share == "offset" else ())
    resumed.terminate()
    _, errors = resumed.communicate(timeout=WAIT_S)
    assert resumed.returncode == 143, errors


@pytest.mark.parametrize(
    "mode", ["async", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("sync", "weed-out", "easgd"))]
)  # fmt: skip
def test_each_record_is_trained_once_an_epoch_whoever_dies_or_comes(
    mode: str, speedo: Commands, tmp_path: Path
) -> None:
    """By the log of the run; and the workers have read what they say."""
    solver, iterations = write_problem(tmp_path / "problem", seconds=0.02), 240
    options = (
        "--whole-batch",
        "--data-share",
        "once",
        "--data-share",
        "reshard_after=1",
        "--run-dir",
        "run",
    )
    process = speedo.start(
        "train", "--mode", mode, *options, "--max-iter", str(iterations), str(solver)
    )
    run, counts = speedo.folder / "run", RecordCounts()
    log = LogFollower(run)

    def merged(samples: int) -> bool:
        while found := log.new():
            for one in found:
                if isinstance(one, ResultMerged):
                    counts.add(one.records)
        return counts.trained.total() >= samples

    wait_until(lambda: merged(40), WAIT_S)
    speedo.workers()[0].kill()
    wait_until(lambda: merged(120), WAIT_S)
    scaled = speedo.start("scale", "3")
    _, errors = scaled.communicate(timeout=WAIT_S)
    assert scaled.returncode == 0, errors
    wait_until(lambda: merged(200), WAIT_S)
    speedo.workers()[1].kill()
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    merged(0)
    whole = iterations * BATCH
    assert counts.twice() == counts.never(RECORDS, whole) == 0
    assert "in no result that was merged" not in errors
    seen = Counter(label for net in read(solver) for label in net)
    trained = Counter(number for _, number in counts.trained)
    assert all(seen[number] >= trained[number] for number in range(RECORDS))


def test_workers_whose_turns_overlap_take_new_shards_without_losing_the_store(
    speedo: Commands, tmp_path: Path
) -> None:
    """They answer while they train: what they still have to send goes to the store under their former login."""
    solver = write_problem(tmp_path / "problem", seconds=0.2)
    options = (
        "--mode",
        "async",
        "--overlap",
        "all",
        "--redis",
        "same_node=redis",
        "--data-share",
        "reshard_after=1",
    )
    process = speedo.start("train", *options, "--max-iter", "1000000", str(solver))
    wait_to_read(solver, 2, 4, 0)
    moment = time.time_ns()
    scaled = speedo.start("scale", "4")
    _, errors = scaled.communicate(timeout=WAIT_S)
    assert scaled.returncode == 0, errors
    wait_for_sets(solver, FOURTHS, moment)
    process.terminate()
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 143, errors
    assert "waits for the store" not in errors
