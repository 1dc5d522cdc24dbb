"""Every mode, LeNet on Fashion-MNIST for one epoch: the accuracy reported, and that of a plain pycaffe script.

    python -m bench.accuracy [--workers 2 4] [--modes sync easgd ...] [--compress none int8 topk:0.01 int8/bfloat16 ...]

Prints a line per run; ends with status 1 if a run is below its bar or the two accuracies differ. What is compressed is
what `--compress` of speedo takes, after a slash the form of centers, and after `@` one option more, as in
`none@overlap=all`. With `--repeats`, each run once for
every seed, the lines after them have medians; the last column is the median of the points that a run with
compression lacks of the one without, of the same seed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.support.runs import plain_terms, result_of
from bench.wire import codec_options
from speedo.exchange.codecs import is_fraction

EPOCH = 938  # iterations of 64 samples: 60,000 records
BARS = {
    "sync": 0.84,
    "async": 0.82,
    "partial": 0.82,
    "weed-out": 0.82,
    "hybrid": 0.82,
    "easgd": 0.80,
}
PHASES = ["--phase", "sync:300", "--phase", "async:300"]
POINTS = 0.5  # that a compression may cost

# A user's own script: nothing of SpeeDO in it but where the data lies.
SCORE = """
import os, sys
os.environ["GLOG_minloglevel"] = "2"
import caffe
net = caffe.Net(sys.argv[1], sys.argv[2], caffe.TEST)
print(sum(float(net.forward()["accuracy"]) for _ in range(100)) / 100)
"""


def plain_score(model: Path) -> float:
    """Accuracy of a model over the 10,000 test images, by pycaffe alone."""
    from speedo.data.roots import default_data_root
    from speedo.engines.solver.bundled import bundled_solver

    net = bundled_solver("lenet").with_name("train_test.prototxt")
    answer = subprocess.run(
        [sys.executable, "-c", SCORE, str(net), str(model)],
        cwd=default_data_root(),
        env={**os.environ, **plain_terms()},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(answer.stdout)


def train(mode: str, workers: int, run_dir: Path, *options: str) -> dict[str, Any]:
    """Run the command and return its result."""
    command = [
        sys.executable, "-m", "speedo", "train", "--mode", mode, "--workers", str(workers),
        "--max-iter", str(EPOCH), "--test-interval", "0", "--run-dir", str(run_dir),
    ]  # fmt: skip
    command += PHASES if mode == "hybrid" else []
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{mode}, {workers} workers: status {done.returncode}\n{done.stderr}")
    return result_of(run_dir)


def options_of(compress: str, seed: int) -> list[str]:
    """The options of `speedo train` for a compression as it is written here."""
    return [*codec_options(compress), "--seed", str(seed)]


def is_refused(mode: str, compress: str) -> bool:
    """What speedo refuses."""
    overlaps = "@overlap" in compress and mode not in ("async", "easgd")
    return overlaps or (mode == "easgd" and is_fraction(compress))


def points_lost(plain: list[float], compressed: list[float]) -> float:
    """Median of the differences, pair by pair, in points."""
    pairs = zip(plain, compressed, strict=True)
    return statistics.median(100 * (without - having) for without, having in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=list(BARS), default=list(BARS))
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--compress", nargs="+", default=["none"], metavar="HOW")
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    failed = False
    print(
        f"{'mode':10} {'workers':>7} {'compress':14} {'accuracy':>9} {'plain':>9} {'bar':>5} {'images/s':>9} "
        f"{'seconds':>8} {'MB':>8}"
    )
    found: dict[tuple[str, int, str], list[float]] = {}
    for seed in range(1, arguments.repeats + 1):
        for workers in arguments.workers:
            for mode in arguments.modes:
                for compress in arguments.compress:
                    if not is_refused(mode, compress):
                        accuracy, good = measure(mode, workers, compress, seed)
                        found.setdefault((mode, workers, compress), []).append(accuracy)
                        failed |= not good
    if arguments.repeats > 1 or len(arguments.compress) > 1:
        failed |= not summary(found)
    sys.exit(1 if failed else 0)


def measure(mode: str, workers: int, compress: str, seed: int) -> tuple[float, bool]:
    """Run, print a line; the accuracy, and whether it is as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(mode, workers, Path(folder) / "run", *options_of(compress, seed))
        plain = plain_score(Path(folder) / "run" / "model.caffemodel")
    accuracy = float(result["accuracy"])
    moved = result["bytes_pushed"] + result["bytes_pulled"]
    good = accuracy == plain and accuracy >= BARS[mode]
    print(
        f"{mode:10} {workers:7} {compress:14} {accuracy:9.4f} {plain:9.4f} {BARS[mode]:5.2f} "
        f"{result['images_per_s']:9.0f} {result['seconds']:8.1f} {moved / 1e6:8.0f}"
        f"{'' if good else '  FAILED'}",
        flush=True,
    )
    return accuracy, good


def summary(found: dict[tuple[str, int, str], list[float]]) -> bool:
    """Print the medians; whether no compression costs more than its points."""
    good = True
    print(f"\n{'mode':10} {'workers':>7} {'compress':14} {'accuracy':>9} {'points lost':>12}")
    for (mode, workers, compress), accuracies in found.items():
        plain, lost = found.get((mode, workers, "none")), ""
        if plain is not None and compress != "none":
            points = points_lost(plain, accuracies)
            lost = f"{points:+.2f}"
            if points > POINTS:
                good, lost = False, f"{lost}  FAILED"
        median = statistics.median(accuracies)
        print(f"{mode:10} {workers:7} {compress:14} {median:9.4f} {lost:>12}")
    return good


if __name__ == "__main__":
    main()
