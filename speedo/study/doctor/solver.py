"""Checks the solver as a run would read it: its nets, its data on this node, and whether both match the master's."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from caffenets.checks.paths import SearchPath
from speedo.data.mnist import FASHION_MNIST, FASHION_MNIST_PACKAGE, FASHION_MNIST_SOURCE
from speedo.data.remote.uris import uri_of
from speedo.data.roots import default_data_root
from speedo.engines.make import CAFFE, EngineChoice, chosen_engine, prepare_to_read
from speedo.engines.net_trial import CaffeFacts, check_in_subprocess
from speedo.engines.solver import (
    SolverOverrides,
    SolverSpec,
    check_solver,
    read_solver,
    solver_for_tester,
    solver_for_worker,
)
from speedo.engines.solver.data_layers import count_records, files_named
from speedo.engines.update_rules import RULES
from speedo.errors import SolverError, SpeedoError, hide_secrets
from speedo.run.chosen_solver import chosen_solver
from speedo.run.config.combinations import OF_AN_ENGINE, found_in
from speedo.run.datasets import preparable_dataset
from speedo.run.remote_inputs import located
from speedo.study.doctor.base import BuiltNet, Finding, NodeRequest, fail, ok, size, warn
from speedo.study.doctor.step import step_finding

BUILD_S: Final = 60.0


def choice_of(request: NodeRequest, facts: dict[str, Any]) -> EngineChoice:
    """What a run here would compute with: the master's engine, if that is known, on this host's device."""
    with suppress(KeyError, TypeError):
        masters = EngineChoice(**facts["engine"])
        return replace(masters, device=request.device or masters.device)
    with suppress(SpeedoError):  # reported by the findings on engines
        return EngineChoice(
            chosen_engine(request.engine)[0],
            request.device or "auto",
            micro_batch=request.micro_batch,
        )
    return CAFFE


def examine_solver(
    request: NodeRequest, facts: dict[str, Any], choice: EngineChoice = CAFFE
) -> tuple[list[Finding], BuiltNet | None]:
    """Findings about solver, data and net; the net is None if it could not be built.

    If a worker's node has no solver, the one in the master's `facts` is checked.
    """
    if request.master is not None and request.solver is None and not facts:
        return [
            warn(
                "solver",
                "not checked: the master's is not known",
                "give SOLVER, or fix the master first",
            )
        ], None
    if problems := found_in(OF_AN_ENGINE, choice):
        return [fail("engine", text) for text in problems], None
    try:
        spec = _read(request, facts, choice)
    except SpeedoError as error:
        return [fail("solver", text) for text in _sentences(error)], None
    found = [
        ok(
            "solver",
            f"{spec.path}: {spec.net_name}, {spec.type}, {spec.max_iter} iterations of {spec.batch} samples",
        )
    ]
    found += [ok("solver", f"left out: {line}") for line in spec.left_out]
    uri = uri_of(request.data_root)
    if uri is not None and any(spec.search.find(name) is None for name in files_named(spec)):
        found.append(
            ok(
                "data",
                f"not here yet; a run fetches what the solver names from {hide_secrets(uri)}",
            )
        )
        return found, None
    dataset = preparable_dataset(spec)
    problems = _problems(spec, dataset)
    found += [fail("solver", text) for text in problems]
    if request.workers > spec.batch_size > 0:
        text = f"batch_size {spec.batch_size} cannot be split over {request.workers} workers, as mode sync does"
        found.append(warn("solver", text, "use fewer workers, a larger --batch, or --whole-batch"))
    if dataset is not None:
        return [*found, _missing(dataset, spec)], None
    if problems:
        return found, None
    found.append(_records(spec, facts))
    try:
        net = _build(spec, choice)
    except SpeedoError as error:
        return [*found, *(fail("net", text) for text in _sentences(error))], None
    assert net.memory is not None
    found += [_layout(net, facts), step_finding(net.memory)]
    found += [warn("data", text, "put the whole file in its place") for text in net.notes]
    written = 1 + (spec.max_iter // spec.snapshot if spec.snapshot > 0 else 0)
    models = written * (1 + RULES[spec.type].vectors)  # with the solver's history
    return found, BuiltNet(net.nbytes, net.memory, models, choice.engine, choice.micro_batch)


def _read(request: NodeRequest, facts: dict[str, Any], choice: EngineChoice) -> SolverSpec:
    root = (located(request.data_root) or default_data_root()).absolute()
    overrides = SolverOverrides(
        cpu=choice.device == "cpu", engine=choice.engine, ignore_unknown=request.ignore_unknown
    )
    if request.solver is None and facts:
        with tempfile.TemporaryDirectory(prefix="speedo-doctor-") as folder:
            path = Path(folder) / "the-master's-solver"
            path.write_text(facts["solver"], encoding="utf-8")
            spec = read_solver(path, overrides=overrides, data_root=root)
        home = Path(facts["folder"])
        files = tuple(f"{name} (on the master)" for name in facts["net_files"])
        search = SearchPath(home, Path.cwd(), root)
        return replace(spec, path=Path(path.name), search=search, net_files=files)
    return read_solver(chosen_solver(request.solver), overrides=overrides, data_root=root)


def facts_of(request: NodeRequest) -> dict[str, Any]:
    """What a master here would publish of its solver, as far as that is known before it runs. Raises `SpeedoError`."""
    choice = choice_of(request, {})
    prepare_to_read(choice.engine)
    spec = _read(request, {}, choice)
    return {
        "solver": spec.text,
        "folder": str(spec.folder),
        "net_files": list(spec.net_files),
        "records": count_records(spec),
        "engine": asdict(choice),
    }


def _problems(spec: SolverSpec, dataset: str | None) -> list[str]:
    """Every problem of the solver on this node, except a missing dataset that SpeeDO can make."""
    try:
        check_solver(spec, workers=1, split=False)
    except SolverError as error:
        return [text for text in error.problems if dataset is None or f"'{dataset}/" not in text]
    return []


def _missing(dataset: str, spec: SolverSpec) -> Finding:
    root = spec.data_root or default_data_root()
    command = f"speedo data {dataset} {root / dataset}"
    if dataset != FASHION_MNIST:
        return fail("data", f"{dataset} is not here", f"make it: {command}")
    if not FASHION_MNIST_SOURCE.is_dir():
        return fail(
            "data", f"{dataset} is not here, nor are the files to make it from",
            f"apt-get install {FASHION_MNIST_PACKAGE}, or {command} --source DIR",
        )  # fmt: skip
    return ok("data", f"{dataset} is not in {root} yet; it would be prepared on first use")


def _records(spec: SolverSpec, facts: dict[str, Any]) -> Finding:
    count, theirs = count_records(spec), facts.get("records")
    source = spec.train_source or "the train net's own source"
    place = spec.search.find(spec.train_source) if spec.train_source else None
    place = place and place.resolve()
    if count is None:
        return ok("data", f"{place or source}: its records cannot be counted without reading them")
    text = f"{place or source}: {count:,} training records"
    if theirs is not None and theirs != count:
        return fail(
            "data", f"{text}, but the master has {theirs:,}",
            "copy the master's data to this node, or prepare it in the same way: workers share it out by record",
        )  # fmt: skip
    return ok("data", text + (", as the master has" if theirs is not None else ""))


def _build(spec: SolverSpec, choice: EngineChoice) -> CaffeFacts:
    """Build the nets in a child process, as before the start of a run; nothing is left behind."""
    with tempfile.TemporaryDirectory(prefix="speedo-doctor-") as folder:
        scratch = Path(folder)
        worker = solver_for_worker(
            spec, rank=0, count=1, batch_size=spec.batch_size, seed=1, scratch=scratch
        )
        tester = solver_for_tester(spec, seed=1, scratch=scratch) if spec.has_test else None
        return check_in_subprocess(
            worker,
            tester,
            folder=spec.folder,
            timeout=BUILD_S,
            origin=spec.net_files[0],
            choice=choice.on_cpu(),
            memory=True,
        )


def _layout(net: CaffeFacts, facts: dict[str, Any]) -> Finding:
    text = f"{net.parameters:,} parameters in {net.blobs} blobs, {size(net.nbytes)} per exchange"
    theirs = facts.get("layout")
    if theirs is None:
        return ok("net", text)
    if theirs != net.layout:
        return fail(
            "net", f"{text}: another net than the master's, which has {facts['parameters']:,} parameters",
            "give the master's solver and nets, or leave SOLVER out",
        )  # fmt: skip
    return ok("net", f"{text}, laid out as the master's")


def _sentences(error: SpeedoError) -> tuple[str, ...]:
    return tuple(getattr(error, "problems", (str(error),)))
