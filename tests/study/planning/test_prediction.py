"""Predictions that can be worked out by hand, and what must hold of all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from speedo.run.config.run_config import MODES
from speedo.study.planning.calibration import StepTime, shape_of
from speedo.study.planning.predict import PlanWish, Prediction, best_of, predict, predict_all
from speedo.study.planning.site import PAYLOAD_SHARE, Site
from tests.study.planning.times import calibration, passage

ONE = Site(cores=8)
GBIT = Site(cores=8, link=1e9 / PAYLOAD_SHARE)  # 12.5 MB take a tenth of a second
JITTER = shape_of([0.8, 0.9, 1.0, 1.0, 1.1, 1.2])
REAL = calibration(
    shape=JITTER,
    steps=(StepTime(samples=1, seconds=0.02), StepTime(samples=10, seconds=0.1)),
    far=passage(0.01),
    near=passage(0.008),
    **dict.fromkeys(("load", "seal", "check", "merge", "publish", "far_message", "handle"), 0.001),
)


@pytest.mark.parametrize("mode", MODES)
def test_one_worker_is_as_fast_as_plain_caffe_if_nothing_else_takes_time(mode: str) -> None:
    one = predict(calibration(), ONE, mode, 1, 1)
    assert one.images_per_s == pytest.approx(100.0)
    assert one.efficiency == pytest.approx(1.0)
    assert one.limit == "compute"


@pytest.mark.parametrize("mode", ["sync", "async", "partial", "weed-out", "easgd"])
def test_so_are_many_times_as_many_where_all_have_the_whole_batch(mode: str) -> None:
    eight = predict(calibration(), ONE, mode, 8, 10, split=False)
    assert eight.speedup == pytest.approx(8.0)
    assert eight.efficiency == pytest.approx(1.0)


def test_more_workers_than_cores_share_them() -> None:
    assert predict(calibration(), Site(cores=2), "async", 8, 1).speedup == pytest.approx(2.0)


def test_cores_that_slow_each_other_down_do_so_here() -> None:
    two = predict(calibration(crowding=1.25), Site(cores=2), "async", 2, 1)
    assert two.speedup == pytest.approx(1.6)


def test_sync_waits_for_every_part_of_a_turn_in_its_place() -> None:
    """Per round: message, read 10 ms, load, 100 ms, seal, write, message; the master then reads and checks twice,
    merges twice, and writes once. Two results are handled, and two commands."""
    times = calibration(
        near=passage(0.010),
        load=0.001,
        seal=0.002,
        publish=0.002,
        check=0.003,
        merge=0.004,
        message=0.005,
        handle=0.006,
    )
    worker = 0.005 + 0.010 + 0.001 + 0.100 + 0.002 + 0.010 + 0.005
    master = 2 * (0.003 + 0.010 + 0.003) + 2 * 0.004 + 0.002 + 0.010 + 2 * 0.003
    # The second command is sent 3 ms after the first, and where both read or write at once one waits for Redis, for
    # half of a passage. The master takes the first result while the second is on its way.
    one = predict(times, ONE, "sync", 1, 1, split=False)
    alone = worker + (0.003 + 0.010 + 0.003) + 0.004 + 0.002 + 0.010 + 0.003
    assert one.images_per_s == pytest.approx(10 / alone)
    two = predict(times, replace(ONE, team="off"), "sync", 2, 1, split=False)
    assert 20 / (worker + master + 0.010) <= two.images_per_s <= 20 / (worker + master - 0.020)


def test_a_link_carries_each_model_in_its_time() -> None:
    one = predict(calibration(), GBIT, "async", 1, 1)
    assert one.images_per_s == pytest.approx(10 / 0.3)
    assert one.shares["link"] == pytest.approx(1 / 3)


def test_behind_a_link_a_turn_takes_what_a_run_there_told_beyond_its_parts() -> None:
    told = calibration(load=0.1, far_load=0.2)
    assert predict(told, GBIT, "async", 1, 1).images_per_s == pytest.approx(10 / 0.5)
    assert predict(told, ONE, "async", 1, 1).images_per_s == pytest.approx(10 / 0.2)
    unknown = calibration(load=0.1)
    assert predict(unknown, GBIT, "async", 1, 1).images_per_s == pytest.approx(10 / 0.4)


def test_turns_that_overlap_follow_each_other_in_half_of_what_one_takes() -> None:
    """Two are under way, each a tenth of a second in each of its stages; of two workers the link has two to carry."""
    ahead = replace(GBIT, overlap="far")
    assert predict(calibration(), ahead, "async", 1, 1).images_per_s == pytest.approx(
        10 / 0.15, rel=0.02
    )
    assert predict(calibration(), ahead, "sync", 1, 1).images_per_s == pytest.approx(10 / 0.3)
    many = predict(calibration(), ahead, "easgd", 32, 1)
    assert 92.0 < many.images_per_s <= 104.0
    long = predict(calibration(), ahead, "async", 1, 10)
    assert long.images_per_s == pytest.approx(100.0, rel=1e-3)
    here = replace(ahead, link=None)
    assert not here.overlaps("async")
    assert replace(here, overlap="all").overlaps("async")


def test_links_within_one_machine_cost_its_processor() -> None:
    """12.5 MB and 8 ms for each MB make 0.1 s, as long as the transfer; at 16 ms the core is the longer."""
    one = replace(GBIT, cores=1, one_processor=True, packet_work=8e-9)
    assert predict(calibration(), one, "async", 1, 1).images_per_s == pytest.approx(10 / 0.3)
    dear = replace(one, packet_work=16e-9)
    assert predict(calibration(), dear, "async", 1, 1).images_per_s == pytest.approx(10 / 0.5)


def test_a_compressed_payload_takes_its_share_of_the_link() -> None:
    """A tenth of a second for the center, a hundredth for the payload."""
    one = predict(calibration(payload_bytes=1_250_000), GBIT, "async", 1, 1)
    assert one.images_per_s == pytest.approx(10 / 0.21)


def test_a_rounded_center_is_written_beside_the_whole_one() -> None:
    """The master writes 20 ms and half of that; the worker reads half, and writes the whole of its payload."""
    times = calibration(center_bytes=6_250_000, near=passage(0.02))
    one = predict(times, ONE, "async", 1, 1)
    assert one.images_per_s == pytest.approx(10 / (0.1 + 0.010 + 0.020 + 0.020 + 0.030))


def test_what_runs_beside_the_workers_takes_its_part_of_a_full_machine() -> None:
    assert predict(
        calibration(background=0.1), Site(cores=2), "async", 2, 1
    ).speedup == pytest.approx(1.9)
    assert predict(
        calibration(background=0.1), Site(cores=2), "async", 1, 1
    ).speedup == pytest.approx(1.0)


def test_a_full_link_of_the_master_is_the_limit() -> None:
    many = predict(calibration(), GBIT, "async", 32, 1)
    assert 92.0 < many.images_per_s <= 101.0
    assert many.limit == "link"


def test_a_round_trip_is_paid_for_messages_and_for_the_store() -> None:
    """A command and a result half of it each; a model of several chunks two on its way in and two on its way out."""
    far = Site(cores=8, link=1e15, round_trip=0.010)
    one = predict(calibration(), far, "async", 1, 1)
    assert one.images_per_s == pytest.approx(10 / 0.15, rel=1e-4)


def test_a_slow_master_is_the_limit() -> None:
    many = predict(calibration(check=0.05), ONE, "async", 8, 1)
    assert many.images_per_s == pytest.approx(200.0, rel=0.02)
    assert many.limit == "master"


def test_a_slow_redis_holds_master_and_workers_up() -> None:
    """The master's own two passages of 40 ms allow 12.5 results a second; Redis is busy 80 ms for each of them, too."""
    site = Site(cores=8, same_node="redis")
    many = predict(calibration(near=passage(0.04)), site, "async", 8, 1)
    assert 100.0 < many.images_per_s < 125.0
    assert many.shares["store"] > 0.79


