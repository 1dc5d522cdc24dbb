"""Writes the solver text of one process from a `SolverSpec`: absolute paths, its share of the data.

Data sources are resolved on the node that reads them.
"""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

from caffenets.checks.paths import SearchPath
from caffenets.checks.sources import image_name, read_hdf5_list, read_list
from caffenets.data_layers import SOURCES, data_layers, set_net_batch
from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text, set_field, to_text
from speedo.engines.solver.conversion import read_conversion
from speedo.engines.solver.division import scale_losses
from speedo.engines.solver.fillers import Draws, keep_fillers
from speedo.engines.solver.hdf5_shares import write_shares
from speedo.engines.solver.spec import SolverSpec
from speedo.errors import SolverError


def solver_for_worker(
    spec: SolverSpec,
    *,
    rank: int,
    count: int,
    batch_size: int,
    seed: int | None = None,
    scratch: Path | None = None,
    draws: Draws = Draws.ALL,
) -> str:
    """The solver of worker `rank` of `count`: the train net alone, with the learning rate controlled from outside.

    `Data` and `HDF5Data` layers select their shard themselves if the engine gets `rank` and `count`. For `ImageData` a
    list of every `count`-th line from `rank` on is written into `scratch`, and the like for a shuffled `HDF5Data`, as
    are lists whose names are relative.
    Caffe adds its rank to the seed, so the same seed (or the solver's own) draws differently in every worker and alike
    in every run. A worker that loads other weights before its first step need not draw any. Where the loss of a batch
    is the sum of those of its records, that of a part counts for the whole batch, so that the mean over the workers'
    records is Caffe's sum. Raises `SolverError` for data that is not on this node.
    """
    parameter = _train_only(spec, seed)
    set_net_batch(parameter.train_net_param, batch_size)
    if spec.sums_losses and batch_size != spec.batch_size:
        scale_losses(parameter.train_net_param, spec.batch_size / batch_size)
    keep_fillers(parameter.train_net_param, draws)
    _resolve(parameter, spec.search, _Lists(scratch, rank, count))
    return to_text(parameter)


def solver_for_server(
    spec: SolverSpec, *, seed: int | None = None, scratch: Path | None = None
) -> str:
    """The solver that draws the initial weights and applies gradients; it runs no pass.

    With the same seed its weights are those of sequential Caffe: some nets draw others with another batch.
    """
    parameter = _train_only(spec, seed)
    _read_little(parameter.train_net_param)
    _resolve(parameter, spec.search, _Lists(scratch, 0, 1))
    return to_text(parameter)


def solver_for_tester(
    spec: SolverSpec,
    *,
    seed: int | None = None,
    scratch: Path | None = None,
    draws: Draws = Draws.ALL,
) -> str:
    """As `solver_for_server`, with the test nets; `draws` as in `solver_for_worker`.

    The train net is needed for its parameters: it defines the layout, and is exported.
    """
    parameter = _controlled(spec, seed)
    _read_little(parameter.train_net_param)
    for net in (parameter.train_net_param, *parameter.test_net_param):
        keep_fillers(net, draws)
    _resolve(parameter, spec.search, _Lists(scratch, 0, 1))
    return to_text(parameter)


def solver_for_scoring(spec: SolverSpec, *, scratch: Path | None = None) -> str:
    """The test nets alone, to be given weights; their fillers draw nothing.

    The processes that share a test need one seed, so that each knows the order of the others.
    """
    parameter = _controlled(spec, max(spec.random_seed, 0))
    for field in ("train_net_param", "weights", "test_interval"):
        parameter.ClearField(field)
    for net in parameter.test_net_param:
        keep_fillers(net, Draws.NONE)
    _resolve(parameter, spec.search, _Lists(scratch, 0, 1))
    return to_text(parameter)


def solver_for_records(spec: SolverSpec, *, batch_size: int, scratch: Path | None = None) -> str:
    """Train and test nets that read all records, whatever the shards: to check them."""
    parameter = _controlled(spec, None)
    set_net_batch(parameter.train_net_param, batch_size)
    _resolve(parameter, spec.search, _Lists(scratch, 0, 1, "all"))
    return to_text(parameter)


def _read_little(net: Any) -> None:
    """Have the data layers of a net that is never run read one batch ahead, not four (Caffe: base_data_layer.cpp)."""
    for layer in data_layers(net):
        layer.data_param.prefetch = 1


def _train_only(spec: SolverSpec, seed: int | None) -> Any:
    parameter = _controlled(spec, seed)
    for field in ("test_net_param", "test_iter", "test_interval"):
        parameter.ClearField(field)
    return parameter


def _controlled(spec: SolverSpec, seed: int | None) -> Any:
    """The solver with all its nets; its rate and its snapshots are controlled from outside."""
    parameter = parse_text(spec.text, caffe_schema().SolverParameter())
    parameter.ClearField("stepvalue")
    parameter.lr_policy = "fixed"
    parameter.snapshot = 0
    parameter.snapshot_after_train = False
    set_field(parameter, "snapshot_prefix", str(spec.path.with_suffix("")))
    parameter.display = 0
    if not parameter.HasField("solver_mode"):
        parameter.solver_mode = parameter.CPU
    if seed is not None:
        set_field(parameter, "random_seed", seed)
    return parameter


