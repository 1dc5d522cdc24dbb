"""Reads a solver.prototxt and its net files into one `SolverSpec`."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from caffenets.caffe_schema import caffe_pb2
from caffenets.checks.nets import net_problems
from caffenets.checks.paths import SearchPath
from caffenets.data_layers import data_layers, net_batch, set_net_batch, source_of
from caffenets.host_program import caffe_schema
from caffenets.nets import read_net
from caffenets.prototxt.dialect import caffes_text, top_fields
from caffenets.prototxt.state import filter_net
from caffenets.prototxt.text import read_text, to_text
from caffenets.prototxt.upgrade import upgrade_net
from speedo.engines.layer_types import known_to
from speedo.engines.solver.lr_policies import LrPolicy
from speedo.engines.solver.solver_checks import SOLVER_TYPES, solver_problems
from speedo.engines.solver.spec import SolverOverrides, SolverSpec, apply_overrides
from speedo.errors import SolverError

_NET_FIELDS = (
    "net", "net_param", "train_net", "train_net_param", "test_net", "test_net_param",
    "train_state", "test_state",
)  # fmt: skip

_OF_SOLVERS: Final = {*caffe_pb2.SolverParameter.DESCRIPTOR.fields_by_name} - {"debug_info"}
_OF_NETS: Final = {*caffe_pb2.NetParameter.DESCRIPTOR.fields_by_name} - {"debug_info"}


def read_solver(
    path: Path,
    *,
    overrides: SolverOverrides | None = None,
    data_root: Path | None = None,
    trains: bool = True,
) -> SolverSpec:
    """Read a solver and all its nets; raises `SolverError` with every problem found.

    With `trains` false it may lack what only training needs. Nets are searched on this machine, data sources only where
    they are read (`solver_for_worker`).
    """
    path = path.absolute()
    if os.path.isdir(path):
        raise SolverError(f"{path}: is a folder: give the solver.prototxt in it")
    if not os.path.exists(path):
        raise SolverError(
            f"{path}: there is no such solver file: give the path of a solver.prototxt"
        )
    if is_net(path):
        raise SolverError(
            f"{path}: is the prototxt of a net: give the solver.prototxt that names it as its net"
        )
    search = SearchPath(path.parent, Path.cwd(), data_root.absolute() if data_root else None)
    parameter = caffe_schema().SolverParameter()
    overrides = overrides or SolverOverrides()
    left_out: list[str] | None = [] if overrides.ignore_unknown else None
    read_text(path, parameter, left_out)
    apply_overrides(parameter, overrides)

    problems = solver_problems(parameter, path, overrides.engine, trains=trains)
    reader = _NetReader(parameter, path, search, left_out)
    inlined = reader.inline()
    problems += reader.problems
    problems += _unwritable_names(inlined, path)
    if problems:
        if reader.complete:
            problems += net_problems(inlined, search, reader.net_files, known_to(overrides.engine))
        raise SolverError(problems)
    if overrides.batch is not None:
        set_net_batch(inlined.train_net_param, overrides.batch)
    _upgrade_type(inlined)
    spec = spec_of(inlined, path, search, tuple(reader.net_files))
    warmed = replace(spec.lr_policy, warm_up=overrides.warm_up)
    told = tuple(dict.fromkeys(left_out or ()))
    return replace(spec, lr_policy=warmed, engine=overrides.engine, left_out=told)


def is_net(path: Path) -> bool:
    """Whether the file holds a net and no solver, by its first fields; one that cannot be read holds none."""
    with suppress(OSError, SolverError):
        for name in top_fields(caffes_text(path)):
            if name in _OF_NETS:
                return True
            if name in _OF_SOLVERS:
                return False
    return False


class _NetReader:
    """Reads the nets of one solver and inlines them; collects the problems."""

    def __init__(
        self, parameter: Any, path: Path, search: SearchPath, left_out: list[str] | None
    ) -> None:
        self._parameter = parameter
        self._left_out = left_out
        self._path = path
        self._search = search
        self.problems: list[str] = []
        self.complete = False
        self.net_files: list[str] = []  # the train net's, then each test net's

    def inline(self) -> Any:
        """A copy of the solver with `train_net_param` and one `test_net_param` for each test."""
        parameter, proto = self._parameter, caffe_schema()
        generic = self._generic()
        inlined = type(parameter)()
        inlined.CopyFrom(parameter)
        for field in _NET_FIELDS:
            inlined.ClearField(field)
        train = self._train(generic)
        if train is not None:
            state = parameter.train_state if parameter.HasField("train_state") else None
            self._put(inlined.train_net_param, train, proto.TRAIN, state)
        tests = self._tests(generic)
        states = list(parameter.test_state) or [None] * len(tests)
        for test, state in zip(tests, states, strict=False):
            if test is not None:
                self._put(inlined.test_net_param.add(), test, proto.TEST, state)
        self.complete = train is not None and None not in tests
        return inlined

    def _put(self, target: Any, net: tuple[Any, str], phase: int, state: Any | None) -> None:
        self.net_files.append(net[1])
        try:
            target.CopyFrom(filter_net(net[0], phase, state, net[1]))
        except SolverError as error:
            self._add(error)

    def _generic(self) -> tuple[Any, str] | None:
        if self._parameter.HasField("net_param"):
            return self._inside(self._parameter.net_param)
        return self._file(self._parameter.net) if self._parameter.HasField("net") else None

    def _train(self, generic: tuple[Any, str] | None) -> tuple[Any, str] | None:
        if self._parameter.HasField("train_net_param"):
            return self._inside(self._parameter.train_net_param)
        if self._parameter.HasField("train_net"):
            return self._file(self._parameter.train_net)
        return generic

    def _tests(self, generic: tuple[Any, str] | None) -> list[tuple[Any, str] | None]:
        """Test nets in Caffe's order: inside the solver, from files, then the generic net."""
        tests = [self._inside(net) for net in self._parameter.test_net_param]
        tests += [self._file(name) for name in self._parameter.test_net]
        rest = len(self._parameter.test_iter) - len(tests)
        has_generic = self._parameter.HasField("net") or self._parameter.HasField("net_param")
        return tests + [generic] * rest if has_generic else tests

    def _inside(self, net: Any) -> tuple[Any, str] | None:
        return self._upgraded(net, str(self._path))

    def _file(self, name: str) -> tuple[Any, str] | None:
        found = self._search.find(name)
        if found is None or found.is_dir():
            self._add(SolverError(f"{self._path}: names the net {self._search.missing(name)}"))
            return None
        try:
            return read_net(found, self._left_out), str(found)
        except SolverError as error:
            self._add(error)
            return None

    def _upgraded(self, net: Any, origin: str) -> tuple[Any, str] | None:
        try:
            upgrade_net(net, origin)
        except SolverError as error:
            self._add(error)
            return None
        return net, origin

    def _add(self, error: SolverError) -> None:
        # One file may be named twice, as train net and as test net.
        self.problems += [text for text in error.problems if text not in self.problems]


