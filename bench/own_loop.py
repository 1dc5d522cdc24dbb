"""A PyTorch script of the user's: `speedo run` beside DistributedDataParallel (gloo), in turns.

    python -m bench.own_loop [--model lenet] [--rounds 5] [--seconds 5] [--workers 2] [--markdown]

The same LeNet or small GPT, batch per process, optimizer and loader, one thread per process. Prints medians of the
samples/s of all processes together, and ratios taken within a round. Status 1 if a measurement failed.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.support import table
from bench.support.arguments import parser_for, seconds, whole
from bench.support.machine import heading
from bench.support.processes import end_by_signals

SCRIPT = Path(__file__).with_name("support") / "own_loop_script.py"
DDP = "DistributedDataParallel"
RUNS = {
    "sync": ("--mode", "sync"),
    "easgd, 10 local steps": ("--mode", "easgd", "--local-steps", "10"),
    "async, 10 local steps": ("--mode", "async", "--local-steps", "10"),
}
WAIT_S = 300


def main() -> int:
    """Measure in turns and print the table."""
    parser = parser_for("bench.own_loop", __doc__ or "")
    parser.add_argument("--model", choices=("lenet", "gpt"), default="lenet")
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S")
    parser.add_argument("--workers", type=whole, default=2, metavar="N")
    asked = parser.parse_args()
    end_by_signals()
    _, say = heading("bench.own_loop")
    found: dict[str, list[float]] = {name: [] for name in (DDP, *RUNS)}
    for number in range(asked.rounds):
        for name in found:
            with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
                options = ["--model", asked.model, "--seconds", str(asked.seconds)]
                rate = _rate(name, asked.workers, options, Path(folder))
            found[name].append(rate)
            say(f"round {number + 1}: {name}: {rate:,.0f} samples/s")
    lines = [["", "samples/s", f"of {DDP}", "least to most"]]
    for name, rates in found.items():
        ratios = [one / base for one, base in zip(rates, found[DDP], strict=True)]
        lines.append(
            [
                name,
                f"{statistics.median(rates):,.0f}",
                f"{statistics.median(ratios):.3f}",
                f"{min(ratios):.3f} to {max(ratios):.3f}",
            ]
        )
    print((table.markdown if asked.markdown else table.text)(lines))
    return 0


def _rate(name: str, workers: int, options: list[str], scratch: Path) -> float:
    """Images/s of all processes together."""
    if name == DDP:
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, str(SCRIPT), *options),
                    *("--ddp", str(rank), str(workers), str(scratch / "meeting")),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(workers)
        ]
        said = [process.communicate(timeout=WAIT_S)[0] for process in processes]
    else:
        run = ["run", "--workers", str(workers), "--run-dir", str(scratch / "run"), *RUNS[name]]
        subprocess.run(
            [sys.executable, "-m", "speedo", *run, str(SCRIPT), *options],
            timeout=WAIT_S,
            check=True,
            capture_output=True,
        )
        logs = sorted((scratch / "run" / "logs").glob("worker-*.log"))
        said = [log.read_text() for log in logs]
    rates = [
        float(rate) for text in said for rate in re.findall(r"^samples/s ([0-9.]+)$", text, re.M)
    ]
    if len(rates) != workers:
        raise SystemExit(f"{name}: {len(rates)} of {workers} processes said their rate: {said}")
    return sum(rates)


if __name__ == "__main__":
    sys.exit(main())
