"""A solver as read: one self-contained text, and its properties that a run needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caffenets.checks.paths import SearchPath
from caffenets.host_program import caffe_schema
from caffenets.prototxt.text import parse_text, set_field, to_text
from speedo.engines.solver.lr_policies import LrPolicy
from speedo.system.bounds import EngineName


@dataclass(frozen=True, slots=True)
class SolverOverrides:
    """Values that replace the solver's own; `batch` is the `batch_size` of the train net.

    `cpu` changes `solver_mode: GPU`, which most published solvers have. `engine` is what will compute: solver and nets
    are checked for it. With `ignore_unknown` fields that the engine does not know are left out.
    """

    max_iter: int | None = None
    test_interval: int | None = None
    lr: float | None = None
    warm_up: int = 0
    momentum: float | None = None
    weight_decay: float | None = None
    batch: int | None = None
    seed: int | None = None
    cpu: bool = False
    engine: EngineName = "caffe"
    ignore_unknown: bool = False


@dataclass(frozen=True, slots=True)
class SolverSpec:
    """A solver with its nets inlined, so that no other node needs a prototxt file.

    `text` is a SolverParameter with the train net in `train_net_param` and the test nets in `test_net_param`, one for
    each `test_iter`; all are upgraded and hold only the layers of their own state. Paths of data in it are as written.
    `net_files` are the files of the nets, the train net first. `random_seed` is -1 if the solver has none.
    `python_layers` are the modules that Python layers may come from besides those in `folder`. `engine` is the one that
    the solver is checked for. `sums_losses` says that the loss of a batch was found to be the sum, not the mean, of
    those of its records (`speedo.engines.batch_division`). `left_out` are sentences about fields that were ignored.
    """

    text: str
    path: Path
    search: SearchPath
    net_files: tuple[str, ...]
    net_name: str
    type: str
    max_iter: int
    test_iter: tuple[int, ...]
    test_interval: int
    test_initialization: bool
    snapshot: int
    snapshot_prefix: str
    batch_size: int
    iter_size: int
    momentum: float
    weight_decay: float
    lr_policy: LrPolicy
    random_seed: int
    train_source: str | None
    layer_types: tuple[str, ...]
    python_layers: tuple[str, ...] = ()
    snapshot_after_train: bool = True
    snapshot_hdf5: bool = False
    engine: EngineName = "caffe"
    sums_losses: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The solver's own folder, where the modules of Python layers are."""
        return self.search.folder

    @property
    def data_root(self) -> Path | None:
        """The value of `--data-root`."""
        return self.search.data_root

    @property
    def batch(self) -> int:
        """Records of one iteration of sequential Caffe: `batch_size * iter_size`."""
        return self.batch_size * self.iter_size

    def layer_names(self) -> list[str]:
        """The layers of the train net."""
        parameter = parse_text(self.text, caffe_schema().SolverParameter())
        return [str(layer.name) for layer in parameter.train_net_param.layer]

    def snapshot_name(self, iteration: int) -> str:
        """Caffe's name for the weights of a snapshot, without a folder."""
        return f"{self.snapshot_stem}_iter_{iteration}.caffemodel{self._h5}"

    def solverstate_name(self, iteration: int) -> str:
        """Caffe's name for the solver's state of a snapshot, without a folder."""
        return f"{self.snapshot_stem}_iter_{iteration}.solverstate{self._h5}"

    @property
    def _h5(self) -> str:
        return ".h5" if self.snapshot_hdf5 else ""

    def last_snapshot(self, iteration: int) -> int | None:
        """The iteration in the names of Caffe's snapshot of a run that ends there; None if it writes none.

        Caffe: solver.cpp, Step and Solve.
        """
        iteration = min(iteration, self.max_iter)  # the last merge may go beyond it
        regular = self.snapshot > 0 and iteration % self.snapshot == 0
        return iteration if regular or self.snapshot_after_train else None

    def on_node(self, data_root: Path | None) -> SolverSpec:
        """The same solver on this node: paths are searched from its own working directory and data root."""
        search = SearchPath(self.search.folder, Path.cwd(), data_root or self.search.data_root)
        return replace(self, search=search)

    @property
    def update_is_linear(self) -> bool:
        """Whether the mean of the workers' updates is the update by their mean gradient.

        That holds for SGD and Nesterov; the other solvers, and clipping, need the whole gradient.
        """
        clip = re.search(r"^clip_gradients: *(\S+)", self.text, re.MULTILINE)
        return self.type in ("SGD", "Nesterov") and (clip is None or float(clip[1]) <= 0)

    def with_nesterov(self) -> SolverSpec:
        """The same solver with Nesterov's form of its momentum (Caffe: nesterov_solver.cpp); SGD's history fits it."""
        parameter = parse_text(self.text, caffe_schema().SolverParameter())
        parameter.ClearField("solver_type")
        parameter.type = "Nesterov"
        return replace(self, text=to_text(parameter), type="Nesterov")

    def with_rates_scaled(self, factor: float) -> SolverSpec:
        """The same solver with `base_lr` this many times as large, and with it the rate of every iteration."""
        scaled = self.lr_policy.from_base(self.lr_policy.base_lr * factor)
        parameter = parse_text(self.text, caffe_schema().SolverParameter())
        parameter.base_lr = scaled.base_lr
        return replace(self, text=to_text(parameter), lr_policy=scaled)

    @property
    def snapshot_stem(self) -> str:
        """The prefix of the names of snapshots: the last part of Caffe's prefix."""
        return Path(self.snapshot_prefix or self.net_name or "model").name

    @property
    def has_test(self) -> bool:
        """Whether a test computes anything: with `test_iter: 0` Caffe builds the net and runs no batch."""
        return any(self.test_iter)


def apply_overrides(parameter: Any, overrides: SolverOverrides) -> None:
    """Put the overrides into a SolverParameter in place; the batch is set with the nets."""
    values = {
        "max_iter": overrides.max_iter,
        "test_interval": overrides.test_interval,
        "base_lr": overrides.lr,
        "momentum": overrides.momentum,
        "weight_decay": overrides.weight_decay,
        "random_seed": overrides.seed,
    }
    for field, value in values.items():
        if value is not None:
            set_field(parameter, field, value)
    if overrides.cpu:
        parameter.solver_mode = parameter.CPU
