"""What a comparison runs: names, options, sweeps; and that another command does not continue it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from speedo.errors import ConfigError
from speedo.study.comparison.compare import prepared
from speedo.study.comparison.throughput import Forecasts
from speedo.study.comparison.wish import (
    ComparisonWish,
    keep_wish,
    parse_modes,
    parse_sweep,
    variants,
)
from speedo.watch.report.run_history import RunHistory
from tests.study.planning.times import calibration
from tests.support.nets import net_text, write_data, write_solver
from tests.support.outside import outside as outside


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("net")
    write_data(folder, train=64)
    return write_solver(folder, net_text(), max_iter=100)


def wish(solver: Path, **fields: object) -> ComparisonWish:
    usual: dict[str, object] = {
        "modes": ("sync", "easgd"), "workers": (2,), "epochs": 4, "solver": str(solver),
    }  # fmt: skip
    return ComparisonWish(**{**usual, **fields})  # type: ignore[arg-type]


def test_each_seed_begins_with_sequential_caffe_and_the_modes_train_longer(
    solver: Path, tmp_path: Path
) -> None:
    runs = prepared(wish(solver, seeds=2), tmp_path, print).runs
    assert [(run.name, run.max_iter) for run in runs] == [
        ("sequential-seed1", 32), ("sync-w2-seed1", 40), ("easgd-w2-seed1", 40),
        ("sequential-seed2", 32), ("sync-w2-seed2", 40), ("easgd-w2-seed2", 40),
    ]  # fmt: skip
    assert [run.options["seed"] for run in runs] == [1, 1, 1, 2, 2, 2]
    assert {run.options["test_interval"] for run in runs} == {8}  # one epoch
    assert runs[1].images == 320


def test_a_batch_of_another_size_makes_other_iterations(solver: Path, tmp_path: Path) -> None:
    runs = prepared(wish(solver, options={"batch": 16}, tests=0), tmp_path, print).runs
    assert [run.max_iter for run in runs] == [16, 20, 20]
    assert runs[0].options["test_interval"] == 0


def test_rates_that_depend_on_the_end_of_a_run_keep_that_end(tmp_path: Path) -> None:
    write_data(tmp_path, train=64)
    poly = write_solver(tmp_path, net_text(), lr_policy='"poly"', power=1)
    assert {run.max_iter for run in prepared(wish(poly), tmp_path, print).runs} == {32}


def test_a_sweep_goes_to_the_modes_that_use_it(solver: Path, tmp_path: Path) -> None:
    swept = {"local_steps": [1, 5], "moving_rate": [0.3, 0.9]}
    assert variants(swept, "sync") == [{"local_steps": 1}, {"local_steps": 5}]
    assert len(variants(swept, "easgd")) == 4
    runs = prepared(wish(solver, sweeps=swept), tmp_path, print).runs
    assert [run.name for run in runs] == [
        "sequential-seed1",
        "sync-w2-local_steps=1-seed1",
        "sync-w2-local_steps=5-seed1",
        "easgd-w2-local_steps=1-moving_rate=0.3-seed1",
        "easgd-w2-local_steps=1-moving_rate=0.9-seed1",
        "easgd-w2-local_steps=5-moving_rate=0.3-seed1",
        "easgd-w2-local_steps=5-moving_rate=0.9-seed1",
    ]


def test_a_mode_may_name_its_rule_and_sweeps_go_to_the_rules_that_use_them(
    solver: Path, tmp_path: Path, outside: str
) -> None:
    modes = parse_modes(f"async,async+delay-compensated,sync+{outside}:Heavy")
    swept = dict(
        parse_sweep(text, modes) for text in ("compensation=0.5,2", "heavy=0.3", "window=4")
    )
    runs = prepared(wish(solver, modes=modes, sweeps=swept), tmp_path, print).runs
    assert [run.name for run in runs] == [
        "sequential-seed1",
        "async-w2-seed1",
        "async+delay-compensated-w2-compensation=0.5-seed1",
        "async+delay-compensated-w2-compensation=2-seed1",
        f"sync+{outside}.Heavy-w2-heavy=0.3-seed1",
    ]
    assert [(run.mode, run.options.get("rule")) for run in runs[1:]] == [
        ("async", None),
        ("async", "delay-compensated"),
        ("async", "delay-compensated"),
        ("sync", f"{outside}:Heavy"),
    ]


@pytest.mark.parametrize(
    ("modes", "words"),
    [
        ("async+fast", "behind the . use one of average-deltas, "),
        ("async+nowhere:Rule", "there is no module nowhere"),
        ("fast", "or package.module:Class"),
    ],
)
def test_a_mode_or_rule_that_is_not_there_is_told(modes: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_modes(modes)


def test_a_rule_that_does_not_go_with_its_mode_is_told(solver: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outer-momentum does not go with mode async"):
        prepared(wish(solver, modes=("async+outer-momentum",)), tmp_path, print)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rule=add-delta", r"give it with its mode: --modes MODE\+RULE"),
        ("local_steps", "names no values"),
        ("nonsense=1", "is no option of a run"),
        ("workers=1,2", "set by the comparison itself"),
        ("local_steps=1,1", "give each value once"),
        ("local_steps=", "names no values"),
    ],
)
def test_a_sweep_that_cannot_be_is_told(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_sweep(text)


def test_every_mistake_of_every_run_is_told_before_the_first(solver: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(wish(solver, workers=(2, 9), sweeps={"moving_rate": [7.0]}), tmp_path, print)
    text = str(caught.value)
    assert "easgd-w2-moving_rate=7.0-seed1: moving_rate is 7.0" in text
    assert "sync-w9-seed1" in text  # a batch of 8 cannot be split over 9
    assert list(tmp_path.iterdir()) == []


def test_all_modes_and_their_names() -> None:
    assert set(parse_modes("all")) == {"sync", "async", "partial", "weed-out", "easgd"}
    assert parse_modes("easgd, sync,easgd") == ("easgd", "sync")
    with pytest.raises(ConfigError, match="use all, or some of"):
        parse_modes("hybrid")


def test_a_folder_goes_on_with_its_own_command_alone(solver: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    keep_wish(folder, wish(solver))
    keep_wish(folder, wish(solver))
    with pytest.raises(ConfigError, match=r"epochs was 4, is 5.*or another --out"):
        keep_wish(folder, wish(solver, epochs=5))
    assert yaml.safe_load((folder / "compare.yaml").read_text())["epochs"] == 4
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="holds other things"):
        keep_wish(tmp_path / "other", wish(solver))


def test_throughput_is_predicted_only_where_workers_outnumber_the_cores() -> None:
    known = Forecasts(calibration(), 2)

    def run(mode: str, workers: int, **options: object) -> RunHistory:
        return RunHistory("run", Path("run"), mode, workers, 1, {"mode": mode, **options})

    assert known.of(run("sync", 2)) is None
    assert known.of(run("sequential", 1)) is None
    four = known.of(run("sync", 4))
    assert four is not None
    assert 2.0 < four.factor <= 4.0  # on a machine with four cores
    assert four.images_per_s == pytest.approx(four.factor * calibration().images_per_s)
    assert known.of(run("sync", 4, compress="int8")) is None  # was not measured
    assert Forecasts(None, 2).of(run("sync", 4)) is None
