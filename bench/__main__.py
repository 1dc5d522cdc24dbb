"""Throughput of every mode beside sequential and free-running Caffe, in one run on this machine.

    python -m bench [--rounds 5] [--local-steps 1 10] [--variant NAME=OPTIONS] [--markdown] [--json FILE]

Progress goes to standard error, tables to standard output. bench/results/throughput.md says what they mean.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path

from bench.support import table
from bench.support.arguments import rounds, seconds, whole
from bench.support.machine import Clock, busy_cores, machine, status_of, told_busy
from bench.support.processes import end_by_signals
from bench.support.runs import LEAST_TURNS, cores
from bench.support.throughput import AS_IT_IS, MODES, Round, Settings, Variant, measure_net, rows_of
from tests.support.bundled_nets import SHAPES, Bench


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--nets", nargs="+", choices=list(SHAPES), default=["lenet", "cifar10_full"]
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--workers", type=whole, default=2, metavar="N")
    parser.add_argument("--local-steps", nargs="+", type=whole, default=[1], metavar="N")
    parser.add_argument(
        "--seconds", type=seconds, default=4.0, metavar="S", help="of training each"
    )
    parser.add_argument(
        *("--rounds", "--repeats"), type=whole, default=5, metavar="N", help="medians are printed"
    )
    parser.add_argument(
        "--turns", type=whole, default=LEAST_TURNS, metavar="N", help="of each worker, at least"
    )
    parser.add_argument(
        "--threads", type=whole, default=1, metavar="N", help="of BLAS, of each process"
    )
    parser.add_argument(
        "--whole-only", action="store_true", help="leave out sync with the batch divided"
    )
    parser.add_argument(
        "--variant",
        action="append",
        type=_variant,
        default=[],
        metavar="NAME=OPTIONS",
        help="measure every mode also with these options of speedo train; may be repeated",
    )
    parser.add_argument(
        "--around",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare each mode with free-running processes right before and right after it, not once a round",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="tables as Markdown, as in bench/results"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every single figure here too"
    )
    return parser.parse_args()


def _variant(text: str) -> Variant:
    name, equals, options = text.partition("=")
    if not (name and equals and options) or name.startswith("-"):
        raise argparse.ArgumentTypeError("use NAME=OPTIONS, as in 'tau4=--local-steps 4'")
    return Variant(name, tuple(shlex.split(options)))


def main() -> int:
    asked = arguments()
    end_by_signals()
    busy = busy_cores()
    say = Clock()
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    if asked.markdown:
        print(f"<!-- begin: python -m bench -->\n\n`{command}`: {machine(busy)}.", flush=True)
    else:
        print(machine(busy), flush=True)
    told_busy(busy, say)
    settings = Settings(
        asked.workers,
        asked.seconds,
        asked.rounds,
        tuple(dict.fromkeys(asked.local_steps)),
        tuple(dict.fromkeys(asked.modes)),
        (AS_IT_IS, *asked.variant),
        not asked.whole_only,
        asked.turns,
        asked.around,
        asked.threads,
    )
    everything: dict[str, list[Round]] = {}
    failures: list[str] = []
    if asked.json is not None:  # a file that cannot be written is told now, not after the work
        _write_json(asked.json, command, machine(busy), everything)
    with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
        for name in dict.fromkeys(asked.nets):
            net = Bench.make(name, Path(folder) / name)
            everything[name], failed = measure_net(net, settings, say)
            failures += failed
            title = (
                f"{name}, {_workers(settings)}, local steps {_listed(settings.local_steps)}: "
                f"medians of {rounds(settings.repeats)} of {settings.seconds:g} s"
            )
            if asked.markdown:
                title = f"**{title}**"
            write = table.markdown if asked.markdown else table.text
            rows = rows_of(net.batch, settings)
            print(f"\n{table.report(title, rows, everything[name], write, cores())}", flush=True)
            if asked.json is not None:
                _write_json(asked.json, command, machine(busy), everything)
    if asked.markdown:
        print("\n<!-- end: python -m bench -->")
    return status_of(failures)


def _workers(settings: Settings) -> str:
    each = f" with {settings.threads} threads each" if settings.threads > 1 else ""
    return f"{settings.workers} workers{each}"


def _listed(numbers: tuple[int, ...]) -> str:
    return " and ".join(map(str, numbers))


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
