"""Accuracy of runs that are killed at half and resumed, beside unbroken ones with the same seeds.

    python -m bench.resume [--modes sync async easgd] [--seeds 1 2 3]

LeNet on Fashion-MNIST, one epoch, two workers. The whole process group is killed (SIGKILL) once half of the
iterations are merged; `--resume` continues from the last checkpoint, at most two seconds older. Status 1 if a mean of
resumed runs lies further below the mean of unbroken ones than these lie from each other (greatest minus least).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from bench.support.processes import MARK, child
from bench.support.runs import result_of
from bench.support.timed import Follower

EPOCH = 938  # iterations of 64 samples: 60,000 records
LONGEST_S = 3600.0


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "speedo", "train", *words]


def options(mode: str, seed: int, folder: Path) -> list[str]:
    return [
        "--mode", mode, "--workers", "2", "--seed", str(seed), "--max-iter", str(EPOCH), "--test-interval", "0",
        "--checkpoint-interval", "2", "--run-dir", str(folder),
    ]  # fmt: skip


def unbroken(mode: str, seed: int, folder: Path) -> float:
    """Accuracy of a run that is left in peace."""
    subprocess.run(command(*options(mode, seed, folder)), check=True, capture_output=True)
    return float(result_of(folder)["accuracy"])


def broken(mode: str, seed: int, folder: Path) -> tuple[float, int, int]:
    """Accuracy of a run that is killed at half and resumed; the iterations of the kill and of the checkpoint."""
    mark = os.urandom(8).hex()
    follower, words = Follower(folder), command(*options(mode, seed, folder))
    with (
        (folder.parent / "broken.log").open("w") as log,
        child(words, log=log, environment={MARK: mark}) as process,
    ):
        follower.wait(process, lambda: follower.iteration >= EPOCH // 2, LONGEST_S)
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if one.environ().get(MARK) == mark:
                    one.kill()
    done = subprocess.run(
        command("--resume", str(folder)), check=True, capture_output=True, text=True
    )
    said = next(line for line in done.stderr.splitlines() if line.startswith("resumed at"))
    return float(result_of(folder)["accuracy"]), follower.iteration, int(said.split()[3])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=["sync", "async", "easgd"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parser.parse_args()
    failed = False
    for mode in arguments.modes:
        whole, resumed = [], []
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as home:
                whole.append(unbroken(mode, seed, Path(home) / "whole"))
                accuracy, kill, kept = broken(mode, seed, Path(home) / "broken")
                resumed.append(accuracy)
            print(
                f"{mode:6} seed {seed}: unbroken {whole[-1]:.4f}; killed at {kill}, resumed at {kept}: {accuracy:.4f}",
                flush=True,
            )
        spread = max(whole) - min(whole)
        apart = statistics.mean(resumed) - statistics.mean(whole)
        bad = -apart > spread
        failed |= bad
        print(f"{mode:6} means {apart:+.4f} apart, seeds {spread:.4f}{': FAILED' if bad else ''}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