def test_shared_memory_is_taken_on_one_machine_alone_unless_redis_is_asked_for() -> None:
    times = calibration(near=passage(0.1), far=passage(0.1), shared_memory=passage(0.001))
    here = predict(times, ONE, "async", 1, 1).images_per_s
    redis = predict(times, Site(cores=8, same_node="redis"), "async", 1, 1).images_per_s
    assert here > 90
    assert redis == pytest.approx(10 / 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [1, 6])
def test_a_slower_link_never_gives_more(mode: str, workers: int) -> None:
    """But for what weed-out happens to discard."""
    speeds = [
        predict(REAL, Site(2, bits, 1e-4), mode, workers, 1).images_per_s
        for bits in (1e8, 5e8, 3e9, 1e11)
    ]
    assert all(slower <= 1.03 * faster for slower, faster in pairwise(speeds))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_faster_than_so_many_free_caffes(mode: str) -> None:
    for workers, steps in ((1, 1), (2, 10), (8, 1)):
        one = predict(REAL, Site(1, 1e10, 1e-4), mode, workers, steps, split=False)
        assert one.efficiency <= 1.02, (workers, steps)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_table_and_another_another() -> None:
    def table(seed: int) -> list[Prediction]:
        return predict_all(REAL, GBIT, PlanWish(MODES, (2,), (3,), seed=seed))

    first = table(1)
    assert first == table(1)
    assert first != table(2)


@pytest.mark.slow
def test_whether_two_workers_meet_on_their_cable_is_not_left_to_the_seed() -> None:
    """They keep their distance once they have one, so one run is as good or as bad as its beginning."""
    speeds = [predict(REAL, GBIT, "async", 2, 1, seed=seed).images_per_s for seed in range(8)]
    assert max(speeds) < 1.15 * min(speeds)


def test_a_batch_that_cannot_be_divided_over_so_many_is_left_out() -> None:
    found = predict_all(REAL, ONE, PlanWish(("sync", "async"), (1,), (10, 11)))
    assert [(one.mode, one.workers) for one in found] == [
        ("sync", 10),
        ("async", 10),
        ("async", 11),
    ]


def test_a_divided_batch_takes_the_time_of_its_share() -> None:
    """Shares of 5: between the 20 ms of one sample and the 100 ms of ten."""
    times = calibration(
        steps=(StepTime(samples=1, seconds=0.02), StepTime(samples=10, seconds=0.11))
    )
    two = predict(times, ONE, "sync", 2, 1)
    assert two.images_per_s == pytest.approx(10 / 0.06)


def test_the_best_is_the_fastest_and_among_equals_the_smallest() -> None:
    def made(workers: int, steps: int, images_per_s: float) -> Prediction:
        return Prediction("async", steps, workers, images_per_s, 1.0, 1.0, "compute", {})

    near = [made(8, 10, 1000.0), made(4, 10, 999.5), made(4, 20, 999.9)]
    assert best_of([made(8, 1, 99.0), *near, made(2, 20, 998.0)]) == made(4, 10, 999.5)
