from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.support import table
from bench.support.figures import (
    Measured,
    MeasureError,
    Ratio,
    images_per_s,
    paired_ratio,
    run_measured,
    steps_measured,
    window_of,
)
from bench.support.throughput import (
    AS_IT_IS,
    SEQUENTIAL,
    Round,
    Row,
    Settings,
    Variant,
    rounds_of,
    rows_of,
    turned,
)
from speedo.messages import Drop, Finish, Left, Merge, Part, Trained
from speedo.run_dir.directory import METRICS
from speedo.run_dir.metrics_log import MetricsLog

TIMINGS = {"fetch": 0.01, "compute": 0.07, "publish": 0.005}


def every(period: float, count: int, images: int, start: float = 0.0) -> list[tuple[float, int]]:
    return [(start + period * index, images) for index in range(count)]


def log_of(folder: Path, turns: int = 11, *, discard: tuple[int, ...] = (), lose: int = 0) -> Path:
    """A run directory with a log, by the product's own writer, of two workers with a turn each 0.1 s and 64 samples."""
    log = MetricsLog(folder, 0.0)
    version = 0
    for turn in range(1, turns + 1):
        for worker in (0, 1):
            now = 0.1 * turn + 0.05 * worker
            log.saw(Trained(worker, 1, turn, 2.0, 64, TIMINGS), now)
            if turn in discard:
                log.did(Drop(worker, 1, turn, "discarded", "stale"), now)
                continue
            version += 1
            parts = (Part(worker, 1, turn, 64, 1, 2.0),)
            log.did(Merge(version, version, 64 * version, 1.0, parts), now)
        if turn == lose:
            log.saw(Left(1, 1, "killed"), 0.1 * turn + 0.06)
    log.did(Finish(True, "done"), 0.1 * turns + 0.06)
    log.saw(Left(0, 1, "the run is over"), 0.1 * turns + 0.07)
    log.close()
    return folder


def test_the_window_is_when_all_train_without_its_first_fifth() -> None:
    assert window_of([every(1.0, 11, 1), every(1.0, 11, 1, start=5.0)]) == (6.0, 10.0)


def test_workers_that_never_train_together_have_no_window() -> None:
    with pytest.raises(MeasureError, match="at the same time"):
        window_of([every(1.0, 3, 1), every(1.0, 3, 1, start=5.0)])


def test_rates_add_up_and_do_not_depend_on_where_the_window_cuts_a_turn() -> None:
    workers = [every(0.1, 101, 64), every(0.37, 30, 64, start=0.011)]
    assert images_per_s(workers) == pytest.approx(64 / 0.1 + 64 / 0.37)


def test_too_few_turns_give_no_figure() -> None:
    with pytest.raises(MeasureError, match="more --seconds"):
        images_per_s([every(1.0, 3, 64)])


def test_free_running_processes_count_their_own_batches() -> None:
    ends = [[0.1 * step for step in range(50)], [0.1 * step for step in range(50)]]
    measured = steps_measured(ends, (34, 33), 0.9)
    assert measured.images_per_s == pytest.approx(670)
    assert measured.parts["compute"] == pytest.approx(100)
    assert measured.core == 0.9


def test_a_run_is_read_from_the_log_that_the_product_writes(tmp_path: Path) -> None:
    measured = run_measured(log_of(tmp_path), 2)
    assert measured.images_per_s == pytest.approx(2 * 64 / 0.1)
    assert list(measured.parts) == ["turn", "fetch", "compute", "publish", "rest"]
    assert measured.parts == pytest.approx(
        {"turn": 100, "fetch": 10, "compute": 70, "publish": 5, "rest": 15}
    )
    assert measured.discarded == 0


def test_other_timings_of_a_run_stand_behind_the_rest_that_they_split(tmp_path: Path) -> None:
    line = '"publish":0.005'
    log = log_of(tmp_path) / METRICS
    log.write_text(log.read_text().replace(line, f'{line},"merge":0.002'))
    parts = run_measured(tmp_path, 2).parts
    assert list(parts) == ["turn", "fetch", "compute", "publish", "rest", "merge"]
    assert (parts["rest"], parts["merge"]) == pytest.approx((15, 2))


def test_a_discarded_turn_takes_time_and_brings_no_images(tmp_path: Path) -> None:
    measured = run_measured(log_of(tmp_path, discard=(6,)), 2)
    # In the window: worker 0 from 0.4 to 1.1 s, worker 1 from 0.35 to 1.05 s.
    assert measured.images_per_s == pytest.approx(2 * 64 * 6 / 0.7)
    assert measured.parts["turn"] == pytest.approx(100)
    assert measured.discarded == pytest.approx(2 / 16)


def test_a_run_that_lost_a_worker_gives_no_figure(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="worker 1 was lost: killed"):
        run_measured(log_of(tmp_path, lose=5), 2)


def test_a_run_without_one_of_its_workers_gives_no_figure(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="2 of 3 workers"):
        run_measured(log_of(tmp_path), 3)


def measured(rate: float) -> Measured:
    return Measured(rate, {"turn": 10.0, "compute": 8.0})


