"""LeNet on Fashion-MNIST split by `speedo data split`, `--data-share own`, against one database that all have, `shard`.

    python -m bench.data_share [--seeds 1 2 3] [--mode sync]

As root. A master and two workers are hosts of their own, network namespaces joined by a bridge; one epoch each. The
records are shuffled by the seed, for both alike, because their order alone moves the accuracy of one epoch by half a
point. `shard` deals them out in turn, the parts for `own` are blocks: workers read other records. Prints a line for
each seed; ends with status 1 if the medians are further apart than half a point.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.support.runs import result_of
from tests.support.network import Host, network

EPOCH = 938  # iterations of 64 samples: 60,000 records
POINTS = 0.5
WAIT_S = 600
SOURCE = "fashion-mnist/train_lmdb"  # as the bundled LeNet names it


def speedo(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "speedo", *arguments], check=True, stdout=subprocess.DEVNULL
    )


def accuracy(hosts: list[Host], folder: Path, name: str, roots: list[Path], *options: str) -> float:
    """Of a run by these options, whose workers have their data under these roots."""
    chief, *others = hosts
    run = folder / name
    commands = [
        (chief, "master", "--host", chief.address, "--workers", str(len(others)), "--max-iter", str(EPOCH),
         "--test-interval", "0", "--run-dir", str(run), "--data-root", str(folder), *options),
        *((host, "worker", "--master", chief.address, "--data-root", str(root))
          for host, root in zip(others, roots, strict=True)),
    ]  # fmt: skip
    environment = {**os.environ, "SPEEDO_TOKEN_FILE": str(folder / "token")}
    started = [
        subprocess.Popen(
            [*host.inside, sys.executable, "-m", "speedo", *arguments],
            env=environment,
            cwd=folder / "elsewhere",  # relative paths are searched here before the data root
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host, *arguments in commands
    ]
    for process in started:
        _, errors = process.communicate(timeout=WAIT_S)
        if process.returncode != 0:
            raise SystemExit(f"{process.args!r} failed:\n{errors}")
    return float(result_of(run)["accuracy"])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.data_share", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--mode", default="sync")
    asked = parser.parse_args()
    found: dict[str, list[float]] = {"shard": [], "own": []}
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as name, network(3) as hosts:
        folder = Path(name)
        (folder / "elsewhere").mkdir()
        speedo("data", "fashion-mnist", str(folder / "fashion-mnist"))
        for seed in asked.seeds:
            whole, halves = folder / f"whole-{seed}", folder / f"halves-{seed}"
            for made, parts in ((whole, "1"), (halves, "2")):
                speedo(
                    *(
                        "data",
                        "split",
                        str(folder / SOURCE),
                        str(made),
                        "--parts",
                        parts,
                        "--as",
                        SOURCE,
                    ),
                    *("--order", "blocks", "--shuffle", "--seed", str(seed)),
                )
            for share, roots in (
                ("shard", [whole / "part-0"] * 2),
                ("own", [halves / "part-0", halves / "part-1"]),
            ):
                options = ("--mode", asked.mode, "--seed", str(seed), "--data-share", share)
                found[share].append(accuracy(hosts, folder, f"{share}-{seed}", roots, *options))
            latest = ", ".join(f"{share} {values[-1]:.4f}" for share, values in found.items())
            print(f"seed {seed}: {latest}", flush=True)
    medians = {share: statistics.median(values) for share, values in found.items()}
    apart = 100 * abs(medians["own"] - medians["shard"])
    print(
        f"medians: shard {medians['shard']:.4f}, own {medians['own']:.4f}: {apart:.2f} points apart"
    )
    return int(apart > POINTS)


if __name__ == "__main__":
    sys.exit(main())
