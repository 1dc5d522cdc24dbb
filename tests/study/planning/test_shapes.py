"""Teams, servers, threads and steps elsewhere, in predictions that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from speedo.study.planning.calibrate_by_measuring import crowding_of
from speedo.study.planning.calibration import StepTime, shape_of, with_step_time, with_threads
from speedo.study.planning.predict import predict, way_of
from speedo.study.planning.site import PAYLOAD_SHARE, Site
from tests.study.planning.times import calibration, passage

ONE = Site(cores=8)
GBIT = Site(cores=8, link=1e9 / PAYLOAD_SHARE)  # 12.5 MB take a tenth of a second


# ---------------------------------------------------------------- teams


def test_a_team_alone_does_half_a_second_of_rounds_and_reports_once() -> None:
    """A round: 100 ms of steps, 3 ms for half of the check, two meetings of 2 ms, 4 ms of sum.

    After one round of 111 ms, four of 444 ms; with a meeting of 2 ms before them and one behind, 1 ms to load the
    center and 1 ms to read it, and the publication of 10 ms. The center is there since the turn before. The master then
    reads, checks and merges once, publishes, and handles two results and two commands.
    """
    times = calibration(
        shared_memory=passage(0.010),
        load=0.001,
        check=0.006,
        merge=0.004,
        publish=0.002,
        meeting=0.002,
        handle=0.001,
    )
    turn = 0.002 + 0.001 + 4 * (0.100 + 0.003 + 2 * 0.002 + 0.004) + 0.002 + 0.001 + 0.010
    master = 0.010 + 0.006 + 0.004 + 0.002 + 0.010 + 4 * 0.0005
    team = predict(times, ONE, "sync", 2, 1, split=False)
    assert team.images_per_s == pytest.approx(80 / (turn + master), rel=0.003)
    alone = predict(times, replace(ONE, team="off"), "sync", 2, 1, split=False)
    assert alone.images_per_s < 0.8 * team.images_per_s


def test_each_member_meets_each_other_one() -> None:
    """Rounds of 100 ms and two meetings, of 1 ms for each of the three others."""
    four = predict(calibration(meeting=0.001), ONE, "sync", 4, 1, split=False)
    assert four.images_per_s == pytest.approx(4 * 40 / (4 * 0.106 + 2 * 0.003), rel=0.003)


def test_a_round_of_a_team_lasts_as_long_as_its_slowest_step() -> None:
    """Half of the steps take 80 ms and half 120 ms, nearly: of eight at once one is always slow."""
    times = calibration(shape=shape_of([0.8, 0.8, 1.0, 1.2, 1.2]))
    eight = predict(times, ONE, "sync", 8, 1, split=False)
    assert eight.efficiency == pytest.approx(1 / 1.19, abs=0.02)


@pytest.mark.slow
def test_between_hosts_a_round_takes_what_its_bytes_take_on_a_link() -> None:
    """125 kB take 1 ms: 2 (n - 1) / n of it beside steps of 10 ms; the master hears of 40 rounds and more at once."""
    times = calibration(nbytes=125_000, steps=(StepTime(samples=10, seconds=0.010),))
    for hosts, ring in ((2, 0.001), (4, 0.0015)):
        site = replace(GBIT, per_machine=2)
        team = predict(times, site, "sync", 2 * hosts, 1, split=False)
        assert team.images_per_s == pytest.approx(20 * hosts / (0.010 + ring), rel=0.005)
        assert team.shares["master"] == 0.0
        assert team.shares["link"] == pytest.approx(ring / (0.010 + ring), rel=0.05)


@pytest.mark.slow
def test_what_a_link_carried_before_the_window_does_not_count() -> None:
    """At first all hosts fetch, over the master's link, 0.1 s each; then the links between them carry all the rest."""
    times = calibration(steps=(StepTime(samples=10, seconds=0.010),))
    many = predict(times, GBIT, "sync", 64, 1, split=False)
    assert many.shares["link"] > 0.7
    assert many.limit == "link"


