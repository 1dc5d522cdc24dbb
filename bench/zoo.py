"""Scripts of the public kinds: what they cost to distribute, whether the result is one process's, beside other systems.

    python -m bench.zoo [--scripts mnist_conv ...] [--steps 50] [--learning 200] [--accelerate PYTHON] [--markdown]

Of each script in `tests/scripts`: the lines that speedo, DistributedDataParallel and Accelerate change; how far the
weights of two workers with batches of 8 in `sync` lie from those of one process with batches of 16, of the largest
weight, or that the script is refused before its first step; the same of the others where a script of theirs is kept;
whether each record was trained once; seconds of the whole commands; and what the scripts print at last after more steps
in `async` and `easgd`. Status 1 if a difference is above 1e-5, a record is trained not once, more than five lines are
changed, or a run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.support import script_forms, table
from bench.support.arguments import whole
from bench.support.machine import heading, status_of
from bench.support.processes import end_by_signals

CLOSE: Final = 1e-5
MOST_LINES: Final = 5
WHOLE, PART = 16, 8  # the batch of one process, and of each of two workers
# Gradients that are rounded to bfloat16 are compared with those of one process that adds up two batches of 8.
IN_PARTS: Final = ("mixed_precision",)
# With BatchNorm each worker has statistics of its own: compared with one process in which each half of a batch has.
OWN_STATISTICS: Final = ("resnet_bn", "dcgan")
BATCHES_PER_STEP: Final = {"small_gpt": 2, "wgan": 3}
MODES: Final = {
    "sync": ("--mode", "sync"),
    "async": ("--mode", "async", "--local-steps", "4"),
    "easgd": ("--mode", "easgd", "--local-steps", "4"),
}
HEADING: Final = (
    "", "lines: speedo", "DDP", "Accelerate", "apart: speedo", "DDP", "Accelerate", "records once",
    "s: one process", "speedo", "DDP", "at last: one process", "async", "easgd",
)  # fmt: skip
WAIT_S: Final = 300.0
Weights = dict[str, np.ndarray[Any, Any]]
_HALVES: Final = Path(__file__).with_name("support") / "own_statistics.py"
_FIGURE: Final = re.compile(r"^(loss|accuracy|reward) (\S+)$", re.M)
_ALONE: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "GLOO_SOCKET_IFNAME": "lo",
}


@dataclass
class Done:
    """What came of a script: its last figure, its weights by name, seconds, and what went wrong."""

    figure: str = ""
    weights: Weights = field(default_factory=dict)
    seconds: float = 0.0
    problem: str = ""
    remark: str = ""
    is_refused: bool = False  # nothing was trained
    is_once: bool = True  # each record was trained once


def main() -> int:
    """Try all scripts, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.zoo", description=(__doc__ or "").splitlines()[0]
    )
    names = script_forms.names()
    parser.add_argument("--scripts", nargs="+", choices=names, default=names, metavar="SCRIPT")
    parser.add_argument("--steps", type=whole, default=50, metavar="N", help="that are compared")
    parser.add_argument("--learning", type=whole, default=200, metavar="N", help="steps of a mode")
    parser.add_argument("--accelerate", metavar="PYTHON", help="an interpreter that has Accelerate")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    asked = parser.parse_args()
    end_by_signals()
    os.environ.update(_ALONE)
    _, say = heading("bench.zoo")
    rows = [list(HEADING)]
    notes, problems = list[str](), list[str]()
    for name in asked.scripts:
        with tempfile.TemporaryDirectory(prefix="speedo-bench-") as folder:
            row, own, wrong = row_of(name, asked, Path(folder))
        rows.append(row)
        notes += [f"- {name}: {note}" for note in own]
        problems += [f"{name}: {problem}" for problem in wrong]
        say(", ".join(filter(None, [*row, *own, *wrong])))
    print("", (table.markdown if asked.markdown else table.text)(rows), "", *notes, sep="\n")
    return status_of(problems)


def row_of(
    name: str, asked: argparse.Namespace, scratch: Path
) -> tuple[list[str], list[str], list[str]]:
    """The row of this script, notes below the table, and what is wrong."""
    alone = one_process(name, asked.steps, scratch)
    ddp = by_peer(name, "ddp", sys.executable, asked.steps, scratch)
    accelerate = None
    if asked.accelerate:
        accelerate = by_peer(name, "accelerate", asked.accelerate, asked.steps, scratch)
    runs = {
        mode: with_speedo(name, mode, asked.steps if mode == "sync" else asked.learning, scratch)
        for mode in MODES
    }
    longer = one_process(name, asked.learning, scratch)
    sync, lines = runs["sync"], script_forms.changed(name)
    problems = [f"{lines} lines are changed"] * (lines > MOST_LINES)
    for what, done in {"one process": alone, "DDP": ddp, "Accelerate": accelerate}.items():
        if done is not None and done.problem:
            problems.append(f"{what}: {done.problem}")
    problems += [
        f"{mode}: {done.problem}"
        for mode, done in runs.items()
        if done.problem and not (mode == "sync" and done.is_refused)
    ]
    away = difference(sync.weights, alone.weights)
    if not (sync.is_refused or away <= CLOSE):
        problems.append(f"sync differs by {away:.1e}")
    shares = "run.share(" in (script_forms.SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    not_once = [mode for mode, done in runs.items() if not (done.is_refused or done.is_once)]
    if shares and not_once:
        problems.append(f"not each record was trained once in {' and '.join(not_once)}")
    notes = [f"refused: {sync.problem}"] if sync.is_refused else []
    notes += [done.remark for done in runs.values() if done.remark]
    if name in OWN_STATISTICS:
        notes.append(
            "compared with one process in which each half of a batch has own statistics; the others' halves are others"
        )
    elif name in IN_PARTS:
        notes.append(
            "compared with one process that adds up the gradients of two batches of 8; the others have others"
        )
    return (
        [
            name,
            str(lines),
            *(_lines(name, peer) for peer in ("ddp", "accelerate")),
            "refused" if sync.is_refused else f"{away:.1e}",
            *(_away(name, one, alone) for one in (ddp, accelerate)),
            ("no" if not_once else "yes") if shares else "",
            *("" if one is None else f"{one.seconds:.1f}" for one in (alone, sync, ddp)),
            longer.figure,
            *(runs[mode].figure.rpartition(" ")[2] for mode in ("async", "easgd")),
        ],
        notes,
        problems,
    )


def difference(ours: Weights, theirs: Weights) -> float:
    """The largest difference of a weight, of the largest weight; infinite if they have other names."""
    if ours.keys() != theirs.keys() or not ours:
        return float("inf")
    apart = max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)
    return apart / max(float(np.abs(one).max()) for one in theirs.values())


