"""The bars of the learning bench, by worked figures; its net is one that Caffe can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.learning import BARS, PARTS, Bar, figures_table, held, quick_solver
from speedo.cli.compare import compare
from speedo.engines.solver import read_solver


def row(mode: str, workers: int, **fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "series": f"{mode}, {workers} workers", "mode": mode, "workers": workers, "runs": 1, "accuracy": 0.9,
        "epoch_factor": 1.0, "epoch_factor_least": 1.0, "epoch_factor_most": 1.0, "epoch_factor_at_most": None,
        "speedup": 1.9, "speedup_least": 1.9, "speedup_most": 1.9, "throughput_factor": 1.9, "epochs_to_loss": 5.0,
        "throughput_is": "measured", "images_per_s": 1000.0, "images_per_s_predicted": None, "published": "",
        "merged": 75, "not_merged": 25,
    }  # fmt: skip
    return usual | fields


def test_a_bar_holds_at_its_figure_and_not_below_nor_where_the_loss_was_not_reached() -> None:
    bars = [Bar("speed", ("async", "sync"), (2,), "speedup", 1.6)]
    series = [
        row("sequential", 1), row("sync", 2, speedup=1.6), row("async", 2, speedup=1.59), row("sync", 4, speedup=1.0),
    ]  # fmt: skip
    assert [found[-1] for found in held(bars, series)] == ["yes", "NO"]
    assert held(bars, [row("sequential", 1), row("sync", 2, speedup=None)])[0][2:] == (
        "not reached",
        "1.6",
        "NO",
    )


def test_accuracy_is_taken_against_sequential_caffe() -> None:
    accuracy = [bar for bar in BARS[1] if bar.figure == "accuracy_gained"]
    series = [
        row("sequential", 1, accuracy=0.9),
        row("sync", 4, accuracy=0.8935),
        row("easgd", 4, accuracy=0.892),
    ]
    assert [found[-1] for found in held(accuracy, series)] == ["yes", "NO"]


def test_a_predicted_figure_is_marked() -> None:
    table = figures_table(
        [
            row(
                "sync",
                4,
                throughput_is="predicted",
                images_per_s_predicted=4000.0,
                speedup=3.6,
                runs=2,
            )
        ]
    )
    assert table[1][3:6] == ["4,000p", "1.90p", "3.60 (1.90 to 1.90)p"]
    assert table[1][-1] == "25.0%"


def test_the_commands_of_all_parts_are_ones_that_speedo_takes(tmp_path: Path) -> None:
    for comparisons in PARTS.values():
        for one in comparisons:
            with compare.make_context("compare", ["solver.prototxt", *one.arguments]) as context:
                assert context.params["epochs"] in (3.0, 5.0)


def test_the_net_of_the_second_part_is_that_of_cifar10_quick_with_other_data(
    tmp_path: Path,
) -> None:
    spec = read_solver(quick_solver(tmp_path))
    assert (spec.batch, spec.max_iter) == (100, 1800)
    names = [name for name in spec.layer_names() if name.startswith("conv")]
    assert names == ["conv1", "conv2", "conv3"]
    assert spec.train_source == "fashion-mnist/train_lmdb"