@pytest.mark.slow
def test_between_hosts_a_round_waits_for_the_hops_and_for_the_hosts_own_work() -> None:
    """Three hosts: four hops of 2 ms; 4/3 of the 3 ms to send and of as much to receive, and 2/3 of a sum of 6 ms.

    The link carries its 1.3 ms meanwhile. Before that each puts its gradient into the sum's memory, 6 ms.
    """
    times = calibration(
        nbytes=125_000,
        steps=(StepTime(samples=10, seconds=0.010),),
        far=passage(0.006),
        merge=0.006,
        message=0.001,
    )
    team = predict(times, replace(GBIT, round_trip=0.002), "sync", 3, 1, split=False)
    round_s = 0.010 + 4 * 0.002 + 4 / 3 * 0.006 + 2 / 3 * 0.006 + 0.006
    assert team.images_per_s == pytest.approx(30 / round_s, rel=0.04)


def test_a_run_takes_the_ring_unless_something_else_needs_each_round() -> None:
    far = replace(GBIT, per_machine=2)
    ways = {
        "all are on one machine": way_of(calibration(), ONE, "sync", 4),
        "the mean of a round needs nobody else": way_of(calibration(), far, "sync", 4),
        "payloads are compressed": way_of(calibration(compression="int8"), far, "sync", 4),
        "servers keep the center": way_of(calibration(), replace(far, servers=2), "sync", 4),
        "--team off": way_of(calibration(), replace(far, team="off"), "sync", 4),
        "the mode has no rounds": way_of(calibration(), far, "async", 4),
    }
    assert {why: way.why for why, way in ways.items()} == {why: why for why in ways}
    assert [why for why, way in ways.items() if way.over_hosts] == [
        "the mean of a round needs nobody else"
    ]


def test_a_host_with_a_team_fetches_once_and_sends_once() -> None:
    """Two hosts of two workers, whose payloads the master merges: each host fetches after the other, 0.1 s each, and
    sends while the other computes."""
    times = calibration(compression="int8")
    team = predict(times, replace(GBIT, per_machine=2), "sync", 4, 1, split=False)
    assert team.images_per_s == pytest.approx(40 / 0.4)
    off = replace(GBIT, per_machine=2, team="off")
    four = predict(calibration(), off, "sync", 4, 1, split=False)
    assert four.images_per_s == pytest.approx(40 / 0.6)


def test_the_master_takes_one_payload_of_each_host() -> None:
    """80 ms for each payload; beyond that each host adds nothing to a round of 100 ms."""
    times = calibration(merge=0.080, compression="int8")
    far = Site(cores=8, link=1e15, per_machine=4)
    two = predict(times, far, "sync", 8, 1, split=False)
    assert two.images_per_s == pytest.approx(80 / (0.100 + 0.080 + 2 * 0.080), rel=1e-3)


def test_a_team_with_compression_reports_after_each_round() -> None:
    """The master takes 50 ms for a result: once in half a second, or in each round of 100 ms."""
    for compression, round_s in (("none, centers bfloat16", 0.1 + 0.05 / 5), ("int8", 0.150)):
        times = calibration(check=0.050, compression=compression)
        team = predict(times, ONE, "sync", 2, 1, split=False)
        assert team.images_per_s == pytest.approx(20 / (round_s + 0.025), rel=0.1)


@pytest.mark.parametrize("mode", ["async", "easgd", "partial"])
def test_modes_without_rounds_have_no_teams(mode: str) -> None:
    times = calibration(near=passage(0.01), merge=0.005, meeting=1.0)
    host = predict(times, ONE, mode, 4, 1)
    assert host == predict(times, replace(ONE, team="off"), mode, 4, 1)


# ---------------------------------------------------------------- servers


