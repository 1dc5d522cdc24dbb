"""Workers on two hosts read exactly the records that --data-share says, also after a resume and a scale.

Eight records, whose labels are their numbers; two at a time. In `own` one host has the first four, one the others.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.labelled import (
    WAIT_S,
    cycles,
    read,
    wait_for_sets,
    wait_to_read,
    write_problem,
    write_records,
)
from tests.support.network import Host

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
EVERYTHING = (0, 1, 2, 3, 4, 5, 6, 7)
# What two workers read at first, then in the next eight records, then the sets that four read.
SHARES = {
    "shard": (cycles((0, 1), 2, 2), cycles((4, 5), 2, 8), [(0, 4), (1, 5), (2, 6), (3, 7)]),
    "own": (
        [(0, 1), (4, 5)],
        [(2, 3, 0, 1, 2, 3, 0, 1), (6, 7, 4, 5, 6, 7, 4, 5)],
        [(0, 2), (1, 3), (4, 6), (5, 7)],
    ),
    "offset": (cycles((0, 4), 1, 2), cycles((2, 6), 1, 8), [EVERYTHING] * 4),
    "same": (cycles((0, 0), 1, 2), cycles((2, 2), 1, 8), [EVERYTHING] * 4),
}


def master(host: Host, *options: str) -> tuple[str, ...]:
    return (
        "master", "--host", host.address, "--mode", "sync", "--whole-batch", "--workers", "2",
        "--data-share", "reshard_after=1", "--timeout", "300", "--data-root", "whole", *options,
    )  # fmt: skip


def begin(
    speedo: Commands, hosts: list[Host], roots: list[str], *options: str
) -> list[subprocess.Popen[str]]:
    """The master and a worker on each of the other hosts, whose data are under these roots."""
    chief, *others = hosts
    started = [speedo.start(*master(chief, *options), inside=chief.inside)]
    for host, root in zip(others, roots, strict=True):
        worker = ("worker", "--master", chief.address, "--timeout", "300", "--data-root", root)
        started.append(speedo.start(*worker, inside=host.inside))
    return started


@pytest.mark.slow
@pytest.mark.parametrize(
    "share", ["own", *(pytest.param(one, marks=pytest.mark.matrix) for one in SHARES if one != "own")]
)  # fmt: skip
def test_workers_of_two_hosts_read_what_their_share_says(
    share: str, speedo: Commands, hosts: list[Host], tmp_path: Path
) -> None:
    first, then, sets = SHARES[share]
    solver = write_problem(tmp_path / "problem", with_data=False)
    for name, labels in (("whole", range(8)), ("a", range(4)), ("b", range(4, 8))):
        (tmp_path / name).mkdir()
        write_records(tmp_path / name / "train", labels)
    roots = ["a", "b"] if share == "own" else ["whole", "whole"]
    options = ("--data-share", share, "--max-iter", "2", "--run-dir", "run", str(solver))
    for process in begin(speedo, hosts, roots, *options):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
    assert sorted(read(solver)) == first

    moment = time.time_ns()
    # The hosts may well join in another order now: what each has read is known by its records.
    resumed = begin(speedo, hosts, roots[::-1], "--resume", "run", "--max-iter", "1000000")
    assert wait_to_read(solver, 2, 8, moment) == then

    moment = time.time_ns()
    scaled = speedo.start("scale", "4", inside=hosts[0].inside)
    _, errors = scaled.communicate(timeout=WAIT_S)
    assert scaled.returncode == 0, errors
    if share == "same":
        assert [set(seen) for seen in wait_to_read(solver, 2, 8, moment)] == [{*EVERYTHING}] * 2
    else:
        starts = (0, 2, 4, 6) if share == "offset" else ()
        wait_for_sets(solver, sets, moment, starts)
    for process in resumed:
        process.terminate()
        process.communicate(timeout=WAIT_S)
