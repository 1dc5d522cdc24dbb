"""Reads the net that a model is of: a deploy, train or test prototxt, or a solver's net; and makes its deploy net."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caffenets.checks.nets import problems_of_layers
from caffenets.data_layers import data_layers
from caffenets.deploy import Deploy, is_whole
from caffenets.export.transform import Transform, transforms_of
from caffenets.export.trials import Arrays
from caffenets.forms.steps import Shape
from caffenets.host_program import caffe_schema
from caffenets.inputs import deployed
from caffenets.prototxt.text import parse_text, to_text
from speedo.engines.export.trial import Trials
from speedo.engines.layer_types import known_to
from speedo.engines.make import EngineChoice
from speedo.engines.solver.reading import is_net, read_solver
from speedo.engines.solver.rewrite import solver_for_scoring
from speedo.engines.solver.scored_nets import read_net
from speedo.engines.solver.spec import SolverOverrides, SolverSpec
from speedo.errors import EngineError, SolverError


@dataclass(frozen=True, slots=True)
class Source:
    """A net with all its layers of one state, `origin`, its file, and the spec that its records are read by."""

    net: Any
    origin: str
    spec: SolverSpec

    def deploy(
        self,
        given: Mapping[str, Shape],
        known: Mapping[str, Shape],
        blobs: Mapping[str, Sequence[Shape]],
    ) -> Deploy:
        """The deploy net; for the rest see `InputShapes`. Raises `SolverError` with every problem of it."""
        deploy = deployed(self.net, self.origin, given, known, blobs, "--data-root, or ")
        engine = self.spec.engine
        if problems := problems_of_layers(
            deploy.net, self.spec.search, self.origin, known_to(engine)
        ):
            raise SolverError(problems)
        return deploy

    def transforms(self, deploy: Deploy) -> dict[str, Transform]:
        """What the net's data layers do to their records. Raises `SolverError` where they do nothing."""
        return transforms_of(self.net, deploy.inputs, self.spec.search.require, self.origin)

    def records(self, trials: Trials, scratch: Path) -> tuple[Arrays, str]:
        """A batch of the net's records, or none and why there is none."""
        if not data_layers(self.net):
            return {}, "the net has no data layer"
        try:
            found = read_records(self.spec, self.net, trials, scratch)
        except (SolverError, EngineError) as error:
            return {}, str(error).partition("\n")[0]
        return {name: batches[0] for name, batches in found.items()}, ""


def read_records(
    spec: SolverSpec,
    net: Any,
    trials: Trials,
    scratch: Path,
    batches: int = 1,
    names: Sequence[str] = (),
) -> Arrays:
    """Batches of the data layers of this net of `spec`; see `Trials.records`. Raises `SolverError`, `EngineError`."""
    parameter: Any = parse_text(spec.text, caffe_schema().SolverParameter())
    del parameter.test_net_param[1:]
    reader = parameter.test_net_param[0]
    reader.CopyFrom(net)
    del reader.layer[:]
    reader.layer.extend(data_layers(net))
    alone = replace(spec, text=to_text(parameter))
    text = solver_for_scoring(alone, scratch=scratch)
    return trials.records(text, spec.folder, batches, names)


def read_source(
    path: Path, data_root: Path | None, choice: EngineChoice, ignore_unknown: bool
) -> Source:
    """The net of this file. Raises `SolverError`."""
    path = path.absolute()
    if os.path.isdir(path) or not os.path.exists(path):
        what = "is a folder" if os.path.isdir(path) else "there is no such file"
        raise SolverError(f"{path}: {what}: give the prototxt of a net or of a solver")
    if is_net(path):
        spec = read_net(path, data_root, 1, ignore_unknown)
        net = _test_net(spec)
        if not is_whole(net):
            trained = read_net(path, data_root, 1, ignore_unknown, phase="TRAIN")
            if is_whole(_test_net(trained)):
                spec, net = trained, _test_net(trained)
        return Source(net, spec.net_files[-1], replace(spec, engine=choice.engine))
    overrides = SolverOverrides(cpu=True, engine=choice.engine, ignore_unknown=ignore_unknown)
    spec = read_solver(path, overrides=overrides, data_root=data_root, trains=False)
    parameter: Any = parse_text(spec.text, caffe_schema().SolverParameter())
    if not parameter.test_net_param:
        parameter.test_net_param.add().CopyFrom(parameter.train_net_param)
    del parameter.test_net_param[1:]
    parameter.test_iter[:] = [1]
    parameter.train_net_param.CopyFrom(parameter.test_net_param[0])
    origin = spec.net_files[1 if spec.test_iter else 0]
    return Source(parameter.test_net_param[0], origin, replace(spec, text=to_text(parameter)))


def _test_net(spec: SolverSpec) -> Any:
    parameter: Any = parse_text(spec.text, caffe_schema().SolverParameter())
    return parameter.test_net_param[0]
