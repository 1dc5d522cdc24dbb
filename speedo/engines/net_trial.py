"""Builds the nets of a run once in a child process, so that an abort of Caffe ends only the child.

`python -m speedo.engines.net_trial` reads one JSON object from standard input and prints one line of JSON after a
marker, because a Python layer may print, too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from pydantic import TypeAdapter

from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import line_of_layer
from speedo.engines.batch_division import Division, try_division
from speedo.engines.caffe_import import prepare_environment
from speedo.engines.child import tell
from speedo.engines.label_rules import label_uses
from speedo.engines.make import CAFFE, EngineChoice, make_engine, prepare_process
from speedo.engines.native_failures import describe_death, describe_exception, is_about_image
from speedo.engines.record_check import first_problem, is_known, remember, until
from speedo.engines.record_rules import RecordRule, record_rules
from speedo.engines.step_memory import StepMemory
from speedo.engines.weights_check import check_start
from speedo.errors import EngineError, SolverError, SpeedoError
from speedo.exchange.factors import Product
from speedo.exchange.vector import Vector
from speedo.system.import_order import with_our_path

_MARK: Final = "speedo-check: "
NEITHER: Final = (
    "neither the mean nor the sum of the gradients of its parts is the gradient of the batch"
)
FIRST_S: Final = 0.1  # for the records of a source before the nets are built
CHECK_S: Final = 2.0  # for all records afterwards; the rest is read beside the run
SEARCH_S: Final = 30.0  # for the record over whose image Caffe has aborted, which it does not name
WORTH_S: Final = 0.2  # a check that took longer is kept in mind
# Caffe: net.cpp, Init. The name of each layer that it begins with; nothing where a net is whole.
_LAYERS: Final = re.compile(r"net\.cpp:\d+\] (?:Creating Layer (.+)|Network initialization done)")

_NAMED: Final = re.compile(r"layer '([^']+)'")  # how the sentences of PyTorch's engine begin


@dataclass(frozen=True, slots=True)
class CaffeFacts:
    """What the nets turned out to be; `outputs` are the names that `evaluate` will report.

    `unchecked` are the sources whose records were too many to read them all. `division` says what the parts of a batch
    give, if that was asked for, and `undivided` why they do not give the step of the whole: `NEITHER`, or what failed.
    `notes` are sentences about records that are good, but not as their user may think.
    `products` are those of the worker's engine. `memory` is that of a step, if it was asked for.
    """

    parameters: int
    nbytes: int
    blobs: int
    layout: int
    samples_per_step: int
    outputs: tuple[str, ...]
    loss: float | None
    unchecked: tuple[RecordRule, ...] = ()
    division: Division = "none"
    undivided: str = ""
    products: tuple[Product, ...] = ()
    memory: StepMemory | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Constant:
    """A learning rate of zero: a trial step must compute, not learn."""

    def rate(self, iteration: int) -> float:
        return 0.0

    def from_base(self, lr: float) -> _Constant:
        return self


def check_in_subprocess(
    worker: str,
    tester: str | None = None,
    *,
    rank: int = 0,
    count: int = 1,
    folder: Path | None = None,
    python_layers: Collection[str] = (),
    weights: Sequence[Path] = (),
    step: bool = False,
    memory: bool = False,
    divided: str | None = None,
    timeout: float = 120.0,
    origin: str = "",
    records: str | None = None,
    cache: Path | None = None,
    choice: EngineChoice = CAFFE,
) -> CaffeFacts:
    """Build the nets of these solver texts in a child, with one step of the worker's if `step`.

    With `memory` the facts have what a step takes. PyTorch then allocates nothing: a net that is larger than the memory
    is described, too, and the first values of parameters are not checked.
    `divided` is the worker's solver once more, to try what parts of its batch give (`speedo.engines.batch_division`).
    Raises `SolverError` for weights that do not fit, and with Caffe's own words if Caffe refuses the nets;
    `EngineError` if the child does not come back within `timeout` seconds or the engine is missing. `origin`, the
    net's file, begins every sentence about the nets.
    """
    request = {
        "worker": worker, "tester": tester, "rank": rank, "count": count, "step": step, "memory": memory,
        "folder": None if folder is None else str(folder), "python_layers": list(python_layers),
        "weights": list(map(str, weights)), "records": records, "divided": divided,
        "cache": None if cache is None else str(cache), "engine": asdict(choice),
    }  # fmt: skip
    environment = dict(os.environ)
    prepare_environment(1, environment)
    # Its notes tell which layer it was at; nobody else reads them.
    environment["GLOG_minloglevel"] = "0"
    try:
        # An abort leaves the engines' scratch folders: they are in one that we remove.
        with tempfile.TemporaryDirectory(prefix="speedo-check-") as scratch:
            child = subprocess.run(
                [sys.executable, "-P", "-m", "speedo.engines.net_trial"],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env=with_our_path({**environment, "TMPDIR": scratch}),
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"{choice.name} did not build the nets within {timeout:g} seconds: is the data on a slow disk?"
        ) from error
    answers = [
        json.loads(line.removeprefix(_MARK))
        for line in child.stdout.splitlines()
        if line.startswith(_MARK)
    ]
    if not answers:
        bad = _bad_record(request) if is_about_image(child.stderr) else None
        raise SolverError(bad or _refusal(child.stderr, child.returncode, origin))
    answer = answers[0]
    if "problem" in answer and answer["ours"]:
        raise EngineError(answer["problem"])
    if "problem" in answer:
        about_net = origin and not answer["problem"].startswith("weights ")
        place = f"{origin}{_line(answer['problem'], origin, choice)}: " if about_net else ""
        raise SolverError(f"{place}{answer['problem']}")
    facts = TypeAdapter(CaffeFacts).validate_python(answer)
    if divided is None:
        return facts
    if len(answers) > 1:
        return replace(facts, **answers[1])
    at = _LAYERS.findall(child.stderr)
    where = f"layer {at[-1]!r} cannot be built" if at and at[-1] else "the net cannot be computed"
    return replace(facts, undivided=f"{where} with a part of the batch")


def _line(problem: str, origin: str, choice: EngineChoice) -> str:
    """Where the file of the net names the layer that PyTorch's engine refuses."""
    named = _NAMED.match(problem) if choice.engine == "torch" else None
    return "" if named is None else line_of_layer(origin, named[1])


