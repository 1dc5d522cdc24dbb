"""Builds the nets of a run once in a child process, so that an abort of Caffe kills only that.

`python -m speedo.engines.caffe_check` reads one JSON object from its standard input and answers
with one line of JSON behind a mark, because a Python layer may print.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from speedo.engines.caffe_import import prepare_environment
from speedo.engines.fatal import describe_death, describe_exception
from speedo.errors import EngineError, SolverError, SpeedoError

_MARK: Final = "speedo-check: "


@dataclass(frozen=True, slots=True)
class CaffeFacts:
    """What the nets turned out to be; `outputs` are the names that `evaluate` will report."""

    parameters: int
    nbytes: int
    blobs: int
    layout: int
    samples_per_step: int
    outputs: tuple[str, ...]
    loss: float | None


@dataclass(frozen=True, slots=True)
class _Constant:
    """A learning rate of zero: a trial step must compute, not learn."""

    def rate(self, iteration: int) -> float:
        return 0.0


def check_in_subprocess(
    worker: str,
    tester: str | None = None,
    *,
    rank: int = 0,
    count: int = 1,
    folder: Path | None = None,
    weights: Path | None = None,
    step: bool = False,
    timeout: float = 120.0,
) -> CaffeFacts:
    """Build the nets of these solver texts in a child, with one step of the worker's if `step`.

    Raises `SolverError` with Caffe's own words if Caffe refuses them, `EngineError` if the child
    does not come back within `timeout` seconds or pycaffe is missing.
    """
    request = {
        "worker": worker, "tester": tester, "rank": rank, "count": count, "step": step,
        "folder": None if folder is None else str(folder),
        "weights": None if weights is None else str(weights),
    }  # fmt: skip
    environment = dict(os.environ)
    prepare_environment(1, environment)
    try:
        child = subprocess.run(
            [sys.executable, "-m", "speedo.engines.caffe_check"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=_with_our_path(environment),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"Caffe did not build the nets within {timeout:g} seconds: is the data on a slow disk?"
        ) from error
    answers = [line for line in child.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        raise SolverError(describe_death(child.stderr, child.returncode))
    answer = json.loads(answers[-1].removeprefix(_MARK))
    if "problem" in answer:
        raise (EngineError if answer["ours"] else SolverError)(answer["problem"])
    return CaffeFacts(**{**answer, "outputs": tuple(answer["outputs"])})


def _with_our_path(environment: dict[str, str]) -> dict[str, str]:
    """The child must find this very package, wherever its parent found it."""
    root = str(Path(__file__).resolve().parents[2])
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{root}{os.pathsep}{path}" if path else root
    return environment


def _build(request: dict[str, Any]) -> dict[str, Any]:
    from speedo.engines.pycaffe import PycaffeEngine

    folder = None if request["folder"] is None else Path(request["folder"])
    worker = PycaffeEngine(
        request["worker"],
        lr_policy=_Constant(),
        rank=request["rank"],
        count=request["count"],
        folder=folder,
    )
    if request["weights"] is not None:
        worker.copy_from(Path(request["weights"]))
    loss = worker.step(1) if request["step"] else None
    outputs: tuple[str, ...] = ()
    if request["tester"] is not None:
        tester = PycaffeEngine(request["tester"], lr_policy=_Constant(), folder=folder)
        outputs = tester.test_outputs()
        if tester.layout != worker.layout:
            raise SolverError("the tester's train net has other parameters than the worker's")
        tester.close()
    layout = worker.layout
    facts = CaffeFacts(
        layout.size, layout.nbytes, len(layout.blobs), layout.digest, worker.samples_per_step,
        outputs, loss,
    )  # fmt: skip
    worker.close()
    return {name: getattr(facts, name) for name in CaffeFacts.__slots__}


def main() -> None:
    """The child's part."""
    try:
        answer = _build(json.load(sys.stdin))
    except SpeedoError as error:
        answer = {"problem": str(error), "ours": isinstance(error.__cause__, ImportError)}
    except Exception as error:
        answer = {"problem": describe_exception(error), "ours": True}
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
