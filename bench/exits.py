"""How far apart published nets are in Caffe, OpenCV's importer and caffe-nets, and what is exported of them.

    python -m bench.exits [--nets lenet resnet50 ...] [--markdown]

Each net has its published size and random weights. `caffenets` exports it to ONNX and PyTorch; the outputs of all are
compared at batches of 1 and 7, of large nets 1 and 2, of the largest 1. Prints the largest difference of each, of the
largest value of an output. Status 1 if one is above 1e-5 without a reason that is kept beside the net, if the export
changed a weight, if Caffe ended, or if a number that was published is another one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from bench.support import table
from bench.support.machine import heading, status_of
from bench.support.runs import cores
from tests.support.published_nets.table import NETS, Entry, agrees

CLOSE: Final = 1e-5
JUDGES: Final = ("OpenCV", "caffenets", "ONNX", "PyTorch")
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ENDED: Final = 300  # characters of what a process said last


def verdict_of(name: str) -> dict[str, Any]:
    """What `bench.support.judges` says of this net, or `refused` with the reason."""
    command = [sys.executable, "-m", "bench.support.judges", name]
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        said = " ".join(done.stderr.split())
        return {"ended": f"status {done.returncode}: {said[-_ENDED:]}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def published(entry: Entry, verdict: dict[str, Any]) -> str:
    """Whether the counts are the published ones; empty where none are known."""
    pairs = ("parameters", entry.parameters), ("multiply_adds", entry.multiply_adds)
    known = [(agrees(verdict[name], figure), name, figure) for name, figure in pairs if figure]
    wrong = [f"no: {figure} {name.replace('_', '-')}" for is_so, name, figure in known if not is_so]
    return ", ".join(wrong) or ("yes" if known else "")


def problems_of(name: str, entry: Entry, verdict: dict[str, Any]) -> list[str]:
    """What makes the status 1."""
    if "ended" in verdict:
        return [f"{name}: {verdict['ended']}"]
    if "refused" in verdict:
        return []
    found = [f"{name}: {one}" for one in verdict.get("changed", ())]
    if published(entry, verdict).startswith("no"):
        found.append(f"{name}: published: {published(entry, verdict)}")
    for judge, away in verdict["worst"].items():
        if not isinstance(away, str) and not away <= CLOSE and judge not in entry.reasons:
            found.append(f"{name}: {judge} differs by {away:.1e}")
    return found


def row_of(name: str, entry: Entry, verdict: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The row of a net, and notes below the table."""
    if "worst" not in verdict:
        return [name, *[""] * (len(JUDGES) + 4)], [verdict.get("refused") or verdict["ended"]]
    notes, cells = list(verdict["remarks"]), []
    for judge in JUDGES:
        away = verdict["worst"].get(judge, "")
        if not isinstance(away, str):
            cells.append(f"{away:.1e}")
        else:
            cells.append("no" if away else "")
            notes += [f"{judge}: {away}"] if away else []
    if verdict["reference"] != "Caffe":
        notes.append(f"compared with caffenets: pycaffe has {verdict['caffe']}")
        cells[1] = "-"
    notes += [f"{judge}: {reason}" for judge, reason in entry.reasons.items()]
    counts = [f"{verdict[key]:,}" for key in ("parameters", "multiply_adds")]
    batches = " and ".join(map(str, verdict["batches"]))
    return [name, *counts, published(entry, verdict), batches, *cells], notes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.exits", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS), metavar="NET")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    asked = parser.parse_args(arguments)
    _, say = heading("bench.exits")
    rows = [["net", "parameters", "multiply-adds", "as published", "batch", *JUDGES]]
    notes, problems = [], list[str]()
    with ThreadPoolExecutor(cores()) as pool:
        for name, verdict in zip(asked.nets, pool.map(verdict_of, asked.nets), strict=True):
            row, own = row_of(name, NETS[name], verdict)
            rows.append(row)
            notes += [f"- {name}: {note}" for note in own]
            problems += problems_of(name, NETS[name], verdict)
            say(", ".join(filter(None, row)))
    print("", (table.markdown if asked.markdown else table.text)(rows), "", *notes, sep="\n")
    return status_of(problems)


if __name__ == "__main__":
    sys.exit(main())