def _refusal(stderr: str, returncode: int, origin: str) -> str:
    """How the child died, and over what: a layer, or the solver as a whole."""
    said = describe_death(stderr, returncode)
    start = f"{origin}: " if origin else ""
    at = _LAYERS.findall(stderr)
    if at and at[-1]:
        return f"{start}layer {at[-1]!r} cannot be built, correct it or what it reads: {said}"
    if "Cannot share param" in said:
        return f"{start}train and test net must have parameters of the same shapes, correct one: {said}"
    return f"{start}correct the solver or its nets: {said}"


def _build(
    choice: EngineChoice, request: dict[str, Any]
) -> tuple[dict[str, Any], Mapping[str, Vector]]:
    """The facts, and a batch if one is asked for."""
    folder = None if request["folder"] is None else Path(request["folder"])
    allowed = request["python_layers"]
    sources = _sources(request)
    _check_first(sources)
    worker = make_engine(
        choice,
        request["worker"],
        lr_policy=_Constant(),
        rank=request["rank"],
        count=request["count"],
        folder=folder,
        python_layers=allowed,
    )
    if choice.engine == "caffe" or not request["memory"]:  # else there are no values
        check_start(worker, [Path(name) for name in request["weights"]])
    loss = worker.step(1) if request["step"] else None
    outputs: tuple[str, ...] = ()
    if request["tester"] is not None:
        tester = make_engine(
            choice, request["tester"], lr_policy=_Constant(), folder=folder, python_layers=allowed
        )
        outputs = tester.test_outputs()
        if tester.layout != worker.layout:
            raise SolverError("the tester's train net has other parameters than the worker's")
        tester.close()
    cache = None if request["cache"] is None else Path(request["cache"])
    batch = worker.next_batch() if request["divided"] is not None else {}
    shapes, layout, samples = worker.shapes(), worker.layout, worker.samples_per_step
    products = worker.products()
    memory = worker.memory() if request["memory"] else None
    worker.close()  # LMDB may be open only once in a process
    rules = [replace(rule, uses=label_uses(net, rule.layer, shapes)) for net, rule in sources]
    notes: list[str] = []
    rules = [rule for rule in rules if not is_known(rule, cache)]
    unchecked = _check_records(rules, cache, notes.append)
    facts = CaffeFacts(
        layout.size, layout.nbytes, len(layout.blobs), layout.digest, samples,
        outputs, loss, tuple(unchecked), products=products, memory=memory, notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip
    return asdict(facts), batch


def _divide(
    choice: EngineChoice, request: dict[str, Any], batch: Mapping[str, Vector]
) -> dict[str, Any]:
    """What the parts of a batch give; a net that fails with parts gives nothing."""
    folder = None if request["folder"] is None else Path(request["folder"])
    try:
        with tempfile.TemporaryDirectory() as scratch:
            division = try_division(
                choice, request["divided"], batch, _Constant(), Path(scratch),
                folder=folder, python_layers=request["python_layers"],
            )  # fmt: skip
    except Exception as error:  # also one of a Python layer's own
        return {
            "undivided": f"the net fails with a part of the batch ({describe_exception(error)})"
        }
    if division != "none":
        return {"division": division}
    return {"undivided": NEITHER}


def _sources(request: dict[str, Any]) -> list[tuple[Any, RecordRule]]:
    """The rules of all sources, each with its net."""
    nets = []
    for text in (
        [request["records"]] if request["records"] else [request["worker"], request["tester"]]
    ):
        if text is not None:
            solver = text_format.Parse(text, caffe_schema().SolverParameter())
            tests = list(solver.test_net_param)
            # The train net of a tester is there for its parameters.
            nets += tests if text is request["tester"] else [solver.train_net_param, *tests]
    return [(net, rule) for net in nets for rule in record_rules(net)]


def _check_first(sources: list[tuple[Any, RecordRule]]) -> None:
    """The records that Caffe reads ahead as soon as a net is built: it would abort at a bad one."""
    for _, rule in sources:
        problem, _ = first_problem(rule, until(time.monotonic() + FIRST_S))
        if problem is not None:
            raise SolverError(problem)


def _bad_record(request: dict[str, Any]) -> str | None:
    """The record over whose image Caffe has aborted, of those that can be read in `SEARCH_S`."""
    deadline = time.monotonic() + SEARCH_S
    for _, rule in _sources(request):
        problem, _ = first_problem(rule, until(deadline))
        if problem is not None:
            return problem
    return None


def _check_records(
    rules: list[RecordRule], cache: Path | None, note: Callable[[str], None]
) -> list[RecordRule]:
    """Check all that can be read in `CHECK_S`; returns the rules of sources that are larger."""
    unchecked = []
    for rule in rules:
        began = time.monotonic()
        problem, whole = first_problem(rule, until(began + CHECK_S / len(rules)), note)
        if problem is not None:
            raise SolverError(problem)
        if not whole:
            unchecked.append(rule)
        elif time.monotonic() - began > WORTH_S:
            remember(rule, cache)
    return unchecked


def main() -> None:
    """The child's part."""
    ours = True
    try:
        request = json.load(sys.stdin)
        choice = EngineChoice(**request["engine"])
        prepare_process(choice)
        choice = choice.for_shapes() if request["memory"] else choice
        ours = False
        answer, batch = _build(choice, request)
        tell(_MARK, answer)
        if request["divided"] is not None:
            tell(_MARK, _divide(choice, request, batch))
        return
    except SpeedoError as error:
        answer = {"problem": str(error), "ours": ours}
    except Exception as error:
        answer = {"problem": describe_exception(error), "ours": True}
    tell(_MARK, answer)


if __name__ == "__main__":
    main()
