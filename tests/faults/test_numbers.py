"""Rows 11 and 12: a worker that computes nonsense, and bytes that change on their way."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.rows import WITH_TORCH, Finding, Findings, row, scenario
from tests.faults.running import Run, stand_still
from tests.support.commands import Commands
from tests.support.sabotaged_net import order
from tests.support.store_server import OwnRedis

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
STRIKES = 3
RESTART_S = 1.5  # of a worker that has died, at least


NONSENSE = {
    "NaN in a worker's gradients": ("nan", "not finite"),
    "infinity in a worker's gradients": ("inf", "not finite"),
    "gradients of absurd size": ("1e10", "its norm is"),
}


@scenario(dict.fromkeys(NONSENSE, 11), usual="easgd", torch=(*WITH_TORCH, "easgd"))
def test_nonsense_is_refused_before_it_is_merged(
    speedo: Commands, problem: Path, mode: str, findings: Findings
) -> None:
    """A worker's gradients are multiplied; none of it is merged, and it is set aside for good. Three, one by one."""
    run = Run(speedo, problem, mode, "--workers", "4")
    run.has_begun(60)
    usual = statistics.mean(line["loss"] for line in run.merged()[-40:])
    for worker, (fault, (factor, reason)) in enumerate(NONSENSE.items(), start=1):
        with findings.tries(fault) as finding:
            poisoned(run, problem, worker, factor, reason, usual, finding)
    time.sleep(2 * RESTART_S)  # in which the last one could have come back
    lines = run.stop_and_check()
    assert Counter(line["worker"] for line in lines if line["event"] == "joined") == Counter(
        range(4)
    )
    run.failed_first("worker 1", f"{STRIKES} results in a row were refused")


def poisoned(
    run: Run, problem: Path, worker: int, factor: str, reason: str, usual: float, finding: Finding
) -> None:
    order(problem, f"{worker} scale {factor}")
    since = time.monotonic()
    finding.recovered(run.recovery(since))
    run.wait_for(lambda: len(run.lines("set-aside")) == worker)
    order(problem)
    finding.note = f"set aside in {time.monotonic() - since:.1f} s, after {STRIKES} refusals"
    (*_, aside) = run.lines("set-aside")
    run.goes_on(60)
    refused = run.results("refused")
    assert [line["worker"] for line in refused] == [
        one for one in range(1, worker + 1) for _ in range(STRIKES)
    ]
    assert all(reason in line["reason"] for line in refused[-STRIKES:]), refused
    assert (aside["worker"], reason in aside["reason"]) == (worker, True)
    assert f"worker {worker}" in run.log()
    after = [line["loss"] for line in run.merged()[-60:]]
    # Had one been merged, the loss would be out of all proportion, or not a number. One worker's records alone may well
    # have twice the loss: how far the workers had come is up to the machine.
    assert statistics.mean(after) < 5 * usual


@row(
    12,
    "a bit of a payload flips in Redis, or its end is lost",
    usual="partial",
    torch=WITH_TORCH,
)
def test_a_damaged_payload_is_refused_every_time(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """The master stands still while a worker computes, so what is new in the store is not read yet."""
    chance = random.Random(5)
    with OwnRedis() as server:
        run = Run(speedo, problem, mode, *server.options, environment=server.environment)
        run.has_begun()
        order(problem, "0 sleep 0.2", "1 sleep 0.2")
        damaged: list[int] = []
        while len(damaged) < 2 * STRIKES:
            run.goes_on(5)
            master = run.the("ray::MasterActor")
            stand_still(master)
            before = server.keys("payload")
            time.sleep(0.6)  # for the turns under way to end in a push
            pushed = [key for key in server.keys("payload") if key not in before]
            for key in [key for key in pushed if b"#" not in key][:1]:
                damage(server, key, chance, truncate=len(damaged) % 2 == 1)
                damaged.append(int(key.rpartition(b":")[2]))
            since = time.monotonic()
            master.resume()
            finding.recovered(run.recovery(since))
        run.wait_for(lambda: len(run.results("refused")) >= len(damaged))
        run.goes_on()
        lines = run.stop_and_check()
        assert server.keys("payload") == []
    refused = [line for line in lines if line.get("decision") == "refused"]
    assert sorted(line["ticket"] for line in refused) == sorted(damaged)
    assert not [line for line in lines if line["event"] in ("left", "set-aside")]
    finding.note = f"{len(damaged)} of {len(damaged)} refused"


def damage(server: OwnRedis, key: bytes, chance: random.Random, *, truncate: bool) -> None:
    """Flip a bit of a record somewhere in its weights, or cut its end off."""
    store = server.admin()
    value = bytearray(store.get(key) or b"")
    value[chance.randrange(len(value) // 2, len(value))] ^= 1 << chance.randrange(8)
    store.set(key, bytes(value[:-1000] if truncate else value), keepttl=True)


@row(12, "a bit of the newest center flips in Redis", torch=WITH_TORCH)
def test_a_damaged_center_is_not_trained_on_and_is_published_again(
    speedo: Commands, problem: Path, mode: str, finding: Finding
) -> None:
    """Damaged after the workers were told to train from it, and before they read it."""
    with OwnRedis() as server:
        run = Run(speedo, problem, mode, *server.options, environment=server.environment)
        run.has_begun()
        master, workers = run.the("ray::MasterActor"), list(run.workers().values())
        stand_still(master)
        time.sleep(0.5)  # the turns under way end in a push
        for worker in workers:
            stand_still(worker)
        master.resume()
        time.sleep(1.0)  # it merges them, publishes, and tells the workers
        store = server.admin()
        for key in [one for one in server.keys("center") if b"#" not in one]:
            value = bytearray(store.get(key) or b"")
            value[len(value) // 2] ^= 1
            store.set(key, bytes(value), keepttl=True)
        since = time.monotonic()
        for worker in workers:
            worker.resume()
        finding.recovered(run.recovery(since))
        run.goes_on(30)
        lines = run.stop_and_check()
    refused = [line["reason"] for line in lines if line.get("decision") == "refused"]
    assert refused
    assert all("center" in reason for reason in refused), refused
    assert not [line for line in lines if line["event"] in ("left", "set-aside")]
    finding.note = f"read {len(refused)} times, refused each time, then published again"