# ---------------------------------------------------------------- runs


def one_process(name: str, steps: int, scratch: Path) -> Done:
    """The script before it was changed."""
    in_parts = name in IN_PARTS
    script, file = scratch / f"{name}.py", _weights_file(name, scratch / f"alone-{steps}")
    before = _HALVES.read_text("utf-8") if name in OWN_STATISTICS else ""
    script.write_text(before + script_forms.plain(name), encoding="utf-8")
    words = [str(PART if in_parts else WHOLE), str(steps), str(file), *["2"] * in_parts]
    return _run([sys.executable, str(script), *words], file)


def by_peer(name: str, peer: str, python: str, steps: int, scratch: Path) -> Done | None:
    """By two processes that torchrun starts; None where no such script is kept."""
    text = script_forms.by_peer(name, peer)
    if text is None:
        return None
    script, file = scratch / f"{name}_{peer}.py", scratch / f"{peer}.pt"
    script.write_text(text, encoding="utf-8")
    batch = WHOLE if peer == "accelerate" else PART  # it divides the batch of its loader
    start = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return _run([*start, str(script), str(batch), str(steps), str(file)], file)


def with_speedo(name: str, mode: str, steps: int, scratch: Path) -> Done:
    """By two workers of `speedo run`."""
    folder, script = scratch / mode, script_forms.SCRIPTS / f"{name}.py"
    file = script_forms.saved_by(name, folder)
    words = [str(PART), str(steps), *[str(file)] * (file.parent != folder)]
    run = ["run", "--workers", "2", "--run-dir", str(folder), *MODES[mode], str(script), *words]
    done = _run([sys.executable, "-m", "speedo", *run], file)
    log, metrics = folder / "logs" / "worker-0.log", folder / "metrics.jsonl"
    said = log.read_text(encoding="utf-8") if log.exists() else ""
    done.figure = _figure(said)
    if not (done.figure or done.problem):
        last = (said.strip().splitlines() or ["nothing"])[-1]
        done.remark = f"{mode} has no figure; worker 0 said last: {last}"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    merged = [one for one in map(json.loads, lines) if one.get("decision") == "merged"]
    done.is_refused = bool(done.problem) and not merged
    trained = Counter(
        (epoch, place)
        for one in merged
        for epoch, start, stop in one.get("records") or ()
        for place in range(start, stop)
    )
    records = WHOLE * steps * BATCHES_PER_STEP.get(name, 1)
    done.is_once = len(trained) == trained.total() == records
    return done


def _run(words: list[str], file: Path) -> Done:
    began = time.monotonic()
    try:
        ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        return Done(problem=f"still running after {WAIT_S:g} s")
    done = Done(_figure(ended.stdout), seconds=time.monotonic() - began)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        done.problem = f"status {ended.returncode}: {last}"
    elif not file.exists():
        done.problem = f"it did not write {file.name}"
    else:
        done.weights = read_weights(file)
    return done


# ---------------------------------------------------------------- what is seen


def read_weights(file: Path) -> Weights:
    """By name, as float64; without counters, as BatchNorm's."""
    if file.suffix == ".npz":
        with np.load(file) as saved:
            return {name: saved[name].astype(np.float64) for name in saved}
    import torch

    saved = torch.load(file)
    if all(isinstance(one, dict) for one in saved.values()):  # of several models, by name
        saved = {f"{of}.{name}": one for of, state in saved.items() for name, one in state.items()}
    return {name: one.double().numpy() for name, one in saved.items() if one.is_floating_point()}


def _weights_file(name: str, stem: Path) -> Path:
    return stem.with_suffix(".npz" if name.startswith("numpy") else ".pt")


def _figure(said: str) -> str:
    found = _FIGURE.findall(said)
    return " ".join(found[-1]) if found else ""


def _lines(name: str, peer: str) -> str:
    text = script_forms.by_peer(name, peer)
    return "" if text is None else str(script_forms.differing(script_forms.plain(name), text))


def _away(name: str, peer: Done | None, alone: Done) -> str:
    if peer is None or name in (*OWN_STATISTICS, *IN_PARTS):
        return ""
    return f"{difference(peer.weights, alone.weights):.1e}"


if __name__ == "__main__":
    sys.exit(main())
