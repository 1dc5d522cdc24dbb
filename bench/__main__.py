"""Throughput of every mode beside sequential and free-running Caffe, in one run on this machine.

    python -m bench [--repeats 5] [--markdown] [--json FILE]

Progress goes to standard error, tables to standard output. docs/performance.md says what they mean.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench import table
from bench.nets import SHAPES, Bench
from bench.processes import end_by_signals
from bench.throughput import MODES, Round, Settings, cores, measure_net, rows_of

BUSY = 1.0  # load average from which figures are worthless


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--nets", nargs="+", choices=list(SHAPES), default=["lenet", "cifar10_full"]
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--workers", type=_whole, default=2, metavar="N")
    parser.add_argument("--local-steps", type=_whole, default=1, metavar="N")
    parser.add_argument(
        "--seconds", type=_seconds, default=4.0, metavar="S", help="of training each"
    )
    parser.add_argument(
        "--repeats", type=_whole, default=3, metavar="N", help="rounds; medians are printed"
    )
    parser.add_argument("--markdown", action="store_true", help="tables for docs/performance.md")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every single figure here too"
    )
    return parser.parse_args()


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("use 1 or more")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 1 <= number <= 3600:
        raise argparse.ArgumentTypeError("use 1 to 3600")
    return number


def machine(load: float) -> str:
    """What the figures depend on, in one line."""
    return (
        f"{cores()} cores, {_processor()}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"load average {load:.2f} at the start"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> int:
    asked = arguments()
    end_by_signals()
    load = os.getloadavg()[0]
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", file=sys.stderr, flush=True)

    command = " ".join(["python -m bench", *sys.argv[1:]])
    if asked.markdown:
        print(f"<!-- begin: python -m bench -->\n\n`{command}`: {machine(load)}.", flush=True)
    else:
        print(machine(load), flush=True)
    if load > BUSY:
        warning = f"The load average was {load:.2f}, above {BUSY:g}: the machine was busy, the figures are worthless."
        print(f"\n{warning}", flush=True)
        say(warning)
    settings = Settings(
        asked.workers,
        asked.seconds,
        asked.repeats,
        asked.local_steps,
        tuple(dict.fromkeys(asked.modes)),
    )
    everything: dict[str, list[Round]] = {}
    failures: list[str] = []
    if asked.json is not None:  # a file that cannot be written is told now, not after the work
        _write_json(asked.json, command, machine(load), everything)
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        for name in dict.fromkeys(asked.nets):
            net = Bench.make(name, Path(folder) / name)
            everything[name], failed = measure_net(net, settings, say)
            failures += failed
            title = (
                f"{name}, {settings.workers} workers, local steps {settings.local_steps}: "
                f"medians of {_rounds(settings.repeats)} of {settings.seconds:g} s"
            )
            if asked.markdown:
                title = f"**{title}**"
            write = table.markdown if asked.markdown else table.text
            rows = rows_of(net.batch, settings)
            print(f"\n{table.report(title, rows, everything[name], write, cores())}", flush=True)
            if asked.json is not None:
                _write_json(asked.json, command, machine(load), everything)
    if asked.markdown:
        print("\n<!-- end: python -m bench -->")
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


def _write_json(path: Path, command: str, where: str, everything: dict[str, list[Round]]) -> None:
    nets = {name: table.plain(rounds) for name, rounds in everything.items()}
    whole = {"command": command, "machine": where, "nets": nets}
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)
