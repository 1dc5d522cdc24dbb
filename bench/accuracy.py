"""Every mode, LeNet on Fashion-MNIST for one epoch: the accuracy reported, and that of a plain pycaffe script.

    python -m bench.accuracy [--workers 2 4] [--modes sync easgd ...]

Prints a line per run; ends with status 1 if a run is below its bar or the two accuracies differ.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

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
    from speedo.bundled import bundled_solver
    from speedo.data import default_data_root

    net = bundled_solver("lenet").with_name("train_test.prototxt")
    answer = subprocess.run(
        [sys.executable, "-c", SCORE, str(net), str(model)],
        cwd=default_data_root(),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(answer.stdout)


def train(mode: str, workers: int, run_dir: Path, *options: str) -> dict[str, object]:
    """Run the command and return its `result.json`."""
    command = [
        sys.executable, "-m", "speedo", "train", "--mode", mode, "--workers", str(workers),
        "--max-iter", str(EPOCH), "--test-interval", "0", "--run-dir", str(run_dir),
    ]  # fmt: skip
    command += PHASES if mode == "hybrid" else []
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{mode}, {workers} workers: status {done.returncode}\n{done.stderr}")
    result: dict[str, object] = json.loads((run_dir / "result.json").read_text())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=list(BARS), default=list(BARS))
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    arguments = parser.parse_args()
    failed = False
    print(
        f"{'mode':10} {'workers':>7} {'accuracy':>9} {'plain':>9} {'bar':>5} {'images/s':>9} {'seconds':>8}"
    )
    for workers in arguments.workers:
        for mode in arguments.modes:
            with tempfile.TemporaryDirectory() as folder:
                result = train(mode, workers, Path(folder) / "run")
                plain = plain_score(Path(folder) / "run" / "model.caffemodel")
            accuracy = float(str(result["accuracy"]))
            good = accuracy == plain and accuracy >= BARS[mode]
            failed |= not good
            print(
                f"{mode:10} {workers:7} {accuracy:9.4f} {plain:9.4f} {BARS[mode]:5.2f} "
                f"{float(str(result['images_per_s'])):9.0f} {float(str(result['seconds'])):8.1f}"
                f"{'' if good else '  FAILED'}",
                flush=True,
            )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