def test_each_server_has_a_machine_of_a_worker() -> None:
    far = replace(GBIT, per_machine=2)
    assert replace(far, servers=3).servers_of(4) == (1, 2, 1)
    assert replace(far, servers="auto").servers_of(5) == (1, 2, 3)
    assert replace(ONE, servers="auto").servers_of(5) == (0,)
    assert far.servers_of(4) == ()


def test_ranges_travel_over_the_cables_of_their_servers() -> None:
    """Two workers, a server at each: half of the center comes over a cable, 50 ms, and half of the payload goes back.

    With one server its own worker needs no cable; the other one fetches before it, and sends.
    """
    two = predict(calibration(), replace(GBIT, servers="auto"), "sync", 2, 1, split=False)
    assert two.images_per_s == pytest.approx(20 / 0.2)
    assert two.shares["link"] == pytest.approx(0.5)
    one = predict(calibration(), replace(GBIT, servers=1), "sync", 2, 1, split=False)
    assert one.images_per_s == pytest.approx(20 / 0.3)


@pytest.mark.slow
def test_a_server_carries_its_part_of_what_all_workers_send() -> None:
    """Eight workers, a server at each: 7/8 of 0.1 s to fetch and as much to send. With four, 7/4 of 0.1 s each way.

    The master's one cable brings the centers one after another, 0.8 s, and the last payload 0.1 s after its steps.
    """
    served = predict(calibration(), replace(GBIT, servers="auto"), "sync", 8, 1, split=False)
    assert served.images_per_s == pytest.approx(80 / 0.275)
    four = predict(calibration(), replace(GBIT, servers=4), "sync", 8, 1, split=False)
    assert four.images_per_s == pytest.approx(80 / 0.45)
    alone = replace(GBIT, team="off")
    none = predict(calibration(), alone, "sync", 8, 1, split=False)
    assert none.images_per_s == pytest.approx(80 / 1.0)


def test_each_server_has_a_redis_and_a_process_of_its_own() -> None:
    """60 ms in Redis for a passage, 60 ms of the master's time to check; a third each with three servers.

    The worker reads and writes 120 ms of client and server; the master, or the server, reads as much.
    """
    times = calibration(far=passage(0.12), near=passage(0.12), check=0.06)
    far = Site(cores=8, link=1e15)
    one = predict(times, far, "async", 1, 1)
    assert one.images_per_s == pytest.approx(10 / (0.1 + 0.24 + 0.06 + 0.24), rel=1e-3)
    three = predict(times, replace(far, servers=3), "async", 1, 1)
    assert three.images_per_s == pytest.approx(10 / (0.1 + (0.24 + 0.06 + 0.24) / 3), rel=0.1)
    assert three.shares["server"] > 0


@pytest.mark.slow
def test_the_master_sends_and_hears_each_server_twice_a_result() -> None:
    """A message costs 3 ms of processor at each end and 2 ms between. The last of three servers is asked after 9 ms and
    has answered 10 ms later. The master hears the answers, orders the merge and hears that too, 9 ms each; the servers
    have published by then. Deleting comes after the commands."""
    times = calibration(far_message=0.008, handle=0.006)
    one = predict(times, replace(ONE, servers=3), "sync", 1, 1)
    taken = 3 * 0.003 + 0.002 + 0.003 + 0.003 + 0.002
    assert one.images_per_s == pytest.approx(10 / (0.1 + taken + 3 * 0.009 + 0.006))


def test_a_worker_waits_until_every_server_has_published() -> None:
    """The master's messages are free; the server takes 40 ms to merge, and only then can a worker fetch."""
    one = predict(calibration(merge=0.040), replace(ONE, servers=1), "async", 1, 1)
    assert one.images_per_s == pytest.approx(10 / 0.140)


