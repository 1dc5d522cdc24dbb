"""How each mode learns, against one Caffe that trains alone: `speedo compare` on Fashion-MNIST, and whether bars hold.

    python -m bench.learning --part 1   epochs to equal loss, and accuracy: LeNet, 5 epochs, 3 seeds; about an hour
    python -m bench.learning --part 2   speed-up to equal loss: a net of CIFAR-10 quick's size, 3 epochs, 2 seeds
    python -m bench.learning --part 3   easgd with 1, 5 and 10 local steps and 2, 4, 8 workers

A part goes on where it was stopped; its runs are kept in `--out`. `--seeds` and `--workers` make fewer of them.
Writes bench/results/learning_N.md and its pictures; with `--trial`, which trains for a moment, they stay in `--out`.
Status 1 if a run failed or a bar does not hold.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.support.machine import busy_cores, machine
from bench.support.table import markdown, text
from speedo.engines.solver.bundled import bundled_solver

RESULTS = Path(__file__).parent / "results"
ASYNCHRONOUS = ("async", "partial", "weed-out")
POINTS = 0.007  # of accuracy that a mode may be below sequential Caffe
# Pixels as they are less their mean: the net's first weights are made for such numbers.
QUICK_DATA = """layer {{
  name: "{phase}" type: "Data" top: "data" top: "label"
  include {{ phase: {phase} }}
  transform_param {{ mean_value: 73 }}
  data_param {{ source: "fashion-mnist/{folder}" backend: LMDB batch_size: 100 }}
}}
"""
QUICK_SOLVER = """net: "train_test.prototxt"
base_lr: 0.001
lr_policy: "fixed"
momentum: 0.9
weight_decay: 0.004
max_iter: 1800
test_iter: 100
test_interval: 600
snapshot_prefix: "quick"
solver_mode: CPU
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One `speedo compare`: its folder's name and its arguments."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure of series that has to be at least so much."""

    title: str
    modes: tuple[str, ...]
    workers: tuple[int, ...]
    figure: str
    least: float


PARTS = {
    1: (
        Comparison("two_and_four", ("--workers", "2,4", "--epochs", "5", "--seeds", "3")),
        Comparison("three", ("--workers", "3", "--epochs", "5", "--seeds", "1")),
    ),
    2: (Comparison("quick", ("--workers", "2,4", "--epochs", "3", "--seeds", "2", "--tests", "0")),),
    3: (
        Comparison(
            "easgd",
            ("--modes", "easgd", "--workers", "2,4,8", "--epochs", "3", "--seeds", "1",
             "--sweep", "local_steps=1,5,10"),
        ),
    ),
}  # fmt: skip
BARS = {
    1: (
        Bar("epoch factor, sync", ("sync",), (2, 3, 4), "epoch_factor", 0.98),
        Bar("epoch factor, asynchronous", ASYNCHRONOUS, (2, 3, 4), "epoch_factor", 0.85),
        Bar("accuracy less sequential's", ("sync", "easgd", *ASYNCHRONOUS), (4,), "accuracy_gained", -POINTS),
    ),
    2: (
        Bar("speed-up, sync", ("sync",), (2,), "speedup", 1.85),
        Bar("speed-up, easgd", ("easgd",), (2,), "speedup", 1.9),
        Bar("speed-up, asynchronous", ASYNCHRONOUS, (2,), "speedup", 1.6),
        Bar("speed-up, sync and easgd", ("sync", "easgd"), (4,), "speedup", 3.2),
        Bar("speed-up, asynchronous", ASYNCHRONOUS, (4,), "speedup", 2.6),
    ),
    3: (),
}  # fmt: skip
TITLES = {
    1: "Epochs to equal loss, and accuracy: LeNet on Fashion-MNIST, batch 64",
    2: "Speed-up to equal loss: a net of CIFAR-10 quick's size on Fashion-MNIST",
    3: "easgd with 1, 5 and 10 local steps: LeNet on Fashion-MNIST",
}