class _Lists:
    """Writes list files for one worker: absolute names, lines of its shard."""

    def __init__(self, scratch: Path | None, rank: int, count: int, name: str = "") -> None:
        self._scratch = scratch
        self.rank, self.count, self._name = rank, count, name or str(rank)

    def folder(self, owner: str) -> Path:
        """A new folder, which no other engine reads."""
        return Path(tempfile.mkdtemp(prefix="share-", dir=self._place(owner))).absolute()

    def _place(self, owner: str) -> Path:
        if self._scratch is None:
            raise SolverError(f"{owner} needs a list file of its own: give a scratch folder")
        self._scratch.mkdir(parents=True, exist_ok=True)
        return self._scratch

    def write(self, lines: list[str], owner: str) -> str:
        text = "".join(f"{line}\n" for line in lines)
        # A name of its own: other processes write their lists into the same folder.
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="surrogateescape", newline="", delete=False,
            dir=self._place(owner), prefix=f"list-{self._name}-", suffix=".txt",
        ) as file:  # fmt: skip
            file.write(text)
        return os.path.abspath(file.name)


def _resolve(parameter: Any, search: SearchPath, lists: _Lists) -> None:
    """Make every path of the nets absolute; raises one `SolverError` with all that are missing."""
    problems: list[str] = []
    whole = _Lists(lists._scratch, -1, 1, "test")
    nets = [(parameter.train_net_param, lists), *((n, whole) for n in parameter.test_net_param)]
    for net, own in nets:
        for layer in net.layer:
            try:
                _resolve_layer(layer, search, own)
            except SolverError as error:
                problems += error.problems
    for index, names in enumerate(parameter.weights):
        try:
            found = [
                search.require(name.strip(), "the solver names the weights")
                for name in names.split(",")
            ]
            parameter.weights[index] = ",".join(str(path) for path in found)
        except SolverError as error:
            problems += error.problems
    if problems:
        raise SolverError(list(dict.fromkeys(problems)))


def _resolve_layer(layer: Any, search: SearchPath, lists: _Lists) -> None:
    owner = f"layer {layer.name!r}"
    if layer.transform_param.mean_file:
        found = search.require(layer.transform_param.mean_file, f"{owner} needs the mean file")
        set_field(layer.transform_param, "mean_file", str(found))
    if layer.infogain_loss_param.source:
        found = search.require(
            layer.infogain_loss_param.source, f"{owner} needs the infogain matrix"
        )
        set_field(layer.infogain_loss_param, "source", str(found))
    if layer.type not in SOURCES:
        return
    source = getattr(layer, SOURCES[layer.type])
    found = search.require(source.source, f"{owner} reads its records from")
    set_field(source, "source", str(found))
    read_conversion(layer)
    if layer.type == "HDF5Data":
        _resolve_hdf5(layer, search, lists, owner)
    elif layer.type == "ImageData":
        _resolve_images(layer, search, lists, owner)
    elif layer.type == "WindowData":
        image = read_list(Path(source.source))[1:2]
        start = search.before(source.root_folder, image[0].strip()) if image else None
        if start is None and source.root_folder:
            start = f"{search.require(source.root_folder, f'{owner} has the root_folder')}/"
        set_field(source, "root_folder", start or "")


def _resolve_hdf5(layer: Any, search: SearchPath, lists: _Lists, owner: str) -> None:
    source = layer.hdf5_data_param
    names = read_hdf5_list(Path(source.source))
    found = [str(search.require(name, f"{owner} reads the HDF5 file")) for name in names]
    if lists.rank < 0:  # a test net: testers that share a test have no common order in Caffe
        source.shuffle = False
    if source.shuffle and lists.count > 1:
        folder = lists.folder(owner)
        found = write_shares(found, list(layer.top), lists.rank, lists.count, folder, owner)
    if found != names:
        source.source = lists.write(found, owner)


def _resolve_images(layer: Any, search: SearchPath, lists: _Lists, owner: str) -> None:
    source = layer.image_data_param
    lines = read_list(Path(source.source))
    names = list(map(image_name, lines))
    start = source.root_folder
    # The first absolute and the first relative name decide for all of theirs.
    first = {os.path.isabs(start + name): name for name in reversed(names)}
    roots = {absolute: search.before(start, name) for absolute, name in first.items()}
    if not lines or roots[os.path.isabs(start + names[0])] is None:
        raise SolverError(f"{owner}: the list {source.source} is empty or its images are missing")
    mixed = len(roots) == 2
    if mixed:  # absolute names do not bear a root before them
        lines = [
            line if os.path.isabs(name) else f"{roots[False] or ''}{line}"
            for line, name in zip(lines, names, strict=True)
        ]
    set_field(source, "root_folder", "" if mixed else roots.popitem()[1])
    rank, count = lists.rank, lists.count
    if count > 1:
        # ImageData does not look at rank and count (Caffe: layers/image_data_layer.cpp).
        if source.shuffle:
            own = lines[rank::count]
        else:  # over the end of the list, as the other layers: what belongs together stays together
            turns = len(lines) // math.gcd(len(lines), count)
            own = [lines[(rank + turn * count) % len(lines)] for turn in range(turns)]
        if not own:
            raise SolverError(
                f"{owner} reads {len(lines):,} images, fewer than there are workers: use fewer workers, or "
                "--data-share same"
            )
        source.rand_skip //= count  # of a list that is as much shorter
        lines = own
    if count > 1 or mixed:
        source.source = lists.write(lines, owner)