def test_a_round_asks_for_each_result_and_merges_and_deletes_once() -> None:
    """Of two results that come together one server has taken in the second after 19 ms: two sends, 2 ms of way, 6 ms of
    work for each, 2 ms. The master hears it, 3 ms, and orders the merge, 3 ms; 10 ms later the version is there."""
    times = calibration(far_message=0.008)
    two = predict(times, replace(ONE, servers=1, team="off"), "sync", 2, 1, split=False)
    assert two.images_per_s == pytest.approx(20 / (0.1 + 0.019 + 0.003 + 0.003 + 0.010))


@pytest.mark.slow
def test_so_many_servers_cost_the_master_more_than_they_carry() -> None:
    """Each result takes two requests to each: beyond some number of servers a run gets slower."""
    times = calibration(nbytes=3_000_000, far_message=0.0008)
    speeds = [
        predict(times, replace(GBIT, servers=servers), "async", 12, 1).images_per_s
        for servers in (0, 2, 4, 12)
    ]
    assert speeds[0] < speeds[1] < speeds[2]
    assert speeds[3] < speeds[2]


# ---------------------------------------------------------------- threads, steps elsewhere


@pytest.mark.slow
def test_a_step_of_two_threads_takes_two_cores() -> None:
    times = with_threads(calibration(), 2, 1.6)
    four = Site(cores=4)
    assert predict(times, four, "async", 1, 1).images_per_s == pytest.approx(160.0)
    assert predict(times, four, "async", 2, 1).images_per_s == pytest.approx(320.0)
    assert predict(times, four, "async", 4, 1).images_per_s == pytest.approx(320.0)
    assert times.images_per_s == pytest.approx(160.0)


def test_threads_that_slowed_each_other_when_measured_do_so_once() -> None:
    """Two processes of two threads on four cores were each 1.2 times slower than one alone."""
    assert crowding_of(1.2, 2, 2) == pytest.approx(1.2 * (2 / 3) / (1 - 0.4))
    assert crowding_of(1.2, 1, 4) == pytest.approx(1.2)
    assert crowding_of(0.9, 2, 2) == 1.0
    times = calibration(threads=2, cores=4, crowding=crowding_of(1.2, 2, 2))
    four = Site(cores=4)
    assert predict(times, four, "async", 1, 1).images_per_s == pytest.approx(100.0)
    assert predict(times, four, "async", 2, 1).images_per_s == pytest.approx(200 / 1.2)


def test_steps_elsewhere_take_no_core() -> None:
    given = with_step_time(calibration(crowding=2.0), 0.080)
    one = Site(cores=1, link=1e15, per_machine=4)
    four = predict(given, one, "async", 4, 1)
    assert four.images_per_s == pytest.approx(4 * 10 / 0.080, rel=1e-4)
    assert predict(calibration(), one, "async", 4, 1).images_per_s == pytest.approx(100.0, rel=1e-4)


def test_a_divided_batch_takes_its_part_of_a_step_elsewhere() -> None:
    given = with_step_time(calibration(), 0.080)
    assert predict(given, ONE, "sync", 2, 1).images_per_s == pytest.approx(10 / 0.040)


# ---------------------------------------------------------------- without all this


@pytest.mark.slow
def test_a_run_without_teams_and_servers_is_predicted_as_before_there_were_any() -> None:
    times = calibration(
        shape=shape_of([0.8, 0.9, 1.0, 1.0, 1.1, 1.2]),
        steps=(StepTime(samples=1, seconds=0.02), StepTime(samples=10, seconds=0.1)),
        far=passage(0.01),
        near=passage(0.008),
        **dict.fromkeys(("load", "seal", "check", "merge", "publish", "handle"), 0.001),
    )
    site = Site(2, 3e9, 1e-4, per_machine=2, team="off")
    modes = ("sync", "async", "weed-out", "easgd")
    found = [predict(times, site, mode, 4, 1, seed=5).images_per_s for mode in modes]
    assert found == pytest.approx(BEFORE, rel=1e-9)


# weed-out has the usual window of two results for each worker, and throws nothing away here.
BEFORE = (41.07857270281727, 194.04186554676141, 194.04186554676141, 194.04186554676141)