ROUNDS = [
    {SEQUENTIAL: measured(100), "2 free-running": measured(200), "sync": measured(180)},
    {SEQUENTIAL: measured(50), "2 free-running": measured(80), "sync": measured(80)},
    {SEQUENTIAL: measured(100), "2 free-running": measured(200), "sync": measured(160)},
    {"2 free-running": measured(200)},
]


def test_ratios_are_taken_within_a_round() -> None:
    assert paired_ratio(ROUNDS, "sync", "2 free-running") == Ratio(0.9, 0.8, 1.0)
    assert paired_ratio(ROUNDS, "easgd", "2 free-running") is None


def test_a_mode_is_compared_with_what_was_measured_right_before_and_after_it() -> None:
    """A machine that slows down in a round must not look like the cost of the mode that came last."""
    order: list[str] = []

    def measure(row: Row, done: Round, scratch: Path) -> Measured:
        order.append(row.name)
        speed = 2.0 - 0.1 * len(order)
        if row.mode == "async" and len(order) > 6:
            raise MeasureError("it failed")
        return measured(1000 * speed * (0.5 if row.mode else 1.0))

    free = "2 free-running"
    rows = rows_of(64, Settings(2, 8.0, 1, (1,), ("sync", "async"), split=False))
    rounds, failures = rounds_of("lenet", rows, 2, measure, print, around=True)
    assert order[:6] == [SEQUENTIAL, free, "sync", free, "async", free]
    for mode in ("sync", "async"):
        ratio = paired_ratio(rounds[:1], mode, free)
        assert ratio is not None
        assert ratio.median == pytest.approx(0.5)
    assert rounds[0][free].images_per_s == pytest.approx(1000 * (1.8 + 1.6 + 1.4) / 3)
    assert len(failures) == 1
    assert "async" not in rounds[1]
    assert "sync" in rounds[1]


def test_the_tables_say_what_failed_and_compare_like_with_like() -> None:
    rows = [
        Row(SEQUENTIAL, (64,)),
        Row("2 free-running", (64, 64)),
        Row("sync", (64, 64), "sync", baseline="2 free-running"),
        Row("easgd", (64, 64), "easgd", baseline="2 free-running"),
    ]
    rates = table.rates(rows, ROUNDS)
    assert rates[3] == ["sync", "64", "160", "90.0%", "80.0% to 100.0%", "1.60"]
    assert rates[4] == ["easgd", "64", "failed", "", "", ""]
    assert table.breakdown(rows, ROUNDS)[1] == [SEQUENTIAL, "10.00", "", "8.00", "", ""]


def test_a_busy_machine_is_told_where_each_plain_process_should_have_had_a_core() -> None:
    rows = [Row(SEQUENTIAL, (64,)), Row("2 free-running", (64, 64)), Row("sync", (64, 64), "sync")]
    plain = Measured(100, {}, core=0.99)
    rounds = [
        {SEQUENTIAL: plain, "2 free-running": Measured(100, {}, core=0.6), "sync": measured(1)}
    ]
    assert len(table.starved(rows, rounds, cores=2)) == 1
    assert "2 free-running got but 60% of a core" in table.starved(rows, rounds, cores=2)[0]
    assert table.starved(rows, rounds, cores=1) == []


def test_tables_in_text_and_in_markdown() -> None:
    cells = [["", "rate"], ["sync", "1,000"]]
    assert table.text(cells) == "       rate\nsync  1,000"
    assert table.markdown(cells) == "|  | rate |\n| --- | ---: |\n| sync | 1,000 |"


def test_rounds_are_plain_json() -> None:
    assert json.loads(json.dumps(table.plain(ROUNDS)))[1]["sync"]["images_per_s"] == 80


def test_sync_is_measured_with_whole_and_with_divided_batches() -> None:
    rows = rows_of(100, Settings(3, 8.0, 1, (1,), ("sync", "easgd")))
    assert [(row.name, row.batches, row.split, row.baseline) for row in rows] == [
        (SEQUENTIAL, (100,), False, None),
        ("3 free-running", (100, 100, 100), False, None),
        ("sync", (100, 100, 100), False, "3 free-running"),
        ("easgd", (100, 100, 100), False, "3 free-running"),
        ("3 free-running, batch split", (34, 33, 33), False, None),
        ("sync, batch split", (34, 33, 33), True, "3 free-running, batch split"),
    ]


def test_local_steps_and_variants_each_have_a_row_against_the_same_processes() -> None:
    variants = (AS_IT_IS, Variant("near", ("--near",)))
    rows = rows_of(64, Settings(2, 8.0, 1, (1, 10), ("sync",), variants, split=False))[2:]
    assert [(row.name, row.local_steps, row.options) for row in rows] == [
        ("sync, 1 local step", 1, ()),
        ("sync, 1 local step, near", 1, ("--near",)),
        ("sync, 10 local steps", 10, ()),
        ("sync, 10 local steps, near", 10, ("--near",)),
    ]
    assert {row.baseline for row in rows} == {"2 free-running"}


def test_each_round_begins_with_sequential_caffe_and_goes_on_elsewhere() -> None:
    rows = rows_of(64, Settings(2, 8.0, 3, (1,), ("sync", "async")))
    orders = [[row.name for row in turned(rows, number)] for number in range(3)]
    assert all(order[0] == SEQUENTIAL and len(order) == len(rows) for order in orders)
    assert len({order[1] for order in orders}) == 3