def quick_solver(folder: Path) -> Path:
    """CIFAR-10 quick with the data of Fashion-MNIST, whose images are 1 x 28 x 28."""
    net = bundled_solver("cifar10_quick").with_name("train_test.prototxt").read_text()
    layers = re.split(r"(?m)^(?=layer \{)", net)[1:]
    body = [layer for layer in layers if 'type: "Data"' not in layer]
    data = [
        QUICK_DATA.format(phase=phase, folder=f"{phase.lower()}_lmdb")
        for phase in ("TRAIN", "TEST")
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train_test.prototxt").write_text('name: "quick"\n' + "".join([*data, *body]))
    solver = folder / "solver.prototxt"
    solver.write_text(QUICK_SOLVER)
    return solver


def value_of(row: dict[str, Any], figure: str, sequential: dict[str, Any]) -> float | None:
    """A figure of a series in compare.json; None if it is not known."""
    if figure == "accuracy_gained":
        both = row["accuracy"], sequential["accuracy"]
        return None if None in both else both[0] - both[1]
    found = row[figure]
    return None if found is None else float(found)


def held(
    bars: Sequence[Bar], series: Sequence[dict[str, Any]]
) -> list[tuple[str, str, str, str, str]]:
    """A row for each bar and series: title, series, figure, bar, whether it holds."""
    sequential = next(row for row in series if row["mode"] == "sequential")
    found = []
    for bar in bars:
        for row in series:
            if row["mode"] in bar.modes and row["workers"] in bar.workers:
                value = value_of(row, bar.figure, sequential)
                said = "not reached" if value is None else f"{value:.3f}"
                predicted = bar.figure == "speedup" and row["throughput_is"] == "predicted"
                said += " (throughput predicted)" if predicted else ""
                holds = value is not None and value >= bar.least
                found.append(
                    (bar.title, row["series"], said, f"{bar.least:g}", "yes" if holds else "NO")
                )
    return found


def figures_table(series: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The figures of all series, a row each."""
    heading = "/epochs to loss/epoch factor/images/s/throughput factor/speed-up/published/accuracy/not merged"
    table = [heading.replace("images/s", "images per s").split("/")]
    for row in series:
        marked = "p" if row["throughput_is"] == "predicted" else ""
        rate = row["images_per_s_predicted"] or row["images_per_s"]
        bound = row["epoch_factor_at_most"]
        factor = _spread(row, "epoch_factor") if bound is None else f"at most {bound:.2f}"
        results = row["merged"] + row["not_merged"]
        speedup = _spread(row, "speedup")
        table.append([
            row["series"], _said(row["epochs_to_loss"]), factor, f"{rate:,.0f}{marked}" if rate else "",
            _said(row["throughput_factor"]) + marked, speedup + marked * bool(speedup), row["published"],
            _said(row["accuracy"], ".4f"), f"{row['not_merged'] / results:.1%}" if results else "",
        ])  # fmt: skip
    return table


def _said(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def _spread(row: dict[str, Any], name: str) -> str:
    value, least, most = (row[key] for key in (name, f"{name}_least", f"{name}_most"))
    if value is None:
        return ""
    return f"{value:.2f}" if row["runs"] < 2 else f"{value:.2f} ({least:.2f} to {most:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.learning", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--part", type=int, choices=list(PARTS), required=True)
    parser.add_argument("--out", type=Path, default=Path("build/learning"), metavar="DIR")
    parser.add_argument(
        "--trial", action="store_true", help="a hundredth of the epochs, one seed: does it work"
    )
    parser.add_argument("--seeds", metavar="K", help="instead of the part's own number")
    parser.add_argument("--workers", metavar="N[,N...]", help="likewise, of its first comparison")
    asked = parser.parse_args()
    part: int = asked.part
    where = machine(busy_cores())
    folder = asked.out / f"{'trial' if asked.trial else 'part'}_{part}"
    target = (folder if asked.trial else RESULTS) / f"learning_{part}.md"
    solver = quick_solver(folder / "net") if part == 2 else bundled_solver("lenet")
    lines = [f"# {TITLES[part]}: `python -m bench.learning --part {part}`", "", f"{where}.", ""]
    status = 0
    others = ["--epochs", "0.03", "--seeds", "1"] if asked.trial else []
    others += ["--seeds", asked.seeds] if asked.seeds else []
    others += ["--workers", asked.workers] if asked.workers else []
    for comparison in PARTS[part][: 1 if asked.workers else None]:
        words = [str(solver), *comparison.arguments, "--out", str(folder / comparison.name)]
        words += others  # the last of an option counts
        done = subprocess.run([sys.executable, "-m", "speedo", "compare", *words], check=False)
        if done.returncode not in (0, 1):
            return done.returncode
        status |= done.returncode
        status |= _tell(part, comparison, others, folder, target, lines)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(target)
    return status


def _tell(
    part: int,
    comparison: Comparison,
    others: Sequence[str],
    folder: Path,
    target: Path,
    lines: list[str],
) -> int:
    """Add what a comparison has found to the page; 1 if a bar does not hold."""
    data = json.loads((folder / comparison.name / "compare.json").read_text())
    several = len(PARTS[part]) > 1
    picture = target.with_name(f"{target.stem}{f'_{comparison.name}' if several else ''}.png")
    shutil.copyfile(folder / comparison.name / "report.png", picture)
    window = data["window_images"] / data["records"]
    done, planned = data["runs_done"], data["runs_planned"]
    arguments = " ".join([*comparison.arguments, *others])
    about = (
        f"`speedo compare SOLVER {arguments}`: {done} of {planned} runs. Loss: the mean of the "
        f"training loss over {window:.2g} epochs. Figures are means over seeds (least to most); p: with throughput "
        "predicted for a machine with a core for each worker."
    )
    lines += [
        about,
        "",
        markdown(figures_table(data["series"])),
        "",
    ]
    rows = held(BARS[part], data["series"])
    if rows:
        table = [["bar", "run", "figure", "at least", "holds"], *map(list, rows)]
        lines += [markdown(table), ""]
        print(text(table), flush=True)
    lines += [f"![{TITLES[part]}]({picture.name})", ""]
    return int(any(row[-1] == "NO" for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped; the same command continues from here", file=sys.stderr)
        sys.exit(130)