def _unwritable_names(inlined: Any, path: Path) -> list[str]:
    """Layers that a snapshot in HDF5 cannot hold: names with a slash are folders there, which Caffe does not read."""
    if inlined.snapshot_format != inlined.HDF5:
        return []
    names = [str(layer.name) for layer in inlined.train_net_param.layer if "/" in layer.name]
    return [
        f"{path}: snapshot_format is HDF5, in which Caffe cannot read a layer named {name!r}: use BINARYPROTO"
        for name in names[:1]
    ]


def _upgrade_type(parameter: Any) -> None:
    if parameter.HasField("solver_type"):
        parameter.type = SOLVER_TYPES[parameter.solver_type]
        parameter.ClearField("solver_type")


def _snapshot_prefix(parameter: Any, path: Path) -> str:
    """Caffe: util/upgrade_proto.cpp, UpgradeSnapshotPrefixProperty."""
    if not parameter.HasField("snapshot_prefix"):
        return str(path.with_suffix(""))
    prefix = str(parameter.snapshot_prefix)
    return str(Path(prefix) / path.stem) if os.path.isdir(prefix) else prefix


def spec_of(
    parameter: Any, path: Path, search: SearchPath, net_files: tuple[str, ...]
) -> SolverSpec:
    """The spec of a SolverParameter with its nets inside."""
    train = parameter.train_net_param
    sources = [source for layer in data_layers(train) if (source := source_of(layer))]
    return SolverSpec(
        text=to_text(parameter),
        path=path,
        search=search,
        net_files=net_files,
        net_name=str(train.name) or path.stem,
        type=str(parameter.type),
        max_iter=int(parameter.max_iter),
        test_iter=tuple(int(count) for count in parameter.test_iter),
        test_interval=int(parameter.test_interval),
        test_initialization=bool(parameter.test_initialization),
        snapshot=int(parameter.snapshot),
        snapshot_prefix=_snapshot_prefix(parameter, path),
        batch_size=net_batch(train),
        iter_size=int(parameter.iter_size),
        momentum=float(parameter.momentum),
        weight_decay=float(parameter.weight_decay),
        lr_policy=LrPolicy.from_solver(parameter),
        random_seed=int(parameter.random_seed),
        train_source=sources[0] if sources else None,
        layer_types=tuple(dict.fromkeys(str(layer.type) for layer in train.layer)),
        snapshot_after_train=bool(parameter.snapshot_after_train),
        snapshot_hdf5=parameter.snapshot_format == parameter.HDF5,
    )
